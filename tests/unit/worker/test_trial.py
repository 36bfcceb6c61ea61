"""Two that stand by add up numbers together; one that adds wrongly, or does not come, is noticed."""

import threading
from collections.abc import Sequence

import pytest
import torch

from ftppo.worker import trial as module
from ftppo.worker.device import Device
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.trial import Trial

CPU = Device("cpu", torch.float32)
LIMIT_S = 30.0


def together(trials: Sequence[Trial]) -> list[bool]:
    """Each in a thread of its own; the first hosts."""
    meet = Rendezvous(1, "127.0.0.1", trials[0].open_store(LIMIT_S))
    found: dict[int, bool] = {}

    def run(rank: int) -> None:
        trials[rank].begin()
        found[rank] = trials[rank].run(meet, rank, len(trials), CPU, LIMIT_S)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(trials))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(len(trials))]


def test_sound_ones_find_the_sum_right_and_can_do_it_again() -> None:
    trials = [Trial(), Trial()]
    for _ in range(2):
        assert together(trials) == [True, True]


def test_a_wrong_number_spoils_it_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = module._numbers
    given = threading.local()

    def wrong(rank: int) -> torch.Tensor:
        numbers = sound(rank).clone()
        if rank == 1 and not getattr(given, "before", False):  # what it sends, not what it expects
            numbers[-1] += 1
            given.before = True
        return numbers

    monkeypatch.setattr(module, "_numbers", wrong)
    assert together([Trial(), Trial()])[1] is False


def test_who_is_left_alone_does_not_wait_for_ever() -> None:
    host = Trial()
    meet = Rendezvous(2, "127.0.0.1", host.open_store(0.5))
    host.begin()
    with pytest.raises(Exception, match="timeout"):
        host.run(meet, 0, 2, CPU, 0.5)


def test_a_trial_is_given_up_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Trial()
    meet = Rendezvous(3, "127.0.0.1", host.open_store(LIMIT_S))

    class Group:
        """Nothing ever comes of what it is asked for."""

        def allreduce(self, numbers: list[torch.Tensor]) -> "Group":
            threading.Timer(0.1, host.abandon).start()
            return self

        def is_completed(self) -> bool:
            return False

        def abort(self) -> None:
            aborted.append(self)

    aborted: list[Group] = []
    monkeypatch.setattr(module, "_make_group", lambda *_: Group())
    host.begin()
    with pytest.raises(InterruptedError):
        host.run(meet, 0, 2, CPU, LIMIT_S)
    assert len(aborted) == 1
    host.begin()
    host.abandon()  # before it came to anything
    with pytest.raises(InterruptedError):
        host.run(meet, 0, 2, CPU, LIMIT_S)

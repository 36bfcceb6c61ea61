"""From what Ray raises, and from silence, to what was observed; nothing is claimed that was not seen."""

import dataclasses
import socket
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo  # type: ignore[attr-defined]
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
)

from ftppo.clock import FakeClock
from ftppo.driver.detect import Watch, from_error, from_silence, nobody_at, survey
from ftppo.errors import CheckpointError, PeerLost, StaleGeneration, StorageError, WorkerError
from ftppo.plan.faults import BeaconView, ErrorView, ExitKind, Observation
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.types import Beacon

NOW_S = 5_000.0
ADVICE = "Some common causes include: (1) the process was killed by the OOM killer."


def raised(cause: Exception) -> RayError:
    """What ray.get raises for an actor's method that raised `cause`."""
    error: RayError = RayTaskError("call", "trace", cause, proctitle="actor", pid=1, ip="1.2.3.4").as_instanceof_cause()
    return error


def died(message: str = "", preempted: bool = False) -> ActorDiedError:
    reason = NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED if preempted else NodeDeathInfo.UNSPECIFIED
    context = ActorDiedErrorContext(
        error_message=message, actor_id=bytes(16), class_name="TrainActor", node_death_info=NodeDeathInfo(reason=reason)
    )
    return ActorDiedError(context)


def test_an_exception_of_the_actor_is_its_own_and_it_lives() -> None:
    cause = WorkerError(3, "update", "ValueError: bad: worse", "Traceback ...")
    assert from_error(3, "a3", raised(cause)) == Observation(
        3, "a3", process_dead=False, error=ErrorView("ValueError", "update", "bad: worse", "Traceback ...")
    )


def test_a_broken_collective_is_a_consequence() -> None:
    seen = from_error(3, "a3", raised(PeerLost(3, "update", "RuntimeError: Connection closed by peer", "trace")))
    assert seen is not None and seen.peer_lost and seen.process_dead is False
    assert seen.error == ErrorView("RuntimeError", "update", "Connection closed by peer", "trace")


@pytest.mark.parametrize("cause", [StorageError("refused"), CheckpointError("not there")], ids=repr)
def test_what_concerns_no_rank_is_no_observation(cause: Exception) -> None:
    assert from_error(0, "a0", raised(cause)) is None


def test_a_call_of_a_past_generation_is_an_observation() -> None:
    seen = from_error(0, "a0", raised(StaleGeneration(1, 2)))
    assert seen is not None and seen.error is not None
    assert (seen.error.type, seen.error.phase) == ("StaleGeneration", "idle")
    assert seen.process_dead is None


def test_what_an_actor_raised_around_its_work_keeps_its_type() -> None:
    seen = from_error(2, "a2", raised(KeyError("no_such_method")))
    assert seen is not None and seen.error is not None and not seen.peer_lost
    assert (seen.error.type, seen.error.message) == ("KeyError", "'no_such_method'")


def test_a_dead_process_is_seen_dead_with_what_ray_says_of_its_end() -> None:
    said = f"The actor is dead because its worker process has died. Worker exit detail: Killed by signal 9. {ADVICE}"
    assert from_error(1, "a1", died(said)) == Observation(
        1, "a1", process_dead=True, exit_kind=None, exit_detail="Killed by signal 9"
    )


@pytest.mark.parametrize(
    ("message", "detail"),
    [("The node was removed. It had this address.", "The node was removed"), ("", "actor_id: " + 32 * "0")],
)
def test_other_words_of_ray_are_cut_to_a_sentence(message: str, detail: str) -> None:
    seen = from_error(1, "a1", died(message))
    assert seen is not None and seen.exit_detail == detail


def test_a_preempted_node_is_told_from_a_crash() -> None:
    seen = from_error(1, "a1", died("gone", preempted=True))
    assert seen is not None and seen.process_dead and seen.exit_kind is ExitKind.PREEMPTED


def test_an_actor_out_of_reach_counts_as_dead() -> None:
    seen = from_error(1, "a1", ActorUnavailableError("RpcError", bytes(16)))
    assert seen is not None and seen.process_dead


def test_silence_is_only_silence() -> None:
    assert from_silence(4, "a4", 12.5) == Observation(4, "a4", silent_s=12.5)


class Actors:
    """Handles of actors that answer `beacon` with what is set for them: a Beacon, None, an error, or not at all."""

    def __init__(self, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.roster = Roster(0, Layout(dp=num), tuple(f"a{slot}" for slot in range(num)))
        self.answers: dict[str, Any] = {name: None for name in self.roster.slots}
        self.asked: list[str] = []
        self.handles = {name: self._handle(name) for name in self.roster.slots}
        monkeypatch.setattr(ray, "wait", self._wait)
        monkeypatch.setattr(ray, "get", self._get)

    def _handle(self, name: str) -> Any:
        class Handle:
            class beacon:
                @staticmethod
                def remote() -> str:
                    self.asked.append(name)
                    return name

        return Handle

    def _wait(self, references: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        late = [name for name in references if self.answers[name] is GetTimeoutError]
        return [name for name in references if name not in late], late

    def _get(self, reference: str, timeout: float | None = None) -> Any:
        answer = self.answers[reference]
        if answer is GetTimeoutError:
            assert timeout == 0, "nobody waits for who does not answer"
            raise GetTimeoutError
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Actors]:
    return lambda num: Actors(num, monkeypatch)


def beacon(slot: int, age_s: float) -> Beacon:
    return Beacon(0, slot, "update", step=7, micro=3, time=NOW_S - age_s)


def surveyed(found: Actors, known: list[Observation]) -> dict[int, Observation]:
    seen = survey(found.roster, found.handles, {}, known, FakeClock(NOW_S), timeout_s=1.0)
    assert len({one.slot for one in seen}) == len(seen)
    return {one.slot: one for one in seen}


def test_a_survey_hears_every_slot_and_says_what_it_did_not_hear(actors: Callable[[int], Actors]) -> None:
    found = actors(4)
    found.answers = {"a0": beacon(0, age_s=2.5), "a1": None, "a2": GetTimeoutError, "a3": died(preempted=True)}
    seen = surveyed(found, [])
    assert seen[0] == Observation(0, "a0", answered_control=True, beacon=BeaconView("update", 7, 3, 2.5))
    assert seen[1] == Observation(1, "a1", answered_control=True)
    assert seen[2] == Observation(2, "a2", answered_control=False)
    assert (seen[3].process_dead, seen[3].exit_kind) == (True, ExitKind.PREEMPTED)
    assert seen[3].answered_control is None


def test_a_survey_adds_to_what_is_known(actors: Callable[[int], Actors]) -> None:
    found = actors(2)
    known = Observation(1, "a1", process_dead=False, error=ErrorView("ValueError", "update", "bad"), silent_s=3.0)
    found.answers = {"a0": None, "a1": beacon(1, age_s=1.0)}
    seen = surveyed(found, [known])
    assert seen[1] == dataclasses.replace(known, answered_control=True, beacon=BeaconView("update", 7, 3, 1.0))


def test_who_is_ended_already_is_not_asked_and_stays_known(actors: Callable[[int], Actors]) -> None:
    found = actors(2)
    del found.handles["a1"]
    known = Observation(1, "a1", process_dead=True, exit_kind=ExitKind.FENCED)
    assert surveyed(found, [known])[1] is known
    assert found.asked == ["a0"]


def test_a_clock_that_is_ahead_does_not_make_a_beacon_of_the_future(actors: Callable[[int], Actors]) -> None:
    found = actors(1)
    found.answers = {"a0": beacon(0, age_s=-3.0)}
    view = surveyed(found, [])[0].beacon
    assert view is not None and view.age_s == 0.0


def test_a_mesh_moves_as_long_as_any_slot_that_owes_an_answer_does(actors: Callable[[int], Actors]) -> None:
    found, clock = actors(3), FakeClock(NOW_S)
    found.answers = {"a0": beacon(0, age_s=100.0), "a1": beacon(1, age_s=4.0), "a2": beacon(2, age_s=0.0)}
    watch = Watch(found.roster, found.handles, clock, hang_s=10.0)
    watch.look([0, 1])
    assert watch.moves()
    assert set(found.asked) == {"a0", "a1"}
    clock.advance(5.9)
    watch.look([0, 1])
    assert watch.moves()
    clock.advance(0.2)
    watch.look([0, 1])
    assert not watch.moves()
    found.answers["a0"] = beacon(0, age_s=-6.0)
    watch.look([0, 1])
    assert watch.moves()


def test_who_cannot_be_heard_is_given_the_time_that_may_pass(actors: Callable[[int], Actors]) -> None:
    found, clock = actors(2), FakeClock(NOW_S)
    found.answers = {"a0": GetTimeoutError, "a1": died()}
    watch = Watch(found.roster, found.handles, clock, hang_s=10.0)
    watch.look([0, 1])
    assert watch.moves()  # half of it has passed when the watch begins
    clock.advance(4.9)
    watch.look([0, 1])
    assert watch.moves()
    clock.advance(0.2)
    watch.look([0, 1])
    assert not watch.moves()


def test_who_is_silent_is_knocked_at(actors: Callable[[int], Actors]) -> None:
    found = actors(3)
    found.answers = {"a0": GetTimeoutError, "a1": GetTimeoutError, "a2": GetTimeoutError}
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        addresses = {"a0": there.getsockname(), "a1": gone.getsockname()}
        gone.close()
        seen = survey(found.roster, found.handles, addresses, [], FakeClock(NOW_S), timeout_s=1.0)
    assert [one.process_dead for one in seen] == [None, True, None]  # of a2 no address is known


def test_nobody_is_at_a_door_that_is_shut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        addresses = {"there": there.getsockname(), "gone": gone.getsockname()}
        gone.close()
        assert nobody_at(addresses, 1.0) == {"gone"}
    assert nobody_at({}, 1.0) == set()


def test_an_actor_that_ray_ended_for_want_of_memory_is_dead(actors: Callable[[int], Actors]) -> None:
    error = OutOfMemoryError("Task was killed due to the node running low on memory.\n" + "words\n" * 50)
    seen = from_error(0, "a0", error)
    assert seen is not None and (seen.process_dead, seen.exit_kind) == (True, ExitKind.OOM)
    found = actors(1)
    found.answers = {"a0": error}
    assert surveyed(found, [])[0] == seen


def test_who_answers_no_more_is_silent_whoever_else_moves(actors: Callable[[int], Actors]) -> None:
    found, clock = actors(3), FakeClock(NOW_S)
    found.answers = {"a0": beacon(0, age_s=0.0), "a1": GetTimeoutError, "a2": died()}
    watch = Watch(found.roster, found.handles, clock, hang_s=10.0)
    watch.look([0, 1, 2])
    clock.advance(4.9)
    found.answers["a1"] = beacon(1, age_s=100.0)
    watch.look([0, 1, 2])
    found.answers["a1"] = GetTimeoutError
    clock.advance(9.9)
    watch.look([0, 1, 2])
    assert watch.silent() == {}
    clock.advance(0.2)
    found.answers["a0"] = beacon(0, age_s=-15.0)
    watch.look([0, 1, 2])
    assert watch.moves() and watch.silent() == {1: pytest.approx(10.1)}
    watch.look([0])
    assert watch.silent() == {}, "it owes no answer any more"

"""Two ranks that keep each other's copies: state goes to the buddy, and comes back from it to who takes the place."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.exchange import Courier
from ftppo.checkpoint.snapshot import FROZEN, TABLE, Buffer, Flat, Tag
from ftppo.errors import CheckpointError
from ftppo.worker.memory import Memory

pytestmark = pytest.mark.timeout(30)

TIMEOUT_S = 20.0
TABLE_TEXT = b"where what lies"


class Rank:
    """A slot's state, three numbers that change and two that do not, and its memory."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.moving, self.frozen = torch.full((3,), float(slot)), torch.full((2,), 100.0 + slot)
        self.memory = Memory("token", "127.0.0.1", TIMEOUT_S)
        self.memory.attach("", slot, Flat([self.moving]), Flat([self.frozen]), TABLE_TEXT)

    def step(self, version: int) -> None:
        self.moving.fill_(state(self.slot, version))
        self.memory.take(version)


def state(slot: int, version: int) -> float:
    return 1000.0 * slot + version


def is_at(tensor: Tensor, slot: int, version: int) -> bool:
    return bool((tensor == state(slot, version)).all())


@pytest.fixture
def ranks() -> Iterator[Callable[[int], Rank]]:
    opened: list[Rank] = []

    def make(slot: int) -> Rank:
        opened.append(Rank(slot))
        return opened[-1]

    yield make
    for one in opened:
        one.memory.close()
    for thread in threading.enumerate():
        if thread.name.startswith("snapshot-"):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@pytest.fixture
def pair(ranks: Callable[[int], Rank]) -> tuple[Rank, Rank]:
    """Slots 0 and 1, buddies of each other, three steps done."""
    first, second = ranks(0), ranks(1)
    for one, other in ((first, second), (second, first)):
        one.memory.join(0, other.memory.address)
        one.memory.freeze()
    for version in (1, 2, 3):
        for one in (first, second):
            one.step(version)
    for one in (first, second):
        one.memory.settle()
    return first, second


def test_a_step_is_held_by_its_slot_and_by_the_buddy(pair: tuple[Rank, Rank]) -> None:
    for one in pair:
        assert one.memory.delivered == 3
        versions = (TABLE, FROZEN, 2, 3)
        assert one.memory.holdings.tags() == [Tag(slot, version) for slot in (0, 1) for version in versions]


def test_a_version_that_was_not_due_is_secured_once(pair: tuple[Rank, Rank]) -> None:
    first, second = pair
    first.moving.fill_(state(0, 4))
    for _ in range(2):
        first.memory.secure(4, every=3)
        assert first.memory.delivered == 4
        assert Tag(0, 4) in second.memory.holdings.tags() and Tag(0, 3) in first.memory.holdings.tags()
        first.moving.fill_(-1.0)  # a second copy of the version would show
    first.memory.restore(4, None)
    assert is_at(first.moving, 0, 4)


@pytest.mark.parametrize("version", [2, 3])
def test_a_survivor_goes_back_in_its_own_memory(version: int, pair: tuple[Rank, Rank]) -> None:
    first, _ = pair
    first.moving.fill_(-1.0)
    first.memory.restore(version, None)
    assert is_at(first.moving, 0, version)
    assert max(tag.version for tag in first.memory.holdings.tags()) == version


@pytest.mark.parametrize("version", [2, 3])
def test_a_newcomer_gets_all_state_from_the_buddy(
    version: int, pair: tuple[Rank, Rank], ranks: Callable[[int], Rank]
) -> None:
    survivor, lost = pair
    lost.memory.close()
    newcomer = ranks(1)
    newcomer.frozen.zero_()
    newcomer.memory.join(1, survivor.memory.address)
    survivor.memory.join(1, newcomer.memory.address)
    newcomer.memory.restore(version, survivor.memory.address)
    assert is_at(newcomer.moving, 1, version)
    assert newcomer.frozen.tolist() == [101.0, 101.0]
    delivered = [newcomer.memory.delivered]
    newcomer.step(version + 1)
    newcomer.memory.settle()
    delivered.append(newcomer.memory.delivered)
    assert delivered == [None, version + 1]  # what an earlier generation delivered is not known
    assert Tag(1, version + 1) in survivor.memory.holdings.tags()


def test_a_survivor_whose_models_were_built_anew_gets_back_what_never_changes_too(pair: tuple[Rank, Rank]) -> None:
    first, _ = pair
    moving, frozen = torch.zeros(3), torch.zeros(2)
    first.memory.attach("", 0, Flat([moving]), Flat([frozen]), TABLE_TEXT)
    first.memory.restore(3, None)
    assert is_at(moving, 0, 3) and frozen.tolist() == [100.0, 100.0]
    frozen.zero_()
    first.memory.restore(3, None)
    assert frozen.tolist() == [0.0, 0.0], "else it has never changed"


def test_a_version_that_is_not_there_is_a_checkpoint_error_and_changes_nothing(pair: tuple[Rank, Rank]) -> None:
    first, second = pair
    with pytest.raises(CheckpointError, match="does not hold version 9 of slot 0"):
        first.memory.restore(9, second.memory.address)
    assert is_at(first.moving, 0, 3) and Tag(0, 3) in first.memory.holdings.tags()


def test_who_was_left_behind_is_not_listened_to(pair: tuple[Rank, Rank]) -> None:
    first, second = pair
    first.memory.join(1, None)
    second.step(4)
    second.memory.settle()
    assert second.memory.delivered == 3 and Tag(1, 4) not in first.memory.holdings.tags()


def test_without_a_buddy_the_own_copy_is_all(ranks: Callable[[int], Rank]) -> None:
    alone = ranks(0)
    alone.memory.join(0, None)
    alone.memory.freeze()
    alone.step(1)
    alone.memory.settle()
    assert alone.memory.delivered is None
    alone.moving.zero_()
    alone.memory.restore(1, None)
    assert is_at(alone.moving, 0, 1)


def test_after_a_checkpoint_older_than_all_copies_snapshots_are_of_use_again(pair: tuple[Rank, Rank]) -> None:
    for version in (0, 1):
        for one in pair:
            one.step(version)
        for one in pair:
            one.memory.settle()
        for one in pair:
            assert one.memory.delivered == version
            for slot in (0, 1):
                assert max(tag.version for tag in one.memory.holdings.tags() if tag.slot == slot) == version
    pair[0].memory.restore(0, None)
    assert is_at(pair[0].moving, 0, 0)


def test_a_copy_on_its_way_is_not_written_over(pair: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    deliver, seen = Courier._deliver, list[tuple[Tag, bytes]]()

    def slowly(courier: Courier, tag: Tag, buffer: Buffer) -> None:
        time.sleep(0.002)  # steps are faster than the network
        seen.append((tag, buffer.tobytes()))
        deliver(courier, tag, buffer)

    monkeypatch.setattr(Courier, "_deliver", slowly)
    for version in range(4, 14):
        pair[0].step(version)
    pair[0].memory.settle()
    assert seen == [
        (Tag(0, version), torch.full((3,), state(0, version)).numpy().tobytes()) for version in range(4, 14)
    ]
    assert pair[0].memory.delivered == 13

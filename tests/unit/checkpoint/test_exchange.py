"""Snapshots over loopback: the right ones arrive, whole; what is of another run or another time does not."""

import socket

import pytest

from ftppo.checkpoint import exchange as module
from ftppo.checkpoint.snapshot import FROZEN, Buffer, Tag
from ftppo.errors import CheckpointError
from tests.unit.checkpoint.loopback import Loopback, content, get, take

pytestmark = [
    pytest.mark.timeout(30),  # far above what any deadline here adds up to
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]


@pytest.fixture
def flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of all that is sent changes on its way, after its checksum was taken."""
    send_all = module._send_all

    def flipped(connection: socket.socket, buffer: Buffer) -> None:
        changed = buffer.copy()
        changed[changed.nbytes // 2] ^= 1
        send_all(connection, changed)

    monkeypatch.setattr(module, "_send_all", flipped)


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 3_000_001])
def test_what_is_sent_arrives_and_can_be_fetched(num_bytes: int, loopback: Loopback) -> None:
    buddy, tag = loopback.exchange(), Tag(3, 7)
    courier = loopback.courier(buddy.address)
    sent = content(tag, num_bytes)
    courier.send(tag, sent)
    courier.settle()
    held = buddy.holdings.get(tag)
    assert held is not None and held is not sent and held.tobytes() == sent.tobytes()
    assert courier.delivered == {3: 7}
    assert get(buddy, tag) == sent.tobytes()


def test_what_never_changes_is_taken_along_and_is_no_version(loopback: Loopback) -> None:
    buddy = loopback.exchange()
    courier = loopback.courier(buddy.address)
    take(courier, Tag(0, FROZEN))
    assert buddy.holdings.tags() == [Tag(0, FROZEN)] and courier.delivered == {}
    take(courier, Tag(0, 4))
    assert courier.delivered == {0: 4}


def test_another_runs_token_is_refused(loopback: Loopback) -> None:
    buddy, tag = loopback.exchange(), Tag(0, 1)
    buddy.holdings.put(tag, content(tag))
    stranger = loopback.courier(buddy.address, token="another-run")
    take(stranger, Tag(0, 2))
    assert stranger.delivered == {} and buddy.holdings.tags() == [tag]
    with pytest.raises(CheckpointError):
        get(buddy, tag, token="another-run")
    assert get(buddy, tag) == content(tag).tobytes()


def test_an_earlier_generation_is_refused(loopback: Loopback) -> None:
    buddy, tag = loopback.exchange(generation=5), Tag(0, 1)
    early, now = loopback.courier(buddy.address, generation=4), loopback.courier(buddy.address, generation=5)
    take(early, tag)
    assert early.delivered == {} and buddy.holdings.tags() == []
    take(now, tag)
    assert now.delivered == {0: 1}
    with pytest.raises(CheckpointError, match="does not hold version 1 of slot 0"):
        get(buddy, tag, generation=4)
    buddy.generation = 6  # a connection that was good once is not good for ever
    take(now, Tag(0, 2))
    assert now.delivered == {0: 1} and buddy.holdings.tags() == [tag]


def test_a_buddy_that_has_yet_to_join_takes_the_next_generations_copies(loopback: Loopback) -> None:
    buddy = loopback.exchange(generation=-1)
    courier = loopback.courier(buddy.address, generation=0)
    take(courier, Tag(0, 1))
    assert courier.delivered == {0: 1}


def test_what_is_not_held_is_an_error_that_names_it(loopback: Loopback) -> None:
    buddy = loopback.exchange()
    buddy.holdings.put(Tag(2, 5), content(Tag(2, 5)))
    for tag in (Tag(2, 6), Tag(1, 5)):
        with pytest.raises(CheckpointError, match=f"does not hold version {tag.version} of slot {tag.slot}"):
            get(buddy, tag)


@pytest.mark.usefixtures("flip")
def test_a_bit_that_flips_on_the_way_to_a_restore_is_noticed(loopback: Loopback) -> None:
    holder, tag = loopback.exchange(), Tag(0, 1)
    holder.holdings.put(tag, content(tag))
    with pytest.raises(CheckpointError, match="version 1 of slot 0 changed on its way"):
        get(holder, tag)


@pytest.mark.usefixtures("flip")
def test_a_bit_that_flips_on_the_way_to_the_buddy_is_noticed(loopback: Loopback) -> None:
    buddy = loopback.exchange()
    courier = loopback.courier(buddy.address)
    take(courier, Tag(0, 1))
    assert courier.delivered == {} and buddy.holdings.tags() == []


def test_what_is_large_goes_in_chunks_each_with_its_own_deadline() -> None:
    class Connection:
        sent: list[bytes] = []  # noqa: RUF012

        def sendall(self, part: memoryview) -> None:
            self.sent.append(bytes(part))

    connection, buffer = Connection(), content(Tag(0, 0), 2 * module._CHUNK_BYTES + 5)
    module._send_all(connection, buffer)  # type: ignore[arg-type]
    assert [len(part) for part in connection.sent] == [module._CHUNK_BYTES, module._CHUNK_BYTES, 5]
    assert b"".join(connection.sent) == buffer.tobytes()


def test_many_couriers_at_once_do_not_mix_their_copies(loopback: Loopback) -> None:
    buddy = loopback.exchange()
    couriers = {slot: loopback.courier(buddy.address) for slot in range(6)}
    for version in range(8):
        for slot, courier in couriers.items():
            courier.send(Tag(slot, version), content(Tag(slot, version), 50_000))
    for slot, courier in couriers.items():
        courier.settle()
        assert courier.delivered == {slot: 7}
    assert buddy.holdings.tags() == [Tag(slot, version) for slot in range(6) for version in (6, 7)]
    for tag in buddy.holdings.tags():
        assert get(buddy, tag) == content(tag, 50_000).tobytes()

"""Snapshots over loopback: whole and the right ones arrive; a peer that is gone, stalled or a stranger stops nobody."""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ftppo.checkpoint import exchange as module
from ftppo.checkpoint.exchange import Address, Courier, Exchange, fetch
from ftppo.checkpoint.snapshot import FROZEN, Buffer, Holdings, Tag
from ftppo.errors import CheckpointError

pytestmark = [
    pytest.mark.timeout(30),  # far above what any deadline here adds up to
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

TOKEN = "this-run"
HOST = "127.0.0.1"
SHORT_S, LONG_S = 0.2, 600.0  # of a deadline that is to pass, and of one that must not be waited for

type OpenExchange = Callable[..., Exchange]
type OpenCourier = Callable[..., Courier]


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("snapshot-")}


def sockets() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # that of the listing itself
        if name.startswith("socket:"):
            found.add(name)
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """What close() has told to end is given a moment to."""
    before = sockets()
    yield
    until = time.monotonic() + 5.0
    while (threads() or sockets() - before) and time.monotonic() < until:
        time.sleep(0.005)
    assert not threads() and not sockets() - before


@pytest.fixture
def open_exchange() -> Iterator[OpenExchange]:
    opened: list[Exchange] = []

    def make(generation: int = 1, timeout_s: float = LONG_S) -> Exchange:
        opened.append(Exchange(Holdings(), TOKEN, HOST, timeout_s))
        opened[-1].generation = generation
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def open_courier(open_exchange: OpenExchange) -> Iterator[OpenCourier]:
    opened: list[Courier] = []

    def make(address: Address, generation: int = 1, token: str = TOKEN, timeout_s: float = LONG_S) -> Courier:
        opened.append(Courier(token, generation, address, timeout_s))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
        one.settle()


@pytest.fixture
def stalled() -> Iterator[Address]:
    """Whoever connects is let in, and neither heard nor answered."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()


@pytest.fixture
def gone() -> Address:
    """Where nobody listens any more."""
    with socket.create_server((HOST, 0)) as listener:
        address: Address = listener.getsockname()
    return address


@pytest.fixture
def flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of all that is sent changes on its way, after its checksum was taken."""
    send_all = module._send_all

    def flipped(connection: socket.socket, buffer: Buffer) -> None:
        changed = buffer.copy()
        changed[changed.nbytes // 2] ^= 1
        send_all(connection, changed)

    monkeypatch.setattr(module, "_send_all", flipped)


def content(tag: Tag, num_bytes: int = 1000) -> Buffer:
    seed = np.random.default_rng([tag.slot, tag.version + 1])
    return seed.integers(0, 256, num_bytes, dtype=np.uint8)


def get(one: Exchange, tag: Tag, generation: int = 1, token: str = TOKEN) -> Buffer:
    return fetch(token, generation, one.address, tag, LONG_S)


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 3_000_001])
def test_what_is_sent_arrives_and_can_be_fetched(
    num_bytes: int, open_exchange: OpenExchange, open_courier: OpenCourier
) -> None:
    buddy, tag = open_exchange(), Tag(3, 7)
    courier = open_courier(buddy.address)
    sent = content(tag, num_bytes)
    courier.send(tag, sent)
    courier.settle()
    held = buddy.holdings.get(tag)
    assert held is not None and held is not sent and held.tobytes() == sent.tobytes()
    assert courier.delivered == {3: 7}
    assert get(buddy, tag).tobytes() == sent.tobytes()


def test_what_never_changes_is_taken_along_and_is_no_version(
    open_exchange: OpenExchange, open_courier: OpenCourier
) -> None:
    buddy = open_exchange()
    courier = open_courier(buddy.address)
    courier.send(Tag(0, FROZEN), content(Tag(0, FROZEN)))
    courier.settle()
    assert buddy.holdings.tags() == [Tag(0, FROZEN)] and courier.delivered == {}
    courier.send(Tag(0, 4), content(Tag(0, 4)))
    courier.settle()
    assert courier.delivered == {0: 4}


def test_another_runs_token_is_refused(open_exchange: OpenExchange, open_courier: OpenCourier) -> None:
    buddy, tag = open_exchange(), Tag(0, 1)
    buddy.holdings.put(tag, content(tag))
    stranger = open_courier(buddy.address, token="another-run")
    stranger.send(Tag(0, 2), content(Tag(0, 2)))
    stranger.settle()
    assert stranger.delivered == {} and buddy.holdings.tags() == [tag]
    with pytest.raises(CheckpointError):
        get(buddy, tag, token="another-run")
    assert get(buddy, tag).tobytes() == content(tag).tobytes()


def test_an_earlier_generation_is_refused(open_exchange: OpenExchange, open_courier: OpenCourier) -> None:
    buddy, tag = open_exchange(generation=5), Tag(0, 1)
    early, now = open_courier(buddy.address, generation=4), open_courier(buddy.address, generation=5)
    early.send(tag, content(tag))
    early.settle()
    assert early.delivered == {} and buddy.holdings.tags() == []
    now.send(tag, content(tag))
    now.settle()
    assert now.delivered == {0: 1}
    with pytest.raises(CheckpointError, match="does not hold version 1 of slot 0"):
        get(buddy, tag, generation=4)
    buddy.generation = 6  # a connection that was good once is not good for ever
    now.send(Tag(0, 2), content(Tag(0, 2)))
    now.settle()
    assert now.delivered == {0: 1} and buddy.holdings.tags() == [tag]


def test_a_buddy_that_has_yet_to_join_takes_the_next_generations_copies(
    open_exchange: OpenExchange, open_courier: OpenCourier
) -> None:
    buddy = open_exchange(generation=-1)
    courier = open_courier(buddy.address, generation=0)
    courier.send(Tag(0, 1), content(Tag(0, 1)))
    courier.settle()
    assert courier.delivered == {0: 1}


def test_what_is_not_held_is_an_error_that_names_it(open_exchange: OpenExchange) -> None:
    buddy = open_exchange()
    buddy.holdings.put(Tag(2, 5), content(Tag(2, 5)))
    for tag in (Tag(2, 6), Tag(1, 5)):
        with pytest.raises(CheckpointError, match=f"does not hold version {tag.version} of slot {tag.slot}"):
            get(buddy, tag)


@pytest.mark.usefixtures("flip")
def test_a_bit_that_flips_on_the_way_to_a_restore_is_noticed(open_exchange: OpenExchange) -> None:
    holder, tag = open_exchange(), Tag(0, 1)
    holder.holdings.put(tag, content(tag))
    with pytest.raises(CheckpointError, match="version 1 of slot 0 changed on its way"):
        get(holder, tag)


@pytest.mark.usefixtures("flip")
def test_a_bit_that_flips_on_the_way_to_the_buddy_is_noticed(
    open_exchange: OpenExchange, open_courier: OpenCourier
) -> None:
    buddy = open_exchange()
    courier = open_courier(buddy.address)
    courier.send(Tag(0, 1), content(Tag(0, 1)))
    courier.settle()
    assert courier.delivered == {} and buddy.holdings.tags() == []


def test_a_buddy_that_is_gone_blocks_nobody(gone: Address, open_courier: OpenCourier) -> None:
    courier = open_courier(gone)
    for version in range(3):
        courier.send(Tag(0, version), content(Tag(0, version)))
        courier.settle()
    assert courier.delivered == {}
    with pytest.raises(CheckpointError, match=f"{gone[1]} did not hand over version 1 of slot 0"):
        fetch(TOKEN, 1, gone, Tag(0, 1), LONG_S)


def test_a_buddy_that_ends_between_two_steps_blocks_nobody(
    open_exchange: OpenExchange, open_courier: OpenCourier
) -> None:
    buddy = open_exchange()
    courier = open_courier(buddy.address)
    for version in range(4):
        courier.send(Tag(0, version), content(Tag(0, version)))
        courier.settle()
        if version == 1:
            buddy.close()
    assert courier.delivered == {0: 1}


def test_after_a_break_the_courier_connects_again(open_exchange: OpenExchange, open_courier: OpenCourier) -> None:
    buddy = open_exchange()
    courier = open_courier(buddy.address)
    courier.send(Tag(0, 1), content(Tag(0, 1)))
    courier.settle()
    for connection in list(buddy._peers.values()):
        connection.shutdown(socket.SHUT_RDWR)
    for version in (2, 3):  # the first may be lost in finding out
        courier.send(Tag(0, version), content(Tag(0, version)))
        courier.settle()
    assert courier.delivered == {0: 3}


@pytest.mark.parametrize("num_bytes", [10, 30_000_000], ids=["no answer", "not taken"])
def test_a_stalled_buddy_costs_a_deadline_and_no_more(
    num_bytes: int, stalled: Address, open_courier: OpenCourier
) -> None:
    courier = open_courier(stalled, timeout_s=SHORT_S)
    courier.send(Tag(0, 1), np.zeros(num_bytes, dtype=np.uint8))
    courier.settle()
    assert courier.delivered == {}


def test_a_stalled_holder_is_a_checkpoint_error(stalled: Address) -> None:
    with pytest.raises(CheckpointError, match="did not hand over version 1 of slot 0"):
        fetch(TOKEN, 1, stalled, Tag(0, 1), SHORT_S)


def test_a_peer_that_stalls_within_a_message_is_given_up(open_exchange: OpenExchange) -> None:
    buddy = open_exchange(timeout_s=SHORT_S)
    with socket.create_connection(buddy.address, timeout=LONG_S) as peer:
        about = {"op": "put", "token": TOKEN, "generation": 1, "bytes": 100, "slot": 0, "version": 1, "crc32": 0}
        peer.sendall(message(json.dumps(about).encode()) + bytes(60))
        assert peer.recv(1) == b""
    assert buddy.holdings.tags() == []


def test_what_is_large_goes_in_chunks_each_with_its_own_deadline() -> None:
    class Connection:
        sent: list[bytes] = []  # noqa: RUF012

        def sendall(self, part: memoryview) -> None:
            self.sent.append(bytes(part))

    connection, buffer = Connection(), content(Tag(0, 0), 2 * module._CHUNK_BYTES + 5)
    module._send_all(connection, buffer)  # type: ignore[arg-type]
    assert [len(part) for part in connection.sent] == [module._CHUNK_BYTES, module._CHUNK_BYTES, 5]
    assert b"".join(connection.sent) == buffer.tobytes()


def test_many_couriers_at_once_do_not_mix_their_copies(open_exchange: OpenExchange, open_courier: OpenCourier) -> None:
    buddy = open_exchange()
    couriers = {slot: open_courier(buddy.address) for slot in range(6)}
    for version in range(8):
        for slot, courier in couriers.items():
            courier.send(Tag(slot, version), content(Tag(slot, version), 50_000))
    for slot, courier in couriers.items():
        courier.settle()
        assert courier.delivered == {slot: 7}
    assert buddy.holdings.tags() == [Tag(slot, version) for slot in range(6) for version in (6, 7)]
    for tag in buddy.holdings.tags():
        assert get(buddy, tag).tobytes() == content(tag, 50_000).tobytes()


def message(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", message(b"no json"), message(b"\xff\xfe"), message(b"[1]"), message(b"{}")],
    ids=["http", "text", "bytes", "list", "nothing"],
)
def test_a_stranger_is_hung_up_on_and_harms_nobody(said: bytes, open_exchange: OpenExchange) -> None:
    holder, tag = open_exchange(), Tag(0, 1)
    holder.holdings.put(tag, content(tag))
    with socket.create_connection(holder.address, timeout=LONG_S) as stranger:
        stranger.sendall(said)
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            pass  # some of what was said had not been read
    assert get(holder, tag).tobytes() == content(tag).tobytes()


def test_closing_a_courier_breaks_off_what_is_on_its_way_and_drops_the_rest(
    stalled: Address, open_courier: OpenCourier
) -> None:
    courier = open_courier(stalled)  # its deadline is not waited for
    for version in range(3):
        courier.send(Tag(0, version), content(Tag(0, version)))
    while courier._connection is None:
        time.sleep(0.001)
    courier.close()
    courier.settle()
    assert courier.delivered == {}


def test_closing_an_exchange_hangs_up_on_silent_peers(open_exchange: OpenExchange, open_courier: OpenCourier) -> None:
    holder = open_exchange()
    courier = open_courier(holder.address)
    courier.send(Tag(0, 1), content(Tag(0, 1)))
    courier.settle()
    with socket.create_connection(holder.address, timeout=LONG_S) as silent:
        get(holder, Tag(0, 1))  # let in after the silent one
        holder.close()
        assert silent.recv(1) == b""
        assert {one.name for one in threads()} == {"snapshot-courier"}
    holder.close()  # again does nothing

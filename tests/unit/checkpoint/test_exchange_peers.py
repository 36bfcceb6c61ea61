"""A peer that is gone, stalled or a stranger stops nobody, and closing leaves nothing behind."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ftppo.checkpoint.exchange import fetch
from ftppo.checkpoint.snapshot import Tag
from ftppo.errors import CheckpointError
from tests.unit.checkpoint.loopback import (
    HOST,
    LONG_S,
    SHORT_S,
    TOKEN,
    Loopback,
    closed_port,
    content,
    get,
    take,
    threads,
)

pytestmark = [
    pytest.mark.timeout(30),  # far above what any deadline here adds up to
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]


@pytest.fixture
def stalled() -> Iterator[socket.socket]:
    """Whoever connects is let in, and neither heard nor answered."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener


def test_a_buddy_that_is_gone_blocks_nobody(loopback: Loopback) -> None:
    gone = closed_port()
    courier = loopback.courier(gone)
    for version in range(3):
        take(courier, Tag(0, version))
    assert courier.delivered == {}
    with pytest.raises(CheckpointError, match=f"{gone[1]} did not hand over version 1 of slot 0"):
        fetch(TOKEN, 1, gone, Tag(0, 1), LONG_S)


def test_a_buddy_that_ends_between_two_steps_blocks_nobody(loopback: Loopback) -> None:
    buddy = loopback.exchange()
    courier = loopback.courier(buddy.address)
    for version in range(4):
        take(courier, Tag(0, version))
        if version == 1:
            buddy.close()
    assert courier.delivered == {0: 1}


def test_after_a_break_the_courier_connects_again(loopback: Loopback) -> None:
    buddy = loopback.exchange()
    courier = loopback.courier(buddy.address)
    take(courier, Tag(0, 1))
    for connection in list(buddy._peers.values()):
        connection.shutdown(socket.SHUT_RDWR)
    for version in (2, 3):  # the first may be lost in finding out
        take(courier, Tag(0, version))
    assert courier.delivered == {0: 3}


@pytest.mark.parametrize("num_bytes", [10, 30_000_000], ids=["no answer", "not taken"])
def test_a_stalled_buddy_costs_a_deadline_and_no_more(
    num_bytes: int, stalled: socket.socket, loopback: Loopback
) -> None:
    courier = loopback.courier(stalled.getsockname(), timeout_s=SHORT_S)
    courier.send(Tag(0, 1), np.zeros(num_bytes, dtype=np.uint8))
    courier.settle()
    assert courier.delivered == {}


def test_a_stalled_holder_is_a_checkpoint_error(stalled: socket.socket) -> None:
    with pytest.raises(CheckpointError, match="did not hand over version 1 of slot 0"):
        fetch(TOKEN, 1, stalled.getsockname(), Tag(0, 1), SHORT_S)


def test_a_peer_that_stalls_within_a_message_is_given_up(loopback: Loopback) -> None:
    buddy = loopback.exchange(timeout_s=SHORT_S)
    with socket.create_connection(buddy.address, timeout=LONG_S) as peer:
        about = (
            {
                "op": "put",
                "token": TOKEN,
                "generation": 1,
                "bytes": 100,
            }
            | vars(Tag(0, 1))
            | {"crc32": 0}
        )
        peer.sendall(message(json.dumps(about).encode()) + bytes(60))
        assert peer.recv(1) == b""
    assert buddy.holdings.tags() == []


def message(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", message(b"no json"), message(b"\xff\xfe"), message(b"[1]"), message(b"{}")],
    ids=["http", "text", "bytes", "list", "nothing"],
)
def test_a_stranger_is_hung_up_on_and_harms_nobody(said: bytes, loopback: Loopback) -> None:
    holder, tag = loopback.exchange(), Tag(0, 1)
    holder.holdings.put(tag, content(tag))
    with socket.create_connection(holder.address, timeout=LONG_S) as stranger:
        stranger.sendall(said)
        with contextlib.suppress(ConnectionResetError):  # some of what was said had not been read
            assert stranger.recv(1) == b""
    assert get(holder, tag) == content(tag).tobytes()


def test_closing_a_courier_breaks_off_what_is_on_its_way_and_drops_the_rest(
    stalled: socket.socket, loopback: Loopback
) -> None:
    courier = loopback.courier(stalled.getsockname())  # its deadline is not waited for
    for version in range(3):
        courier.send(Tag(0, version), content(Tag(0, version)))
    while courier._connection is None:
        time.sleep(0.001)
    courier.close()
    courier.settle()
    assert courier.delivered == {}
    stalled.setblocking(False)
    stalled.accept()[0].close()
    with pytest.raises(BlockingIOError):
        stalled.accept()  # for what waited nobody has connected


def test_closing_an_exchange_hangs_up_on_silent_peers(loopback: Loopback) -> None:
    holder = loopback.exchange()
    courier = loopback.courier(holder.address)
    take(courier, Tag(0, 1))
    with socket.create_connection(holder.address, timeout=LONG_S) as silent:
        get(holder, Tag(0, 1))  # let in after the silent one
        holder.close()
        assert silent.recv(1) == b""
        assert threads() == {"snapshot-courier"}
    holder.close()  # again does nothing

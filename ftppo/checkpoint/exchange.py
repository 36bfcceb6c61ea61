"""Snapshots on their way between actors, over plain TCP and outside any process group. Comes in: tags and buffers.

A message is a length, a JSON header of that length, and the bytes that the header announces. Every message names the
run's token and the sender's generation; a server refuses what is of another run or of an earlier generation.
"""

import contextlib
import json
import queue
import socket
import struct
import threading
from typing import Any

import numpy as np

from ftppo.checkpoint.shared import SharedBuffer, find
from ftppo.checkpoint.snapshot import Buffer, Holdings, Tag
from ftppo.errors import CheckpointError
from ftppo.storage.crc import crc32

Address = tuple[str, int]

_LENGTH = struct.Struct("!I")
_TIMEVAL = struct.Struct("@ll")  # the kernel's: seconds, microseconds
_MAX_HEADER = 4096  # bytes
_CHUNK_BYTES = 16 * 2**20
_ACCEPT_AGAIN_S = 0.1


class Exchange:
    """The server of one actor's holdings."""

    def __init__(self, holdings: Holdings, token: str, host: str, timeout_s: float) -> None:
        self.holdings, self.token, self.timeout_s = holdings, token, timeout_s
        self.generation = -1
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.address: Address = (host, self._listener.getsockname()[1])
        self._closed = threading.Event()
        self._peers: dict[threading.Thread, socket.socket] = {}
        self._acceptor = threading.Thread(target=self._accept, name="snapshot-server", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening and hang up on all peers. Leaves no thread and no socket."""
        self._closed.set()
        _shut_down(self._listener)
        self._acceptor.join(self.timeout_s)
        self._listener.close()
        for thread, connection in list(self._peers.items()):
            _shut_down(connection)
            thread.join(self.timeout_s)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed; or the peer gave up, or no descriptor is left, and the next one may get in
                if self._closed.wait(_ACCEPT_AGAIN_S):
                    return
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="snapshot-peer", daemon=True)
            self._peers[thread] = connection
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one peer until it hangs up, or is found not to be one of ours."""
        try:
            with contextlib.suppress(OSError, CheckpointError), connection:
                while True:
                    _limit(connection, None)  # a peer may be silent between steps
                    header = _receive_header(connection)
                    _limit(connection, self.timeout_s)
                    self._answer(connection, header)
        finally:
            del self._peers[threading.current_thread()]

    def _answer(self, connection: socket.socket, header: dict[str, Any]) -> None:
        if header.get("token") != self.token:
            raise CheckpointError("a snapshot of another run")
        tag = Tag(int(header["slot"]), int(header["version"]), str(header["layout"]))
        if header["op"] == "share":
            found = find(header["place"], int(header["bytes"]), int(header["crc32"]))
            good = found is not None and not self._is_stale(header)
            if found is not None and good:
                self.holdings.put(tag, found)
            _send_header(connection, {"ok": good, "mapped": found is not None})
            return
        if header["op"] == "put":
            buffer = self.holdings.blank(int(header["bytes"]))
            _receive_into(connection, memoryview(buffer))
            good = not self._is_stale(header) and crc32(buffer) == header["crc32"]
            if good:
                self.holdings.put(tag, buffer)
            _send_header(connection, {"ok": good})
            return
        held = self.holdings.get(tag) if not self._is_stale(header) else None
        if held is not None and "start" in header:
            held = held[int(header["start"]) : int(header["start"]) + int(header["length"])]
        answer = {"bytes": held.nbytes, "crc32": crc32(held)} if held is not None else {"bytes": -1}
        if held is not None and self.holdings.get(tag) is None:  # its owner has filled it anew meanwhile
            held, answer = None, {"bytes": -1}
        _send_header(connection, answer)
        if held is not None:
            _send_all(connection, held)

    def _is_stale(self, header: dict[str, Any]) -> bool:
        return int(header["generation"]) < self.generation


class Courier:
    """Takes an actor's snapshots to its buddy, on a thread of its own: one on its way at a time.

    What cannot be delivered is dropped: a buddy that is gone is a fault that others notice.
    """

    def __init__(self, token: str, generation: int, address: Address, timeout_s: float) -> None:
        self._token, self._generation, self._address, self._timeout_s = token, generation, address, timeout_s
        self._orders: queue.Queue[tuple[Tag, Buffer] | None] = queue.Queue()
        self._connection: socket.socket | None = None
        self._closed = threading.Event()
        self._maps = True  # whether the buddy could map what it was told of
        self.delivered: dict[int, int] = {}  # slot -> newest version that the buddy holds
        threading.Thread(target=self._work, name="snapshot-courier", daemon=True).start()

    def send(self, tag: Tag, buffer: Buffer) -> None:
        """Have `buffer` taken to the buddy; it must stay as it is until `settle` returns."""
        assert not self._closed.is_set(), "nobody is left to take it"
        self._orders.put((tag, buffer))

    def settle(self) -> None:
        """Wait until nothing is on its way. A delivery that does not move for `timeout_s` is given up."""
        self._orders.join()

    def close(self) -> None:
        """Break off what is on its way and drop what waits. After a `settle` no thread and no socket is left.

        Does not wait itself: a connection to a machine that is gone may take until its deadline to fail.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._orders.put(None)
        if (connection := self._connection) is not None:
            _shut_down(connection)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                if not self._closed.is_set():
                    self._deliver(*order)
            except (OSError, CheckpointError):
                self._hang_up()
            finally:
                self._orders.task_done()
        self._hang_up()
        self._orders.task_done()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _deliver(self, tag: Tag, buffer: Buffer) -> None:
        if self._connection is None:
            self._connection = _connect(self._address, self._timeout_s)
        if self._closed.is_set():  # meanwhile: who closed did not see this connection
            return
        header = {"token": self._token, "generation": self._generation, "bytes": buffer.nbytes, "crc32": crc32(buffer)}
        answer = self._hand_over(self._connection, header | vars(tag), buffer)
        if answer["ok"] and tag.moves:
            self.delivered[tag.slot] = tag.version

    def _hand_over(self, connection: socket.socket, header: dict[str, Any], buffer: Buffer) -> dict[str, Any]:
        """Tell a buddy on this machine where the buffer is; one that cannot map it, or is elsewhere, gets the bytes."""
        if isinstance(buffer, SharedBuffer) and self._maps and _is_near(connection):
            _send_header(connection, header | {"op": "share", "place": buffer.place})
            answer = _receive_header(connection)
            self._maps = bool(answer["mapped"])
            if self._maps:
                return answer
        _send_header(connection, header | {"op": "put"})
        _send_all(connection, buffer)
        return _receive_header(connection)


def fetch(
    token: str, generation: int, address: Address, tag: Tag, timeout_s: float, part: tuple[int, int] | None = None
) -> Buffer:
    """The copy under `tag` that the actor at `address` holds, or the `part` (start, length) of its bytes.

    Raises CheckpointError where it does not come, or not whole.
    """
    what, where = f"version {tag.version} of slot {tag.slot}", f"{address[0]}:{address[1]}"
    header = {"op": "get", "token": token, "generation": generation} | vars(tag)
    if part is not None:
        header |= {"start": part[0], "length": part[1]}
    try:
        with _connect(address, timeout_s) as connection:
            _send_header(connection, header)
            answer = _receive_header(connection)
            if answer["bytes"] < 0:
                raise CheckpointError(f"{where} does not hold {what}")
            buffer = np.empty(answer["bytes"], dtype=np.uint8)
            _receive_into(connection, memoryview(buffer))
    except OSError as error:
        raise CheckpointError(f"{where} did not hand over {what}: {error}") from error
    if crc32(buffer) != answer["crc32"]:
        raise CheckpointError(f"{what} changed on its way from {where}")
    return buffer


def _is_near(connection: socket.socket) -> bool:
    """Whether the peer is on this machine, as far as addresses tell."""
    return bool(connection.getsockname()[0] == connection.getpeername()[0])


def _connect(address: Address, timeout_s: float) -> socket.socket:
    connection = socket.create_connection(address, timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _limit(connection, timeout_s)
    return connection


def _limit(connection: socket.socket, timeout_s: float | None) -> None:
    """Let no call on `connection` take longer: it fails then, with an OSError."""
    # The kernel keeps the time: with Python's own timeout each piece that arrives would wake the thread, and with it
    # take the interpreter from the training.
    connection.settimeout(None)
    limit = _TIMEVAL.pack(*divmod(int((timeout_s or 0) * 1e6), 10**6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _shut_down(connection: socket.socket) -> None:
    """Wake whoever waits on it, in whatever thread; the socket stays theirs to close."""
    with contextlib.suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)


def _send_all(connection: socket.socket, buffer: Buffer) -> None:
    # In chunks, as the limit is that of one call as a whole: what is large is not late.
    view = memoryview(buffer)
    for start in range(0, len(view), _CHUNK_BYTES):
        connection.sendall(view[start : start + _CHUNK_BYTES])


def _send_header(connection: socket.socket, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)


def _receive_header(connection: socket.socket) -> dict[str, Any]:
    length = bytearray(_LENGTH.size)
    _receive_into(connection, memoryview(length))
    (size,) = _LENGTH.unpack(length)
    if size > _MAX_HEADER:
        raise CheckpointError(f"a header of {size} bytes is none of ours")
    text = bytearray(size)
    _receive_into(connection, memoryview(text))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CheckpointError("a header that is no JSON is none of ours") from error
    if not isinstance(found, dict):
        raise CheckpointError("a header without fields is none of ours")
    return found


def _receive_into(connection: socket.socket, view: memoryview) -> None:
    while view:
        received = connection.recv_into(view[:_CHUNK_BYTES], 0, socket.MSG_WAITALL)
        if received == 0:
            raise ConnectionError("the peer hung up")
        view = view[received:]

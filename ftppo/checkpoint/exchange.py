"""Snapshots on their way between actors, over plain TCP and outside any process group. Comes in: tags and buffers.

A message is a length, a JSON header of that length, and the bytes that the header announces. Every message names the
run's token and the sender's generation; a server refuses what is of another run or of an earlier generation.
"""

import json
import queue
import socket
import socketserver
import struct
import threading
import zlib
from typing import Any

import numpy as np

from ftppo.checkpoint.snapshot import FROZEN, Buffer, Holdings, Tag
from ftppo.errors import CheckpointError

Address = tuple[str, int]

_LENGTH = struct.Struct("!I")
_MAX_HEADER = 4096  # bytes


class Exchange:
    """The server of one actor's holdings."""

    def __init__(self, holdings: Holdings, token: str, host: str, timeout_s: float) -> None:
        self.holdings, self.token, self.timeout_s = holdings, token, timeout_s
        self.generation = -1
        exchange = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                exchange.serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("0.0.0.0", 0), Handler)
        self.address: Address = (host, self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="snapshot-server", daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        """Answer one peer until it hangs up."""
        connection.settimeout(None)  # a peer may be silent between steps
        while True:
            try:
                header = _receive_header(connection)
                connection.settimeout(self.timeout_s)
                self._answer(connection, header)
                connection.settimeout(None)
            except (OSError, CheckpointError):
                return

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, connection: socket.socket, header: dict[str, Any]) -> None:
        tag = Tag(int(header["slot"]), int(header["version"]))
        if header["token"] != self.token:
            raise CheckpointError("a snapshot of another run")
        if header["op"] == "put":
            buffer = self.holdings.blank(int(header["bytes"]))
            _receive_into(connection, memoryview(buffer))
            stale = int(header["generation"]) < self.generation
            if not stale:
                self.holdings.put(tag, buffer)
            _send_header(connection, {"ok": not stale})
            return
        held = self.holdings.get(tag)
        found = {"bytes": held.nbytes, "crc32": zlib.crc32(held)} if held is not None else {"bytes": -1, "crc32": 0}
        _send_header(connection, found)
        if held is not None:
            connection.sendall(memoryview(held))


class Courier:
    """Takes an actor's snapshots to its buddy, on a thread of its own: one on its way at a time.

    What cannot be delivered is dropped: a buddy that is gone is a fault that others notice.
    """

    def __init__(self, token: str, generation: int, address: Address, timeout_s: float) -> None:
        self._token, self._generation, self._address, self._timeout_s = token, generation, address, timeout_s
        self._orders: queue.Queue[tuple[Tag, Buffer] | None] = queue.Queue()
        self._connection: socket.socket | None = None
        self.delivered: dict[int, int] = {}  # slot -> newest version that the buddy holds
        threading.Thread(target=self._work, name="snapshot-courier", daemon=True).start()

    def send(self, tag: Tag, buffer: Buffer) -> None:
        """Have `buffer` taken to the buddy; it must stay as it is until `settle` returns."""
        self._orders.put((tag, buffer))

    def settle(self) -> None:
        """Wait until nothing is on its way. Every delivery has its own deadline."""
        self._orders.join()

    def close(self) -> None:
        """Stop after what is on its way."""
        self._orders.put(None)
        if self._connection is not None:
            self._connection.close()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._deliver(*order)
            except (OSError, CheckpointError):
                self._connection = None
            finally:
                self._orders.task_done()
        self._orders.task_done()

    def _deliver(self, tag: Tag, buffer: Buffer) -> None:
        if self._connection is None:
            self._connection = _connect(self._address, self._timeout_s)
        header = {"op": "put", "token": self._token, "generation": self._generation, "bytes": buffer.nbytes}
        _send_header(self._connection, header | {"slot": tag.slot, "version": tag.version})
        self._connection.sendall(memoryview(buffer))
        if _receive_header(self._connection)["ok"] and tag.version != FROZEN:
            self.delivered[tag.slot] = tag.version


def fetch(token: str, generation: int, address: Address, tag: Tag, timeout_s: float) -> Buffer:
    """The copy under `tag` that the actor at `address` holds. Raises CheckpointError where it holds no whole one."""
    with _connect(address, timeout_s) as connection:
        header = {"op": "get", "token": token, "generation": generation, "slot": tag.slot, "version": tag.version}
        _send_header(connection, header)
        answer = _receive_header(connection)
        if answer["bytes"] < 0:
            raise CheckpointError(f"{address[0]}:{address[1]} does not hold version {tag.version} of slot {tag.slot}")
        buffer = np.empty(answer["bytes"], dtype=np.uint8)
        _receive_into(connection, memoryview(buffer))
    if zlib.crc32(buffer) != answer["crc32"]:
        raise CheckpointError(f"version {tag.version} of slot {tag.slot} changed on its way from {address[0]}")
    return buffer


def _connect(address: Address, timeout_s: float) -> socket.socket:
    connection = socket.create_connection(address, timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


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
    found: dict[str, Any] = json.loads(text)
    return found


def _receive_into(connection: socket.socket, view: memoryview) -> None:
    while view:
        received = connection.recv_into(view)
        if received == 0:
            raise ConnectionError("the peer hung up")
        view = view[received:]

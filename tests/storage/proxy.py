"""An HTTP proxy in front of a store's server that fails as it is told. Comes in: Faults; goes out: what it was asked.

The Host header passes unchanged, because signatures depend on it.
"""

import re
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


@dataclass
class Fault:
    """What to do to the next `times` requests whose method and path (with query) match.

    status: answer with `status` and `body` without asking the server. reset: cut the connection after `after_bytes` of
    the request's body. lose: let the server do it and cut the connection instead of answering. truncate: send
    `after_bytes` of the answer's body and close. stall: do nothing until the proxy closes. flip: change one bit in the
    middle of the request's body.
    """

    kind: Literal["status", "reset", "lose", "truncate", "stall", "flip"]
    method: str = ".*"
    path: str = ""  # a regular expression to be found in it
    times: int = 1
    status: int = 503
    body: str = ""
    after_bytes: int = 0

    def matches(self, method: str, path: str) -> bool:
        return bool(self.times and re.fullmatch(self.method, method) and re.search(self.path, path))


@dataclass(frozen=True)
class Seen:
    """A request that came, whatever became of it."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class FaultProxy:
    """Listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fault proxy")

    def add(self, *faults: Fault) -> None:
        self.faults += faults

    def count(self, method: str, path: str) -> int:
        """How many requests came whose method and path match."""
        return sum(bool(re.fullmatch(method, seen.method) and re.search(path, seen.path)) for seen in self.seen)

    def take(self, method: str, path: str) -> Fault | None:
        """The fault that is due, counted down."""
        with self._lock:
            for fault in self.faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
        return None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _serve(self) -> None:
        fault = self.proxy.take(self.command, self.path)
        if fault and fault.kind == "reset":
            chunked = "Content-Length" not in self.headers and "Transfer-Encoding" in self.headers
            there = fault.after_bytes if chunked else int(self.headers.get("Content-Length", 0))
            self.rfile.read(min(fault.after_bytes, there))  # more would never come
            self.proxy.seen.append(Seen(self.command, self.path, dict(self.headers), b""))
            return self._cut()
        body = self._body()
        self.proxy.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if fault and fault.kind == "stall":
            self.proxy.closing.wait(60)
            return self._cut()
        if fault and fault.kind == "status":
            return self._answer(fault.status, [("Content-Type", "application/xml")], fault.body.encode())
        if fault and fault.kind == "flip":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        answer, content = self._ask(body)
        if fault and fault.kind == "lose":
            return self._cut()
        limit = fault.after_bytes if fault and fault.kind == "truncate" else None
        self._answer(answer.status, answer.getheaders(), content, limit)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _ask(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        upstream = HTTPConnection(self.proxy.upstream.hostname or "", self.proxy.upstream.port, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            return answer, answer.read()
        finally:
            upstream.close()

    def _answer(
        self, status: int, headers: Iterable[tuple[str, str]], content: bytes, limit: int | None = None
    ) -> None:
        self.send_response_only(status)
        length = len(content)
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = int(value)
            elif name.lower() not in _HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content[:limit])
        if limit is not None:
            self.close_connection = True

    def _cut(self) -> None:
        """Reset the connection: the client sees no orderly end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def finish(self) -> None:
        self.rfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: `seen` is the log."""

"""An S3 server that keeps nothing: what a writer spends against it is the writer's own. Goes out: its address.

It takes objects whole and in parts, and answers what boto3 needs to go on; nothing can be read back.
"""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 2**20
_STARTED = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
_COMPLETED = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


class Sink:
    """Listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="sink", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(_STARTED if re.search(r"[?&]uploads", self.path) else _COMPLETED)

    def do_DELETE(self) -> None:
        self._answer(b"")

    def _answer(self, content: bytes) -> None:
        left, buffer = int(self.headers.get("Content-Length", 0)), memoryview(bytearray(_CHUNK_BYTES))
        while left:
            count = self.rfile.readinto(buffer[: min(left, _CHUNK_BYTES)])  # type: ignore[attr-defined]
            if not count:
                return
            left -= count
        self.send_response_only(200)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

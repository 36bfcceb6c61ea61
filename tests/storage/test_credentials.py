"""Credentials that run out in the middle of a save: others are found and the part is sent again, no item is."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import IO

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ftppo.checkpoint.index import ShardRecord
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.shards import write_shards
from ftppo.errors import ConfigError, CredentialsExpired, PermissionDenied, RetriesExhausted
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import preflight
from tests.storage.conftest import PART_BYTES
from tests.storage.faulty import COMPLETE, num_parts_sent, part
from tests.storage.proxy import Fault, FaultProxy

EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
ANSWERS = {"s3": [(400, EXPIRED), (403, EXPIRED)], "gcs": [(401, '{"error": {"code": 401}}')]}
CASES = [(kind, *answer) for kind, answers in ANSWERS.items() for answer in answers]

type Rotate = Callable[[str], None]


@pytest.fixture
def rotate(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> Rotate:
    """rotate(name): from now on who looks for credentials finds these, whose name is in every request."""
    request.getfixturevalue(f"{kind}_endpoint")  # sets the environment in its own way
    if kind == "s3":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        path = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
        rest = "aws_secret_access_key=s\naws_session_token=t\n"

        def write_keys(name: str) -> None:
            path.write_text(f"[default]\naws_access_key_id={name}\n{rest}")

        return write_keys
    pem = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = {"type": "service_account", "project_id": "p", "client_email": "a@b", "private_key": pem.decode()}
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account | {"token_uri": request.getfixturevalue("token_url")}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return lambda name: tokens.__setitem__(slice(None), [name])


@pytest.fixture
def tokens() -> list[str]:
    """What the server of tokens gives; nothing: it refuses."""
    return []


@pytest.fixture
def token_url(tokens: list[str]) -> Iterator[str]:
    """A server of tokens, as Google's."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = {"access_token": tokens[0], "expires_in": 3600} if tokens else {"error": "invalid_grant"}
            data = json.dumps(answer).encode()
            self.send_response(200 if tokens else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), name="tokens")
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def opened(rotate: Rotate, request: pytest.FixtureRequest) -> ObjectStore:
    """A store that has worked with credentials called "first"."""
    rotate("first")
    store: ObjectStore = request.getfixturevalue("raw")
    store.put("before", b"1")
    return store


@pytest.fixture
def num_serialised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An element for each item that was serialised."""
    save, seen = torch.save, list[int]()

    def counted(tensor: torch.Tensor, stream: IO[bytes]) -> None:
        seen.append(tensor.numel())
        save(tensor, stream)

    monkeypatch.setattr(torch, "save", counted)
    return seen


def write(store: ObjectStore, retrier: Retrier) -> ShardRecord:
    """Three items in several parts."""
    pieces = [Piece(f"w{number}", (200,), (0,), torch.arange(200.0) + number) for number in range(3)]
    return write_shards(pieces, store, "a", 0, retrier, PART_BYTES, ring_buffers=2)


def names_in(proxy: FaultProxy) -> list[bool]:
    """Of each request, in order: whether it came with credentials called "second"."""
    sent = [seen.headers["authorization"] for seen in proxy.seen]
    assert all(("first" in value) != ("second" in value) for value in sent)
    return ["second" in value for value in sent]


@pytest.mark.parametrize(("kind", "status", "body"), CASES)
def test_others_are_found_and_the_part_is_sent_again(
    kind: str, status: int, body: str, opened: ObjectStore, proxy: FaultProxy, rotate: Rotate, retrier: Retrier,
    num_serialised: list[int],
) -> None:  # fmt: skip
    proxy.add(part(kind, 2, Fault("status", status=status, body=body)))
    rotate("second")
    record = write(opened, retrier)
    [stored] = record.objects
    parts = -(-stored.size // PART_BYTES)
    assert parts > 3 and record.retries == 1 and num_parts_sent(kind, proxy) == parts + 1
    assert num_serialised == [200] * 3
    seconds = names_in(proxy)
    assert not seconds[0] and seconds[-1] and 0 < sum(seconds) < len(seconds)
    data = opened.get(f"a/{stored.name}")
    again = [torch.load(BytesIO(data[item.start : item.start + item.length])) for item in record.items]
    assert all(torch.equal(tensor, torch.arange(200.0) + number) for number, tensor in enumerate(again))


@pytest.mark.parametrize(("kind", "status", "body"), CASES)
def test_where_they_stay_expired_the_save_ends_in_time_and_leaves_nothing(
    kind: str, status: int, body: str, opened: ObjectStore, proxy: FaultProxy, retrier: Retrier
) -> None:
    proxy.add(part(kind, 2, Fault("status", status=status, body=body, times=99)))
    started_s = retrier.clock.monotonic()
    with pytest.raises(RetriesExhausted, match="gave up after 4 attempts") as caught:
        write(opened, retrier)
    assert isinstance(caught.value.__cause__, CredentialsExpired)
    assert retrier.clock.monotonic() - started_s < retrier.policy.deadline_s
    assert proxy.count(*COMPLETE[kind]) == 0
    assert [info.key for info in opened.list()] == ["before"] and opened.sweep_uploads("", 0.0) == 0


@pytest.mark.parametrize(("kind", "status", "body"), CASES)
def test_a_run_does_not_begin_with_expired_credentials(
    kind: str, status: int, body: str, opened: ObjectStore, proxy: FaultProxy, retrier: Retrier
) -> None:
    proxy.add(Fault("status", "PUT|POST", status=status, body=body, times=99))
    with pytest.raises(ConfigError, match="writing is not permitted; give credentials"):
        preflight(RetryingStore(opened, retrier))


@pytest.mark.parametrize("kind", ["gcs"])
def test_a_token_that_is_refused_to_us_is_no_reason_to_go_on(
    opened: ObjectStore, proxy: FaultProxy, retrier: Retrier, tokens: list[str]
) -> None:
    proxy.add(part("gcs", 2, Fault("status", status=401)))
    tokens.clear()
    with pytest.raises(PermissionDenied, match="invalid_grant"):
        write(opened, retrier)

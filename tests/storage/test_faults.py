"""S3 and GCS behind a proxy that fails: what is resent, resumed or given up, and that the bytes are equal."""

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.errors import AlreadyExists, ConfigError, PermissionDenied, RetriesExhausted, StorageError
from ftppo.errors import TransientStorageError as Transient
from ftppo.storage import gcs, s3
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier, RetryEvent, RetryPolicy
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store, preflight
from ftppo.storage.writer import BufferedWriter
from tests.storage.conftest import MOTO_UPLOADS_S, PART_BYTES
from tests.storage.proxy import Fault, FaultProxy

DATA = bytes(range(256)) * 15 + b"tail"  # four parts
# how each server's requests look: (method, path) of one part, of a put, of a create, of the start, of the end
PART = {
    "s3": ("PUT", r"partNumber={}(&|$)"),
    "gcs": ("POST", r"\.uploads.*%2F0*{}&uploadType|\.uploads.*/0*{}&uploadType"),
}
WHOLE = {"s3": ("PUT", "key$"), "gcs": ("POST", r"upload/storage")}
COMPLETE = {"s3": ("POST", "uploadId="), "gcs": ("POST", "key/compose")}
READ = {"s3": ("GET", "key$"), "gcs": ("GET", "alt=media")}
DENIED = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


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
def events() -> list[RetryEvent]:
    return []


@pytest.fixture
def retrier(clock: FakeClock, events: list[RetryEvent]) -> Retrier:
    return Retrier(RetryPolicy(retries=4), clock, on_event=events.append)


@pytest.fixture
def store(raw: ObjectStore, retrier: Retrier) -> RetryingStore:
    return RetryingStore(raw, retrier)


def part(kind: str, number: int, fault: Fault) -> Fault:
    """`fault`, aimed at one part."""
    fault.method, fault.path = PART[kind][0], PART[kind][1].replace("{}", str(number))
    return fault


def aim(at: dict[str, tuple[str, str]], kind: str, fault: Fault) -> Fault:
    fault.method, fault.path = at[kind]
    return fault


def num_parts_sent(kind: str, proxy: FaultProxy) -> int:
    return proxy.count(PART[kind][0], PART[kind][1].replace("{}", "[0-9]+"))


def write(raw: ObjectStore, retrier: Retrier, data: bytes = DATA) -> BufferedWriter:
    stream = BufferedWriter(raw, "key", retrier, PART_BYTES, ring_buffers=2)
    stream.write(data)
    return stream


FAULTS = {
    "503": Fault("status", status=503),
    "429": Fault("status", status=429),
    "500": Fault("status", status=500),
    "reset": Fault("reset", after_bytes=300),
    "lose": Fault("lose"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_k_failed_parts_of_n_cost_k_resends_of_those_parts(
    kind: str, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier, events: list[RetryEvent], name: str
) -> None:
    for number, times in ((2, 1), (3, 2)):
        proxy.add(part(kind, number, Fault(**{**vars(FAULTS[name]), "times": times})))
    written = write(raw, retrier).close()
    assert raw.get("key") == DATA
    assert (written.parts, written.retries, written.crc32) == (4, 3, f"{zlib.crc32(DATA):08x}")
    assert num_parts_sent(kind, proxy) == 4 + 3
    assert sorted((event.what, event.part) for event in events) == [("key", 2), ("key", 3), ("key", 3)]


def test_a_part_that_never_arrives_ends_the_object_and_leaves_nothing(
    kind: str, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
) -> None:
    proxy.add(part(kind, 3, Fault("status", times=99)))
    with (
        pytest.raises(RetriesExhausted, match="key: gave up after 5 attempts") as caught,
        write(raw, retrier) as stream,
    ):
        stream.close()
    assert isinstance(caught.value.__cause__, Transient)
    assert list(raw.list()) == [] and raw.sweep_uploads("", 0.0) == 0
    assert proxy.count(*COMPLETE[kind]) == 0


@pytest.mark.parametrize("status", [400, 401, 403, 501])
def test_a_permanent_refusal_is_not_repeated(kind: str, proxy: FaultProxy, store: RetryingStore, status: int) -> None:
    proxy.add(aim(WHOLE, kind, Fault("status", times=99, status=status)))
    with pytest.raises(PermissionDenied if status in (401, 403) else StorageError) as caught:
        store.put("key", DATA)
    assert not caught.value.transient and caught.value.__cause__ is not None
    assert proxy.count(*WHOLE[kind]) == 1


def test_a_create_whose_answer_was_lost_is_read_back(kind: str, proxy: FaultProxy, store: RetryingStore) -> None:
    proxy.add(aim(WHOLE, kind, Fault("lose")))
    store.create("key", DATA)
    assert proxy.count(*WHOLE[kind]) == 2 and store.get("key") == DATA
    proxy.add(aim(WHOLE, kind, Fault("lose")))
    with pytest.raises(AlreadyExists):
        store.create("key", b"other")
    assert store.get("key") == DATA


def test_a_put_whose_answer_was_lost_is_repeated(kind: str, proxy: FaultProxy, store: RetryingStore) -> None:
    proxy.add(aim(WHOLE, kind, Fault("lose")))
    store.put("key", DATA)
    assert proxy.count(*WHOLE[kind]) == 2 and store.get("key") == DATA


def test_a_complete_whose_answer_was_lost_is_a_success(
    kind: str, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
) -> None:
    proxy.add(aim(COMPLETE, kind, Fault("lose")))
    assert write(raw, retrier).close().retries == 1
    assert raw.get("key") == DATA
    assert [info.key for info in raw.list()] == ["key"] and raw.sweep_uploads("", 0.0) == 0


@pytest.mark.parametrize(("start", "length"), [(0, None), (100, 2000)])
def test_a_body_that_breaks_off_is_made_whole(
    kind: str, proxy: FaultProxy, store: RetryingStore, start: int, length: int | None
) -> None:
    store.put("key", DATA)
    proxy.add(aim(READ, kind, Fault("truncate", after_bytes=700, times=2)))
    assert store.get("key", start, length) == DATA[start : None if length is None else start + length]
    assert proxy.count(*READ[kind]) == 3


def test_a_server_that_falls_silent_is_given_up_and_asked_again(
    kind: str, request: pytest.FixtureRequest, proxy: FaultProxy, retrier: Retrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr({"s3": s3, "gcs": gcs}[kind], "READ_S", 1.0)
    raw: ObjectStore = request.getfixturevalue("raw")
    proxy.add(part(kind, 2, Fault("stall")), aim(READ, kind, Fault("stall")))
    assert write(raw, retrier).close().retries >= 1
    assert RetryingStore(raw, retrier).get("key") == DATA


def test_listing_statting_and_deleting_are_retried(kind: str, proxy: FaultProxy, store: RetryingStore) -> None:
    store.put("key", DATA)
    for ask in (lambda: store.list(""), lambda: store.stat("key"), lambda: store.delete("key")):
        proxy.add(Fault("status", status=500), Fault("status", status=429))
        ask()
    assert list(store.list()) == [] and store.retrier.num_retries == 6


def test_a_server_that_is_gone_is_transient(kind: str, raw: ObjectStore, proxy: FaultProxy) -> None:
    proxy.__exit__(None, None, None)
    with pytest.raises(Transient):
        raw.put("key", DATA)
    with pytest.raises(Transient):
        raw.get("key")


def test_preflight_names_a_missing_bucket_and_a_refusal(kind: str, proxy: FaultProxy, raw: ObjectStore) -> None:
    scheme = "gs" if kind == "gcs" else kind
    nowhere = open_store(f"{scheme}://no-such-bucket/x", endpoint=proxy.url)
    with pytest.raises(ConfigError, match=rf"checkpoint.url='{scheme}://no-such-bucket/x': no such bucket; create it"):
        preflight(nowhere)
    nowhere.close()
    proxy.add(Fault("status", "PUT|POST", status=403, body=DENIED, times=99))
    with pytest.raises(ConfigError, match="writing is not permitted; give credentials"):
        preflight(raw)


def test_parts_beyond_one_compose_are_joined_in_order(gcs_endpoint: str, gcs_bucket: str, retrier: Retrier) -> None:
    store = open_store(f"gs://{gcs_bucket}", endpoint=gcs_endpoint)
    data = bytes(number % 251 for number in range(35 * 100 + 1))
    stream = BufferedWriter(store, "key", retrier, part_bytes=100)
    stream.write(data)
    assert stream.close().parts == 36
    assert store.get("key") == data and [info.key for info in store.list()] == ["key"]
    store.close()


class TestGcs:
    """What only GCS has."""

    @pytest.fixture
    def kind(self) -> str:
        return "gcs"

    @pytest.mark.parametrize("operation", ["put", "create"])
    def test_what_arrived_changed_is_taken_back_and_sent_again(
        self, proxy: FaultProxy, store: RetryingStore, operation: str
    ) -> None:
        proxy.add(Fault("flip", "POST", "upload/storage"))
        getattr(store, operation)("key", DATA)
        assert store.get("key") == DATA
        assert proxy.count("POST", "upload/storage") == 2


class TestS3:
    """What only S3 has."""

    @pytest.fixture
    def kind(self) -> str:
        return "s3"

    def test_an_upload_whose_start_was_lost_is_swept(
        self, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
    ) -> None:
        proxy.add(Fault("lose", "POST", r"\?uploads"))
        assert write(raw, retrier).close().retries == 1
        assert raw.sweep_uploads("key", 3600.0) == 0
        assert raw.sweep_uploads("key", 1.0) == 1
        assert raw.get("key") == DATA

    def test_a_range_is_resumed_where_it_broke_off_and_only_of_the_same_object(
        self, proxy: FaultProxy, raw: ObjectStore
    ) -> None:
        raw.put("key", DATA)
        proxy.add(aim(READ, "s3", Fault("truncate", after_bytes=700)))
        assert raw.get("key", 100, 2000) == DATA[100:2100]
        first, second = (seen.headers for seen in proxy.seen if seen.method == "GET")
        assert (first["range"], second["range"]) == ("bytes=100-2099", "bytes=800-2099")
        assert "if-match" not in first and second["if-match"]

    def test_an_error_within_an_answer_of_status_200_is_seen(
        self, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
    ) -> None:
        body = "<Error><Code>InternalError</Code><Message>try again</Message></Error>"
        proxy.add(aim(COMPLETE, "s3", Fault("status", status=200, body=body)))
        assert write(raw, retrier).close().retries == 1
        assert raw.get("key") == DATA

    def test_two_conditional_writes_at_once_are_tried_again(self, proxy: FaultProxy, store: RetryingStore) -> None:
        body = "<Error><Code>ConditionalRequestConflict</Code><Message>both</Message></Error>"
        proxy.add(aim(WHOLE, "s3", Fault("status", status=409, body=body)))
        store.create("key", DATA)
        assert store.get("key") == DATA

    def test_bytes_that_arrived_changed_are_sent_again(self, proxy: FaultProxy, store: RetryingStore) -> None:
        body = "<Error><Code>BadDigest</Code><Message>sum</Message></Error>"
        proxy.add(aim(WHOLE, "s3", Fault("status", status=400, body=body)))
        store.put("key", DATA)
        assert proxy.count(*WHOLE["s3"]) == 2

    def test_parts_too_small_for_the_server_name_the_remedy(
        self, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
    ) -> None:
        body = "<Error><Code>EntityTooSmall</Code><Message>small</Message></Error>"
        proxy.add(aim(COMPLETE, "s3", Fault("status", status=400, body=body)))
        with pytest.raises(StorageError, match=r"raise checkpoint\.part_bytes"), write(raw, retrier) as stream:
            stream.close()
        assert proxy.count(*COMPLETE["s3"]) == 1

    def test_too_many_parts_name_the_remedy(
        self, raw: ObjectStore, retrier: Retrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "MAX_PARTS", 3)
        with pytest.raises(StorageError, match=r"raise checkpoint\.part_bytes"), write(raw, retrier) as stream:
            stream.close()

    def test_each_part_carries_the_checksum_of_the_writer(
        self, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
    ) -> None:
        proxy.add(part("s3", 2, Fault("status")))
        write(raw, retrier).close()
        sent = [seen for seen in proxy.seen if "partNumber=" in seen.path]
        assert len(sent) == 5
        for seen in sent:
            crc32 = base64.b64encode(zlib.crc32(seen.body).to_bytes(4, "big")).decode()
            assert seen.headers["x-amz-checksum-crc32"] == crc32

    def test_checksums_can_be_left_out(self, proxy: FaultProxy, s3_bucket: str, retrier: Retrier) -> None:
        raw = open_store(f"s3://{s3_bucket}/p", endpoint=proxy.url, checksums="when_required")
        write(raw, retrier).close()
        raw.put("small", b"x")
        assert raw.get("key") == DATA and raw.get("small") == b"x"
        names = {name for seen in proxy.seen if seen.method != "GET" for name in seen.headers}
        assert not any("checksum" in name or "trailer" in name for name in names)
        raw.close()

    def test_missing_credentials_are_named(
        self, proxy: FaultProxy, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        store = open_store(f"s3://{s3_bucket}/p", endpoint=proxy.url)
        with pytest.raises(ConfigError, match=r"give credentials .*Unable to locate credentials"):
            preflight(store)
        store.close()

    def test_an_endpoint_that_is_no_url_is_named(self, s3_bucket: str) -> None:
        with pytest.raises(ConfigError, match=r"checkpoint\.endpoint='nonsense'"):
            open_store(f"s3://{s3_bucket}/p", endpoint="nonsense")


def test_missing_google_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match=r"checkpoint\.url='gs://bucket/p': no usable Google credentials"):
        open_store("gs://bucket/p")

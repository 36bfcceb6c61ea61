"""S3 and GCS behind a proxy that fails: what is resent, resumed or given up, and that the bytes are equal."""

import zlib

import pytest

from ftppo.errors import AlreadyExists, ConfigError, PermissionDenied, RetriesExhausted, StorageError
from ftppo.errors import TransientStorageError as Transient
from ftppo.storage import gcs, s3
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier, RetryEvent
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store, preflight
from tests.storage.faulty import COMPLETE, DATA, READ, WHOLE, aim, num_parts_sent, part, write
from tests.storage.proxy import Fault, FaultProxy

DENIED = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
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
    written = write(raw, retrier)
    assert raw.get("key") == DATA
    assert (written.parts, written.retries, written.crc32) == (4, 3, f"{zlib.crc32(DATA):08x}")
    assert num_parts_sent(kind, proxy) == 4 + 3
    assert sorted((event.what, event.part) for event in events) == [("key", 2), ("key", 3), ("key", 3)]


def test_a_part_that_never_arrives_ends_the_object_and_leaves_nothing(
    kind: str, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
) -> None:
    proxy.add(part(kind, 3, Fault("status", times=99)))
    with pytest.raises(RetriesExhausted, match="key: gave up after 4 attempts") as caught:
        write(raw, retrier)
    assert isinstance(caught.value.__cause__, Transient)
    assert list(raw.list()) == [] and raw.sweep_uploads("", 0.0) == 0
    assert proxy.count(*COMPLETE[kind]) == 0


@pytest.mark.parametrize("status", [400, 401, 403, 501])
def test_a_permanent_refusal_is_not_repeated(kind: str, proxy: FaultProxy, patient: RetryingStore, status: int) -> None:
    proxy.add(aim(WHOLE, kind, Fault("status", times=99, status=status)))
    with pytest.raises(PermissionDenied if status in (401, 403) else StorageError) as caught:
        patient.put("key", DATA)
    assert not caught.value.transient and caught.value.__cause__ is not None
    assert proxy.count(*WHOLE[kind]) == 1


def test_a_create_whose_answer_was_lost_is_read_back(kind: str, proxy: FaultProxy, patient: RetryingStore) -> None:
    proxy.add(aim(WHOLE, kind, Fault("lose")))
    patient.create("key", DATA)
    assert proxy.count(*WHOLE[kind]) == 2 and patient.get("key") == DATA
    proxy.add(aim(WHOLE, kind, Fault("lose")))
    with pytest.raises(AlreadyExists):
        patient.create("key", b"other")
    assert patient.get("key") == DATA


def test_a_put_whose_answer_was_lost_is_repeated(kind: str, proxy: FaultProxy, patient: RetryingStore) -> None:
    proxy.add(aim(WHOLE, kind, Fault("lose")))
    patient.put("key", DATA)
    assert proxy.count(*WHOLE[kind]) == 2 and patient.get("key") == DATA


def test_a_complete_whose_answer_was_lost_is_a_success(
    kind: str, proxy: FaultProxy, raw: ObjectStore, retrier: Retrier
) -> None:
    proxy.add(aim(COMPLETE, kind, Fault("lose")))
    assert write(raw, retrier).retries == 1
    assert raw.get("key") == DATA
    assert [info.key for info in raw.list()] == ["key"] and raw.sweep_uploads("", 0.0) == 0


@pytest.mark.parametrize(("start", "length"), [(0, None), (100, 2000)])
def test_a_body_that_breaks_off_is_made_whole(
    kind: str, proxy: FaultProxy, patient: RetryingStore, start: int, length: int | None
) -> None:
    patient.put("key", DATA)
    proxy.add(aim(READ, kind, Fault("truncate", after_bytes=700, times=2)))
    assert patient.get("key", start, length) == DATA[start : None if length is None else start + length]
    assert proxy.count(*READ[kind]) == 3


def test_a_server_that_falls_silent_is_given_up_and_asked_again(
    kind: str, request: pytest.FixtureRequest, proxy: FaultProxy, retrier: Retrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr({"s3": s3, "gcs": gcs}[kind], "READ_S", 1.0)
    raw: ObjectStore = request.getfixturevalue("raw")
    proxy.add(part(kind, 2, Fault("stall")), aim(READ, kind, Fault("stall")))
    assert write(raw, retrier).retries >= 1
    assert RetryingStore(raw, retrier).get("key") == DATA


def test_listing_statting_and_deleting_are_retried(kind: str, proxy: FaultProxy, patient: RetryingStore) -> None:
    patient.put("key", DATA)
    for ask in (lambda: patient.list(""), lambda: patient.stat("key"), lambda: patient.delete("key")):
        proxy.add(Fault("status", status=500), Fault("status", status=429))
        ask()
    assert list(patient.list()) == [] and patient.retrier.num_retries == 6


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

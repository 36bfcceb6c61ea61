"""What only the S3 store has: checksums, resumed ranges, S3's own error codes, lost uploads, credentials."""

import base64
import zlib
from pathlib import Path

import pytest

from ftppo.errors import ConfigError, StorageError
from ftppo.storage import s3
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store, preflight
from tests.storage.faulty import COMPLETE, DATA, READ, WHOLE, aim, part, write
from tests.storage.proxy import Fault, FaultProxy


@pytest.fixture
def kind() -> str:
    return "s3"


def test_an_upload_whose_start_was_lost_is_swept(proxy: FaultProxy, raw: ObjectStore, retrier: Retrier) -> None:
    proxy.add(Fault("lose", "POST", r"\?uploads"))
    assert write(raw, retrier).retries == 1
    assert raw.sweep_uploads("key", 3600.0) == 0
    assert raw.sweep_uploads("key", 1.0) == 1
    assert raw.get("key") == DATA


def test_a_range_is_resumed_where_it_broke_off_and_only_of_the_same_object(proxy: FaultProxy, raw: ObjectStore) -> None:
    raw.put("key", DATA)
    proxy.add(aim(READ, "s3", Fault("truncate", after_bytes=700)))
    assert raw.get("key", 100, 2000) == DATA[100:2100]
    first, second = (seen.headers for seen in proxy.seen if seen.method == "GET")
    assert (first["range"], second["range"]) == ("bytes=100-2099", "bytes=800-2099")
    assert "if-match" not in first and second["if-match"]


def test_an_error_within_an_answer_of_status_200_is_seen(proxy: FaultProxy, raw: ObjectStore, retrier: Retrier) -> None:
    body = "<Error><Code>InternalError</Code><Message>try again</Message></Error>"
    proxy.add(aim(COMPLETE, "s3", Fault("status", status=200, body=body)))
    assert write(raw, retrier).retries == 1
    assert raw.get("key") == DATA


def test_two_conditional_writes_at_once_are_tried_again(proxy: FaultProxy, patient: RetryingStore) -> None:
    body = "<Error><Code>ConditionalRequestConflict</Code><Message>both</Message></Error>"
    proxy.add(aim(WHOLE, "s3", Fault("status", status=409, body=body)))
    patient.create("key", DATA)
    assert patient.get("key") == DATA


def test_bytes_that_arrived_changed_are_sent_again(proxy: FaultProxy, patient: RetryingStore) -> None:
    body = "<Error><Code>BadDigest</Code><Message>sum</Message></Error>"
    proxy.add(aim(WHOLE, "s3", Fault("status", status=400, body=body)))
    patient.put("key", DATA)
    assert proxy.count(*WHOLE["s3"]) == 2


def test_parts_too_small_for_the_server_name_the_remedy(proxy: FaultProxy, raw: ObjectStore, retrier: Retrier) -> None:
    body = "<Error><Code>EntityTooSmall</Code><Message>small</Message></Error>"
    proxy.add(aim(COMPLETE, "s3", Fault("status", status=400, body=body)))
    with pytest.raises(StorageError, match=r"raise checkpoint\.part_bytes"):
        write(raw, retrier)
    assert proxy.count(*COMPLETE["s3"]) == 1


def test_too_many_parts_name_the_remedy(raw: ObjectStore, retrier: Retrier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_PARTS", 3)
    with pytest.raises(StorageError, match=r"raise checkpoint\.part_bytes"):
        write(raw, retrier)


def test_each_part_carries_the_checksum_of_the_writer(proxy: FaultProxy, raw: ObjectStore, retrier: Retrier) -> None:
    proxy.add(part("s3", 2, Fault("status")))
    write(raw, retrier)
    sent = [seen for seen in proxy.seen if "partNumber=" in seen.path]
    assert len(sent) == 5
    for seen in sent:
        crc32 = base64.b64encode(zlib.crc32(seen.body).to_bytes(4, "big")).decode()
        assert seen.headers["x-amz-checksum-crc32"] == crc32


def test_checksums_can_be_left_out(proxy: FaultProxy, s3_bucket: str, retrier: Retrier) -> None:
    raw = open_store(f"s3://{s3_bucket}/p", endpoint=proxy.url, checksums="when_required")
    write(raw, retrier)
    raw.put("small", b"x")
    assert raw.get("key") == DATA and raw.get("small") == b"x"
    names = {name for seen in proxy.seen if seen.method != "GET" for name in seen.headers}
    assert not any("checksum" in name or "trailer" in name for name in names)
    raw.close()


def test_missing_credentials_are_named(
    proxy: FaultProxy, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    store = open_store(f"s3://{s3_bucket}/p", endpoint=proxy.url)
    with pytest.raises(ConfigError, match=r"give credentials .*Unable to locate credentials"):
        preflight(store)
    store.close()


def test_an_endpoint_that_is_no_url_is_named(s3_bucket: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.endpoint='nonsense'"):
        open_store(f"s3://{s3_bucket}/p", endpoint="nonsense")

"""What only the GCS store has: composed uploads, the check of what arrived, credentials."""

from pathlib import Path

import pytest

from ftppo.errors import ConfigError
from ftppo.storage.retry import Retrier
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store
from ftppo.storage.writer import BufferedWriter
from tests.storage.faulty import DATA
from tests.storage.proxy import Fault, FaultProxy


@pytest.fixture
def kind() -> str:
    return "gcs"


def test_parts_beyond_one_compose_are_joined_in_order(gcs_endpoint: str, gcs_bucket: str, retrier: Retrier) -> None:
    store = open_store(f"gs://{gcs_bucket}", endpoint=gcs_endpoint)
    data = bytes(number % 251 for number in range(35 * 100 + 1))
    stream = BufferedWriter(store, "key", retrier, part_bytes=100)
    stream.write(data)
    assert stream.close().parts == 36
    assert store.get("key") == data and [info.key for info in store.list()] == ["key"]
    store.close()


@pytest.mark.parametrize("operation", ["put", "create"])
def test_what_arrived_changed_is_taken_back_and_sent_again(
    proxy: FaultProxy, patient: RetryingStore, operation: str
) -> None:
    proxy.add(Fault("flip", "POST", "upload/storage"))
    getattr(patient, operation)("key", DATA)
    assert patient.get("key") == DATA
    assert proxy.count("POST", "upload/storage") == 2


def test_missing_google_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match=r"checkpoint\.url='gs://bucket/p': no usable Google credentials"):
        open_store("gs://bucket/p")

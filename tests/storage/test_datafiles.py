"""Datasets in every kind of store: one file, or all of a folder, by path or URL."""

import functools
from pathlib import Path

import pytest

from ftppo.config import Config
from ftppo.config_task import Dataset
from ftppo.driver.datafiles import read_rows
from ftppo.errors import ConfigError
from ftppo.storage.url import open_store

NO_RETRIES = {"retries": 0}


@pytest.fixture(params=["local", "file", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None]:
    """(URL of an empty folder, endpoint)."""
    match request.param:
        case "local":
            return str(tmp_path / "data"), None
        case "file":
            return f"file://{tmp_path}/data", None
        case kind:
            scheme = {"s3": "s3", "gcs": "gs"}[kind]
            bucket, endpoint = request.getfixturevalue(f"{kind}_bucket"), request.getfixturevalue(f"{kind}_endpoint")
            return f"{scheme}://{bucket}/some/data", endpoint


def prompts(path: str, endpoint: str | None) -> list[tuple[str, str]]:
    """(where, prompt) of every row."""
    config = Config.model_validate({"task": {"kind": "jsonl", "endpoint": endpoint}, "checkpoint": NO_RETRIES})
    return [(row.where, row.fields["prompt"]) for row in read_rows(config, Dataset(path=path))]


def test_a_file_and_a_folder_of_files(place: tuple[str, str | None]) -> None:
    url, endpoint = place
    store = open_store(url, endpoint=endpoint)
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl"):
        store.put(name, b'{"prompt": "%s"}\n{"prompt": "x"}\n' % name.encode())
    store.put("notes.txt", b"not data")
    store.close()
    read = functools.partial(prompts, endpoint=endpoint)
    assert read(f"{url}/b.jsonl") == [(f"{url}/b.jsonl, line 1", "b.jsonl"), (f"{url}/b.jsonl, line 2", "x")]
    names = ["a.jsonl", "b.jsonl", "deep/c.jsonl"]
    for folder in (url, f"{url}/"):
        assert read(folder)[::2] == [(f"{url}/{name}, line 1", name) for name in names]
    with pytest.raises(ConfigError, match=r"no such file, and no folder that holds any \*.jsonl") as caught:
        read(f"{url}/missing")
    assert (caught.value.key, caught.value.value) == ("task.path", f"{url}/missing")


def test_a_bucket_that_is_not_there_is_said_of_the_task(s3_endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prompts("s3://no-such-bucket-here/a.jsonl", s3_endpoint)
    assert caught.value.key == "task.path" and "no-such-bucket-here" in str(caught.value)


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"prompt": "p"}')
    assert prompts("mine.jsonl", None) == [("mine.jsonl, line 1", "p")]

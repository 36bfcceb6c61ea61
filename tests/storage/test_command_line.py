"""`python -m ftppo.checkpoint` on buckets: the same as on a folder, and what cannot be reached."""

import pytest

from ftppo.checkpoint.__main__ import main
from ftppo.checkpoint.catalog import Catalog
from ftppo.storage.url import open_store
from tests.storage.saves import save

type Said = pytest.CaptureFixture[str]


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str) -> tuple[str, str]:
    """URL and endpoint of steps 1 to 3 and of an attempt that never became one."""
    scheme, bucket = {"s3": "s3", "gcs": "gs"}[kind], request.getfixturevalue(f"{kind}_bucket")
    url, endpoint = f"{scheme}://{bucket}/run", request.getfixturevalue(f"{kind}_endpoint")
    store = open_store(url, endpoint=endpoint)
    for step in (1, 2, 3):
        save(store, step)
    store.put("step-00000003/attempt-000001-x/__0_0.distcp", b"left")
    store.close()
    return url, endpoint


def test_buckets_are_listed_verified_shown_and_pruned(place: tuple[str, str], capsys: Said) -> None:
    url, endpoint = place
    there = (url, "--endpoint", endpoint)
    assert main(["list", *there]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]].count("published") == 3
    assert main(["verify", "--deep", *there]) == 0 and main(["show", "--tensors", *there]) == 0
    capsys.readouterr()
    assert main(["prune", "--keep", "2", "--older-than", "0", *there]) == 0
    assert "step-00000003/attempt-000001-x" in capsys.readouterr().out
    store = open_store(url, endpoint=endpoint)
    catalog = Catalog(store)
    assert catalog.steps() == [3, 2] and len(catalog.attempts()) == 2
    store.delete(f"{catalog.load(3).prefix}/__1_0.distcp")
    store.close()
    assert main(["verify", *there]) == 1
    said = capsys.readouterr()
    assert "__1_0.distcp is missing" in said.out and said.err == ""


def test_a_bucket_that_is_not_there_is_one_line_and_status_2(
    request: pytest.FixtureRequest, kind: str, capsys: Said
) -> None:
    scheme, endpoint = {"s3": "s3", "gcs": "gs"}[kind], request.getfixturevalue(f"{kind}_endpoint")
    for verb in (["list"], ["verify"], ["prune", "--keep", "1"]):
        assert main([*verb, f"{scheme}://no-such-bucket/x", "--endpoint", endpoint]) == 2
        said = capsys.readouterr()
        assert (
            said.out == "" and said.err.startswith("python -m ftppo.checkpoint: listing") and said.err.count("\n") == 1
        )


def test_a_server_that_is_not_there_is_one_line_and_status_2(
    kind: str, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftppo.clock.SystemClock.sleep", lambda self, seconds: None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    url = f"{ {'s3': 's3', 'gcs': 'gs'}[kind] }://bucket/x"
    assert main(["list", url, "--endpoint", "http://127.0.0.1:9"]) == 2
    said = capsys.readouterr()
    assert "gave up after" in said.err and said.err.count("\n") == 1

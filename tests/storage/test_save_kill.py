"""A save whose process is killed before and after each of its operations, on each kind of store."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.manifest import manifest_key
from ftppo.clock import FakeClock
from ftppo.storage.url import open_store
from tests.storage.conftest import MOTO_UPLOADS_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 250.0


@pytest.fixture(params=["local", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    """URL and endpoint of an empty store."""
    if request.param == "local":
        yield str(tmp_path / "store"), None
        return
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    scheme = {"s3": "s3", "gcs": "gs"}[request.param]
    yield f"{scheme}://{bucket}/run", request.getfixturevalue(f"{request.param}_endpoint")


def test_a_save_killed_at_any_operation_leaves_old_or_new_and_can_be_made_again(place: tuple[str, str | None]) -> None:
    url, endpoint = place
    command = [sys.executable, "-m", "tests.storage.killed", *filter(None, place)]
    done = subprocess.run(command, cwd=ROOT, timeout=DEADLINE_S, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(kill["at"], kill["after"]) for kill in kills] == [(n // 2, n % 2 == 1) for n in range(len(kills))]
    assert len(kills) >= 2 * 12, "one part after another, a whole object, small files, a listing, the manifest"

    new = [kill["found"] == kill["step"] for kill in kills]
    assert all(kill["found"] in (kill["step"] - 1, kill["step"]) for kill in kills)
    assert new == sorted(new) and not new[0] and new[-1], "the manifest decides, and it comes last"

    clock = FakeClock(MOTO_UPLOADS_S + 60) if url.startswith("s3") else None
    store = open_store(url, endpoint=endpoint, clock=clock)
    catalog = Catalog(store)
    manifests = catalog.published()
    assert all(catalog.verify(step) == [] for step in catalog.steps())
    assert catalog.steps() == list(range(len(kills) + 2, 0, -1)) == [one.step for one in manifests]
    assert catalog.sweep(older_than_s=-3600.0) != []
    wanted = [f"{one.prefix}/{stored.name}" for one in manifests for stored in one.objects]
    assert sorted([*wanted, *map(manifest_key, catalog.steps())]) == [info.key for info in store.list()]
    assert catalog.sweep_uploads(-3600.0) == 0
    store.close()

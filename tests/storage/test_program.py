"""The program with a bucket for its checkpoints: elsewhere it goes on from that alone; what is refused is told."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.storage.url import open_store
from tests.faults.program import Outcome, run_program
from tests.sandbox import Sandbox
from tests.storage.proxy import Fault, FaultProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECIPE = ("experiment=smoke", "train.epochs=2", "train.iterations=4")
SMALL_PARTS = "checkpoint.part_bytes=262144"
COMPARED = ("policy_loss", "value_loss", "entropy", "policy_grad_norm", "critic_grad_norm", "reward_mean")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """Ends with the test, and fails it for what it leaves."""
    with Sandbox() as own:
        yield own


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in one place and layout, from its beginning to its end."""
    with Sandbox() as own:
        done = run_program(own, tmp_path_factory.mktemp("unbroken"), *RECIPE, "parallel=dp2")
    assert done.status == 0, done.output
    return done


@dataclass(frozen=True)
class Place:
    """An empty prefix of a bucket, and its server."""

    kind: str
    url: str
    endpoint: str

    def overrides(self, endpoint: str | None = None) -> tuple[str, ...]:
        """What has a run keep its checkpoints there, by way of another `endpoint` where one is given."""
        where = (f"checkpoint.url={self.url}", f"checkpoint.endpoint={endpoint or self.endpoint}")
        return (f"checkpoint={self.kind}", *where, SMALL_PARTS)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest) -> Place:
    bucket, endpoint = request.getfixturevalue(f"{kind}_bucket"), request.getfixturevalue(f"{kind}_endpoint")
    return Place(kind, f"{'gs' if kind == 'gcs' else kind}://{bucket}/run", endpoint)


def test_a_run_goes_on_elsewhere_from_the_bucket_alone_in_another_layout(
    place: Place, sandbox: Sandbox, tmp_path: Path, unbroken: Outcome
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    first = run_program(sandbox, here, *RECIPE, "parallel=dp2", *place.overrides(), "train.iterations=2")
    assert first.status == 0, first.output
    assert not (first.folder / "checkpoints").exists()
    assert all(one.uri.startswith(place.url) for one in first.summary.checkpoints)
    shutil.rmtree(here)

    done = run_program(sandbox, there, *RECIPE, "parallel=tp2", *place.overrides(), "run.resume=must")
    assert done.status == 0, done.output
    (resumed,) = done.reasons("resumed")
    assert resumed == f"from the checkpoint of step {first.summary.steps}, iteration 2"
    found, wanted = done.rows("iteration"), unbroken.rows("iteration")
    assert [row["iteration"] for row in found] == [2, 3]
    for row, other in zip(found, wanted[2:], strict=True):
        assert {key: row[key] for key in COMPARED} == pytest.approx({key: other[key] for key in COMPARED}, rel=1e-3)
    assert done.summary.steps == unbroken.summary.steps


@pytest.mark.parametrize("kind", ["s3"])
def test_a_refused_save_is_told_and_only_the_last_one_fails_the_run(
    place: Place, sandbox: Sandbox, tmp_path: Path
) -> None:
    store = open_store(place.url, endpoint=place.endpoint)
    catalog = Catalog(store)
    with FaultProxy(place.endpoint) as proxy:
        refusal = Fault("status", "PUT|POST", r"__1_0\.distcp", status=403)  # of what rank 1 writes behind the training
        command = (*RECIPE, "parallel=dp2", *place.overrides(proxy.url), "checkpoint.keep_last=9")
        proxy.add(refusal)
        first = run_program(sandbox, tmp_path, *command, "train.iterations=3")
        assert first.status == 0, first.output
        assert refusal.times == 0
        (told,) = first.reasons("save_failed")
        assert "__1_0.distcp" in told and "403" in told
        steps = [one.step for one in first.summary.checkpoints]
        assert len(steps) == 2 and catalog.steps() == steps[::-1]
        assert first.reasons("saved") == [one.uri for one in first.summary.checkpoints]

        refusal.times = 1
        last = run_program(sandbox, tmp_path, *command)
        assert last.status == 1 and "__1_0.distcp" in (last.summary.reason or "")
        assert catalog.steps() == steps[::-1] and last.reasons("saved") == first.reasons("saved")

        again = run_program(sandbox, tmp_path, *command)
        assert again.status == 0, again.output
    assert catalog.steps() == [again.summary.steps, *steps[::-1]]
    assert all(catalog.verify(step, deep=True) == [] for step in catalog.steps())
    store.close()

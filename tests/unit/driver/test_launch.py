"""Before a run starts: whether it goes on from a checkpoint, and where its checkpoints lie."""

from pathlib import Path
from typing import Any

import pytest

from ftppo.checkpoint.manifest import Manifest, manifest_key
from ftppo.checkpoint.stores import config_digest
from ftppo.clock import FakeClock
from ftppo.config import Config
from ftppo.driver.launch import _wants_resume, _with_absolute_urls
from ftppo.driver.saver import Saver
from ftppo.errors import ConfigError, CorruptCheckpoint
from ftppo.storage.local import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def configured(folder: Path, **groups: dict[str, Any]) -> Config:
    return Config.model_validate({"checkpoint": {"url": str(folder)}} | groups)


def publish(folder: Path, config: Config, step: int) -> None:
    """A manifest is all that makes a checkpoint exist."""
    digest = config_digest(config)
    manifest = Manifest(
        run="r", step=step, iteration=1, generation=0, uid="a", layout={}, config_digest=digest, state={}, objects=()
    )
    LocalStore(folder).create(manifest_key(step), manifest.model_dump_json().encode())


def wants(config: Config) -> tuple[bool, int | None]:
    """Whether to resume, and the step that the saver then knows of."""
    saver = Saver(config, FakeClock())
    return _wants_resume(config, saver), saver.last_step


def test_auto_goes_on_where_there_is_something_to_go_on_from(folder: Path) -> None:
    config = configured(folder, run={"resume": "auto"})
    assert wants(config) == (False, None)
    publish(folder, config, 3)
    publish(folder, config, 7)
    assert wants(config) == (True, 7)


def test_never_refuses_to_mix_two_runs(folder: Path) -> None:
    config = configured(folder, run={"resume": "never"})
    assert wants(config) == (False, None)
    publish(folder, config, 7)
    with pytest.raises(ConfigError, match="holds the checkpoint of step 7: take another") as caught:
        wants(config)
    assert caught.value.key == "run.resume" and str(folder) in caught.value.remedy


def test_must_refuses_to_start_anew(folder: Path) -> None:
    config = configured(folder, run={"resume": "must"})
    with pytest.raises(ConfigError, match="there is no checkpoint in") as caught:
        wants(config)
    assert caught.value.key == "run.resume" and str(folder) in caught.value.remedy
    publish(folder, config, 7)
    assert wants(config) == (True, 7)


@pytest.mark.parametrize("resume", ["auto", "must"])
@pytest.mark.parametrize("other", [{"seed": 1}, {"model": {"layers": 4}}, {"task": {"name": "leg_counting"}}], ids=str)
def test_a_checkpoint_of_another_configuration_is_refused(resume: str, other: Any, folder: Path) -> None:
    publish(folder, configured(folder, **other), 7)
    with pytest.raises(ConfigError, match="is of another configuration: take another") as one:
        wants(configured(folder, run={"resume": resume, "name": "mine"}))
    assert (one.value.key, one.value.value) == ("run.name", "mine")


def test_what_may_change_between_parts_of_a_run_does_not_stop_it(folder: Path) -> None:
    publish(folder, configured(folder), 7)
    changed = configured(
        folder,
        train={"policy_lr": 1e-3},
        parallel={"dp": 2},
        cluster={"standby": 3},
        run={"name": "b"},
        judge={"timeout_s": 1},
        eval={"every_iterations": 2},
    )
    assert wants(changed) == (True, 7)


def test_a_manifest_that_cannot_be_read_is_nothing_to_start_anew_over(folder: Path) -> None:
    config = configured(folder)
    LocalStore(folder).create(manifest_key(7), b"{")
    with pytest.raises(CorruptCheckpoint):
        wants(config)


def absolute(url: str | None, folder: Path) -> str | None:
    config = Config.model_validate({"checkpoint": {"url": url, "keep_last": 5}, "model": {"weights": url}, "seed": 4})
    found = _with_absolute_urls(config, folder)
    assert found.model_copy(update={"checkpoint": config.checkpoint, "model": config.model}) == config
    assert found.model.weights == (None if url is None else found.checkpoint.url)
    assert found.checkpoint.model_copy(update={"url": url}) == config.checkpoint
    return found.checkpoint.url


def test_without_a_url_checkpoints_lie_in_the_folder_of_the_run(tmp_path: Path) -> None:
    assert absolute(None, tmp_path / "runs" / "mine") == str(tmp_path / "runs" / "mine" / "checkpoints")


def test_a_relative_folder_means_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("some/where", tmp_path) == str(tmp_path.resolve() / "some" / "where")
    assert absolute("../up", tmp_path) == str(tmp_path.resolve().parent / "up")


@pytest.mark.parametrize(
    "url", ["s3://bucket/prefix", "gs://bucket", "memory://name", "file:///data/here", "/data/here"]
)
def test_what_is_absolute_stays(url: str, tmp_path: Path) -> None:
    assert absolute(url, tmp_path) == url

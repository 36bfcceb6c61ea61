"""The command line: presets compose, mistakes are answered in one block, the exit status says how it went."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from ftppo import __main__ as program
from ftppo.config import Config, load_config
from ftppo.errors import ClusterError, ConfigError

ROOT = Path(program.__file__).resolve().parents[1]

NEEDED = {  # what a preset leaves to the user, and what else it needs to make sense
    "checkpoint=s3": ["checkpoint.url=s3://bucket/prefix"],
    "checkpoint=gcs": ["checkpoint.url=gs://bucket/prefix"],
    "task=jsonl": [f"task.path={__file__}"],
    "task=parquet": [f"task.path={__file__}"],
    "task=hub": ["task.path=owner/name"],
    "chaos=soak": ["train.iterations=20", "cluster.standby=1"],
}
CHOICES = [f"{group}={name}" for group, names in program.presets().items() for name in names]


def compose(*overrides: str) -> Config:
    return load_config(program.compose_raw(overrides))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_preset_makes_a_configuration_that_can_run(choice: str) -> None:
    compose(choice, *NEEDED.get(choice, []))


@pytest.mark.parametrize("layout", [name for name in program.presets()["parallel"]])
def test_layout_presets_are_named_by_their_sizes(layout: str) -> None:
    sizes = compose(f"parallel={layout}").parallel
    present = [(kind, getattr(sizes, kind)) for kind in ("dp", "tp", "pp", "cp") if getattr(sizes, kind) > 1]
    assert layout == ("".join(f"{kind}{size}" for kind, size in present) or "single")


def test_every_group_is_in_the_defaults_list() -> None:
    defaults = yaml.safe_load((ROOT / "configs/config.yaml").read_text())["defaults"]
    assert {group for entry in defaults if isinstance(entry, dict) for group in entry} == set(program.presets())


@pytest.mark.parametrize("group", program.presets())
def test_readme_lists_every_preset(group: str) -> None:
    (row,) = re.findall(rf"^\| `{group}` \| ([^|]+) \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(row.strip().split(", ")) == program.presets()[group]


def test_smoke_is_the_smallest_real_run() -> None:
    config = compose("experiment=smoke")
    assert (config.parallel.num_slots, config.train.iterations, config.run.name) == (2, 2, "smoke")


def test_demo_loses_a_replica_and_has_standbys_for_it() -> None:
    config = compose("experiment=demo")
    (fault,) = config.chaos.faults
    assert (config.parallel.dp, config.parallel.tp, config.cluster.standby) == (2, 2, 4)
    assert (fault.kind, fault.phase) == ("kill_dp_group", "update")
    assert 0 < fault.iteration < config.train.iterations - 1


def test_command_line_beats_experiment_beats_group() -> None:
    config = compose("experiment=demo", "parallel=tp2", "train.iterations=8")
    assert (config.parallel.dp, config.parallel.tp, config.train.iterations) == (1, 2, 8)


def test_keys_that_no_preset_mentions_can_be_set() -> None:
    config = compose("task.args.min_word_len=2", "recovery.hang_s=7.5", "+checkpoint.retries=1")
    assert config.task.args == {"min_word_len": 2, "max_word_len": 5}
    assert (config.recovery.hang_s, config.checkpoint.retries) == (7.5, 1)


def test_faults_are_given_as_a_list() -> None:
    config = compose("chaos.faults=[{iteration: 2, phase: rollout, slot: 0, kind: sigstop}]")
    assert [(fault.iteration, fault.phase, fault.kind) for fault in config.chaos.faults] == [(2, "rollout", "sigstop")]


@pytest.mark.parametrize(
    ("override", "key", "remedy"),
    [
        ("parallel=dp3", "parallel", "did you mean dp"),
        ("model={layers: 3}", "model", "presets of model: "),
        ("paralel=dp2", "paralel", "did you mean parallel?"),
        ("train.iteration=3", "train.iteration", "did you mean train.iterations?"),
        ("+train.colour=red", "train.colour", "train has: iterations"),
        ("train.iterations=[", "train.iterations", "Hydra's grammar"),
        ("seed=1,2", "seed", "one run for each"),
        ("hydra.run.dir=x", "hydra.run.dir", "run.dir"),
        ("chaos.faults.0.slot=1", "chaos.faults.0.slot", "the whole list"),
        ("checkpoint=s3", "checkpoint.url", "leaves this to you"),
        ("seed=${nowhere}", "overrides", "nowhere"),
    ],
)
def test_mistakes_name_the_key_and_the_remedy(override: str, key: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(override)
    assert caught.value.key == key
    assert remedy in caught.value.remedy


def test_bad_configuration_is_one_block_and_imports_no_torch() -> None:
    code = "import sys; from ftppo.__main__ import main; status = main(sys.argv[1:]); "
    code += "print(sorted({'torch', 'ray', 'megatron'} & set(sys.modules))); sys.exit(status)"
    done = subprocess.run(
        [sys.executable, "-c", code, "parallel.dp=3"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == program.BAD_CONFIG
    assert done.stdout == "[]\n"
    assert done.stderr.splitlines() == [
        "ftppo: this configuration cannot run",
        "  train.mini_batch=64: must be a multiple of 24 (parallel.dp=3 x train.micro_batch=8); nearest: 48 or 72",
    ]


def test_cfg_prints_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--cfg", "experiment=smoke", "seed=7"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert load_config(printed) == compose("experiment=smoke", "seed=7")
    assert set(printed) == set(Config.model_fields)


def test_help_lists_groups_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for names in program.presets().values() for name in names)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (0, 0),
        (1, 1),
        (ClusterError("no room"), 1),
        (ConfigError("cluster.standby", 9, "at most 8"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_status(outcome: int | BaseException, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(config: Config) -> int:
        seen.append(config)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    stand_in = types.ModuleType("ftppo.driver.launch")
    stand_in.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ftppo.driver.launch", stand_in)
    assert program.main(["seed=3"]) == status
    assert [config.seed for config in seen] == [3]

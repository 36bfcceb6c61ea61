"""The files of a run: their fields, what a resume keeps, what a fresh run sets aside."""

import json
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from ftppo.clock import FakeClock
from ftppo.driver.jsonfiles import read_lines
from ftppo.driver.record import CheckpointRecord, IterationMetrics, RecoveryRecord, Summary
from ftppo.driver.runfiles import RunFiles
from ftppo.types import StepResult, StepSpec


def test_an_event_has_exactly_the_fields_of_the_contract(tmp_path: Path) -> None:
    with RunFiles(tmp_path, FakeClock(5.0), resume=False) as files:
        files.at(generation=2, iteration=3, step=12)
        files.record("fault", reason="crash", slot=1)
        files.at(step=13)
        files.record("recovered", seconds=1.5)
    first, second = read_lines(tmp_path / "events.jsonl")
    where = {"time": 5.0, "generation": 2, "iteration": 3}
    assert first == where | {"step": 12, "slot": 1, "event": "fault", "reason": "crash", "seconds": None}
    assert second == where | {"step": 13, "slot": None, "event": "recovered", "reason": None, "seconds": 1.5}


def test_metrics_carry_kind_stamp_and_null_for_what_is_not_finite(tmp_path: Path) -> None:
    spec = StepSpec(step=9, iteration=2, kind="ppo", policy_lr=1e-4, critic_lr=2e-4, kl_coef=0.1)
    result = StepResult(0.5, float("nan"), 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    with RunFiles(tmp_path, FakeClock(5.0), resume=False) as files:
        files.at(generation=4)
        files.step(spec, result)
        files.step(StepSpec(0, 0, "warmup", 1e-3, 1e-3, 0.0), result)
        files.iteration(IterationMetrics(2, 12, reward_mean=0.25, kl=float("inf")))
    step, warmup, iteration = read_lines(tmp_path / "metrics.jsonl")
    assert [row["kind"] for row in (step, warmup, iteration)] == ["step", "warmup", "iteration"]
    assert (step["generation"], step["iteration"], step["step"]) == (4, 2, 9)
    assert (step["policy_loss"], step["value_loss"], step["critic_lr"]) == (0.5, None, 2e-4)
    assert (iteration["iteration"], iteration["reward_mean"], iteration["kl"], iteration["lr"]) == (2, 0.25, None, None)


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    with RunFiles(tmp_path, FakeClock(5.0), resume=False) as files:
        files.iteration(IterationMetrics(2, 12, reward_mean=0.25))
        (path,) = tmp_path.glob("*tfevents*")
        events = [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]  # while still being written
    values = {value.tag: (event.step, value.simple_value) for event in events for value in event.summary.value}
    assert values == {"iteration/reward_mean": (2, 0.25)}


def test_the_summary_is_the_contract_and_comes_back(tmp_path: Path, summary: Summary) -> None:
    with RunFiles(tmp_path, FakeClock(), resume=False) as files:
        files.summary(summary)
    row = json.loads((tmp_path / "summary.json").read_text())
    assert list(row) == [
        "run", "status", "reason", "iterations", "steps", "layout", "standby", "state_digest", "reward",
        "recoveries", "checkpoints",
    ]  # fmt: skip
    assert row["layout"] == {"dp": 2, "tp": 2, "pp": 1, "cp": 1}
    assert list(row["recoveries"][0]) == [
        "generation", "cause", "slots", "phase", "plan", "source", "lost_steps", "seconds",
    ]  # fmt: skip
    assert list(row["recoveries"][0]["seconds"]) == [
        "detect", "fence", "promote", "groups", "state", "first_step", "total",
    ]  # fmt: skip
    assert list(row["checkpoints"][0]) == ["step", "uri", "bytes", "stall_s", "total_s", "retries"]
    assert Summary.from_row(row) == summary


def test_a_resumed_run_goes_on_and_remembers(
    tmp_path: Path, peer_recovery: RecoveryRecord, old_recovery: RecoveryRecord, checkpoint: CheckpointRecord
) -> None:
    with RunFiles(tmp_path, FakeClock(), resume=False) as files:
        files.record("started")
        files.recovery(peer_recovery)
        files.checkpoint(checkpoint)
    with RunFiles(tmp_path, FakeClock(9.0), resume=True) as files:
        files.record("resumed")
        files.recovery(old_recovery)
        assert files.recoveries() == (peer_recovery, old_recovery)
        assert files.checkpoints() == (checkpoint,)
    assert [row["event"] for row in read_lines(tmp_path / "events.jsonl")] == ["started", "resumed"]


def test_a_fresh_run_sets_the_earlier_one_aside(run_folder: Path) -> None:
    (run_folder / "checkpoints").mkdir()
    for number in (1, 2):
        with RunFiles(run_folder, FakeClock(), resume=False) as files:
            files.record("started")
        assert len(read_lines(run_folder / "events.jsonl")) == 1
        assert not (run_folder / "summary.json").exists()
        assert (run_folder / f"earlier-{number}" / "events.jsonl").exists()
    assert (run_folder / "earlier-1" / "summary.json").exists()
    assert (run_folder / "checkpoints").is_dir()


def test_what_a_person_sees_needs_neither_torch_nor_ray_nor_tensorflow(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from ftppo.clock import SystemClock
from ftppo.driver import live, report
from ftppo.driver.runfiles import RunFiles
assert "tensorboard" not in sys.modules
with RunFiles(Path({str(tmp_path)!r}), SystemClock(), resume=False) as files:
    files.record("started")
print(sorted({{"torch", "ray", "tensorflow"}} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"

"""The files of a run, `runs/<name>/`. Comes in: events, metrics and records as they happen; goes out: events.jsonl,
metrics.jsonl, samples.jsonl, TensorBoard files, config.json, summary.json. A resumed run goes on in the same files.
"""

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ftppo.clock import Clock
from ftppo.driver.jsonfiles import JsonLines, read_lines, to_json, write_atomic
from ftppo.driver.record import (
    CheckpointRecord,
    EvalMetrics,
    EvalSample,
    IterationMetrics,
    RecoveryRecord,
    Stamp,
    Summary,
)
from ftppo.driver.scalars import ScalarWriter
from ftppo.errors import ConfigError

if TYPE_CHECKING:
    from ftppo.types import StepResult, StepSpec

EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.json"
REPORT = "report.html"
LOCK = ".driver.lock"  # held by the driver that writes here; the system lets go of it whatever ends the driver

BEGUN, ENDED = "driver_begun", "driver_ended"  # events; the second is missing where a driver was lost


class RunFiles:
    """Writers of one run. `at` says where the run stands; every line written after it carries that stamp.

    `driver_was_lost`: whether the driver before this one ended without a word; `num_steps_known` optimizer
    steps were committed before, and `num_iterations_known` iterations finished.
    """

    def __init__(self, folder: Path, clock: Clock, resume: bool) -> None:
        """Open the files in `folder`. Without `resume` those of an earlier run are first set aside, not mixed in."""
        folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            _set_aside(folder)
        self.folder = folder
        self.stamp = Stamp()
        self._clock = clock
        self._events = JsonLines(folder / EVENTS)
        self._metrics = JsonLines(folder / METRICS)
        self._scalars = ScalarWriter(folder, clock)
        told = [row["event"] for row in read_lines(folder / EVENTS) if row.get("event") in (BEGUN, ENDED)]
        self.driver_was_lost = told[-1:] == [BEGUN]
        self.num_steps_known = max((row["step"] + 1 for row in self._rows("step", "warmup")), default=0)
        self.num_iterations_known = max((row["iteration"] + 1 for row in self._rows("iteration")), default=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, generation: int | None = None, iteration: int | None = None, step: int | None = None) -> None:
        """The run stands here now; what is not given stays."""
        given = {"generation": generation, "iteration": iteration, "step": step}
        self.stamp = replace(self.stamp, **{key: value for key, value in given.items() if value is not None})

    def record(
        self, event: str, reason: str | None = None, slot: int | None = None, seconds: float | None = None
    ) -> None:
        """Something happened; `seconds` is how long it took, where it took time."""
        row = {"time": self._clock.now()} | asdict(self.stamp)
        self._events.append(row | {"slot": slot, "event": event, "reason": reason, "seconds": seconds})

    def iteration(self, metrics: IterationMetrics) -> None:
        """An iteration has finished."""
        self._write("iteration", asdict(metrics), metrics.iteration)

    def evaluation(self, metrics: EvalMetrics, samples: Sequence[EvalSample]) -> None:
        """An evaluation is complete."""
        with contextlib.closing(JsonLines(self.folder / SAMPLES)) as lines:
            for sample in samples:
                lines.append(asdict(sample))
        self._write("eval", metrics.to_row(), metrics.iteration)

    def step(self, spec: "StepSpec", result: "StepResult") -> None:
        """An optimizer step has committed."""
        kind = "warmup" if spec.kind == "warmup" else "step"
        row = {"iteration": spec.iteration, "step": spec.step} | asdict(result)
        row |= {"policy_lr": spec.policy_lr, "critic_lr": spec.critic_lr, "kl_coef": spec.kl_coef}
        self._write(kind, row, spec.step)

    def shares(self, shares: Sequence[float]) -> None:
        """What each replica takes for its own work in a step, as a multiple of what the others take."""
        row = {f"replica_{dp}": share for dp, share in enumerate(shares)}
        self._write("share", row, self.stamp.step)

    def recovery(self, record: RecoveryRecord) -> None:
        """A recovery is over."""
        self._write("recovery", asdict(record))

    def checkpoint(self, record: CheckpointRecord) -> None:
        """A checkpoint is published."""
        self._write("checkpoint", asdict(record))

    def recoveries(self) -> tuple[RecoveryRecord, ...]:
        """All recoveries of this run, those before a resume included."""
        return self._read("recovery", RecoveryRecord.from_row)

    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """All checkpoints published by this run, those before a resume included."""
        return self._read("checkpoint", CheckpointRecord.from_row)

    def evaluations(self) -> tuple[EvalMetrics, ...]:
        """All evaluations of this run, those before a resume included."""
        return self._read("eval", EvalMetrics.from_row)

    def reasons(self, event: str) -> tuple[str, ...]:
        """The reasons of all events of this kind so far, those before a resume included."""
        return tuple(str(row["reason"]) for row in read_lines(self.folder / EVENTS) if row.get("event") == event)

    def config(self, config: dict[str, Any]) -> None:
        """Write config.json."""
        write_atomic(self.folder / CONFIG, to_json(config, indent=2) + "\n")

    def summary(self, summary: Summary) -> None:
        """Write summary.json, whole or not at all."""
        write_atomic(self.folder / SUMMARY, to_json(summary.to_row(), indent=2) + "\n")

    def close(self) -> None:
        """Let go of the files; again does nothing."""
        self._events.close()
        self._metrics.close()
        self._scalars.close()

    def _write(self, kind: str, row: dict[str, Any], at: int | None = None) -> None:
        """One line of metrics.jsonl; where there is an `at`, TensorBoard gets the numbers too, with it as their x."""
        self._metrics.append({"kind": kind, "time": self._clock.now()} | asdict(self.stamp) | row)
        if at is not None:
            numbers = {key: value for key, value in row.items() if isinstance(value, float)}
            self._scalars.add(at, {f"{kind}/{key}": value for key, value in numbers.items()})

    def _rows(self, *kinds: str) -> Iterator[dict[str, Any]]:
        return (row for row in read_lines(self.folder / METRICS) if row.get("kind") in kinds)

    def _read[T](self, kind: str, build: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
        return tuple(build(row) for row in self._rows(kind))


@contextlib.contextmanager
def sole_driver(folder: Path) -> Iterator[None]:
    """Nobody else may write in `folder` meanwhile. Raises ConfigError where another driver does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = f"another driver is at work in {folder}: wait for its end, or take another name"
            raise ConfigError("run.name", folder.name, remedy) from None
        yield


def _set_aside(folder: Path) -> None:
    """Move the files of an earlier run into the first free `earlier-<n>` below `folder`."""
    written = [folder / name for name in (EVENTS, METRICS, SAMPLES, SUMMARY, CONFIG, REPORT)] + [
        *folder.glob("*.tfevents.*")
    ]
    found = [path for path in written if path.exists()]
    if not found:
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    target = folder / f"earlier-{number}"
    target.mkdir()
    for path in found:
        path.rename(target / path.name)

"""A run read back from its files. Comes in: a run's folder, finished or not; goes out: a RunHistory, in the order that
things happened. An iteration that was run again counts once: its last attempt; earlier ones are kept apart.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftppo.driver.jsonfiles import read_lines
from ftppo.driver.record import CheckpointRecord, EvalMetrics, IterationMetrics, RecoveryRecord, Summary
from ftppo.driver.runfiles import CONFIG, EVENTS, METRICS, SAMPLES, SUMMARY

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class RunHistory:
    """All that is known of a run. `superseded` holds unbroken runs of attempts, after the iteration before each."""

    name: str
    summary: Summary | None  # None: not finished
    iterations: list[IterationMetrics]  # the attempt that counts, by iteration
    superseded: list[list[IterationMetrics]]
    recoveries: list[tuple[RecoveryRecord, int | None]]  # with the iteration that it fell into
    checkpoints: list[CheckpointRecord]
    evaluations: list[EvalMetrics]
    samples: Rows  # of the last evaluation
    events: Rows
    config: list[tuple[str, str]]  # dotted keys and their values
    start: float | None  # seconds since the epoch
    seconds: float | None  # from the first record to the last


def read_history(folder: Path) -> RunHistory:
    """Read what there is in `folder`; a file that is missing leaves its part empty."""
    metrics, events = read_lines(folder / METRICS), read_lines(folder / EVENTS)
    summary = Summary.from_row(_read_json(folder / SUMMARY)) if (folder / SUMMARY).exists() else None
    attempts = [IterationMetrics.from_row(row) for row in metrics if row["kind"] == "iteration"]
    recoveries = [RecoveryRecord.from_row(row) for row in metrics if row["kind"] == "recovery"]
    checkpoints = [CheckpointRecord.from_row(row) for row in metrics if row["kind"] == "checkpoint"]
    evaluations = [EvalMetrics.from_row(row) for row in metrics if row["kind"] == "eval"]
    newest = evaluations[-1].iteration if evaluations else None
    times = [row["time"] for row in metrics + events]
    counted = {attempt.iteration: attempt for attempt in attempts}
    return RunHistory(
        name=summary.run if summary else folder.resolve().name,
        summary=summary,
        iterations=[counted[key] for key in sorted(counted)],
        superseded=_superseded(attempts),
        recoveries=[(record, _iteration_of(record.generation, metrics)) for record in recoveries],
        checkpoints=checkpoints,
        evaluations=evaluations,
        samples=[row for row in read_lines(folder / SAMPLES) if row["iteration"] == newest],
        events=events,
        config=_flat(_read_json(folder / CONFIG)) if (folder / CONFIG).exists() else [],
        start=min(times, default=None),
        seconds=max(times) - min(times) if times else None,
    )


def _superseded(attempts: list[IterationMetrics]) -> list[list[IterationMetrics]]:
    """The attempts that a later one of the same iteration replaced, in unbroken runs."""
    last = {attempt.iteration: place for place, attempt in enumerate(attempts)}
    runs: list[list[IterationMetrics]] = []
    open_run = False
    for place, attempt in enumerate(attempts):
        lost = last[attempt.iteration] != place
        if lost and open_run and runs[-1][-1].iteration < attempt.iteration:
            runs[-1].append(attempt)
        elif lost:
            before = [one for one in attempts[max(0, place - 1) : place] if one.iteration < attempt.iteration]
            runs.append([*before, attempt])
        open_run = lost
    return runs


def _iteration_of(generation: int, metrics: Rows) -> int | None:
    """The iteration that stood when `generation` began: the one of the first record that carries it."""
    return next((row["iteration"] for row in metrics if row["generation"] == generation), None)


def _read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict), path
    return value


def _flat(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested mapping as dotted keys and values in JSON."""
    rows = []
    for key, value in config.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False)))
    return rows

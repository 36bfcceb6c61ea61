"""The account of each recovery. Comes in: when what happened; goes out: a RecoveryRecord, once the recovery is over.

A recovery is over when the step that the fault interrupted has been run again.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, cast, get_args

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

from ftppo.clock import Clock
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken
from ftppo.driver.record import RecoveryRecord, RecoverySeconds
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.faults import Fault, FaultKind
from ftppo.plan.recovery import Grow, Reshape, Shrink, Source, Substitute
from ftppo.worker.actor import FAULT_TIME_KEY

Phase = Literal["rollout", "score", "update", "save", "idle"]


class Stopwatch:
    """Splits time into named laps; a lap of a name seen before adds to it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.started = self.last = clock.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self.clock.monotonic()
        self.laps[name] = self.laps.get(name, 0.0) + now - self.last
        self.last = now


@dataclasses.dataclass
class _Open:
    """A recovery whose interrupted step has not been run again yet."""

    record: RecoveryRecord
    began: float  # monotonic: when the fault struck
    resumed: float  # monotonic: when work went on
    until_step: int  # committed when this many steps are


class Accounts:
    """The recoveries of a run."""

    def __init__(self, files: RunFiles, display: Display, clock: Clock) -> None:
        self.files, self.display, self.clock = files, display, clock
        self._open: list[_Open] = []

    def open(self, record: RecoveryRecord, began: float, until_step: int) -> None:
        """Work goes on after a recovery from the fault that struck at `began`, on the monotonic clock."""
        self._open.append(_Open(record, began, self.clock.monotonic(), until_step))

    def step_committed(self, num_steps: int) -> None:
        """`num_steps` optimizer steps are committed: recoveries whose interrupted step is among them are over."""
        for one in [one for one in self._open if one.until_step <= num_steps]:
            self.close(one)

    def close_all(self) -> None:
        """The run ends: what interrupted no step is over too."""
        for one in list(self._open):
            self.close(one)

    def close(self, one: _Open) -> None:
        """Account for a finished recovery."""
        self._open.remove(one)
        now = self.clock.monotonic()
        seconds = dataclasses.replace(one.record.seconds, first_step=now - one.resumed, total=now - one.began)
        record = dataclasses.replace(one.record, seconds=seconds)
        self.files.recovery(record)
        self.files.record("recovered", record.cause, seconds=record.seconds.total)
        self.display.recovery(record)

    def fault_time(self, noticed: float) -> float:
        """When the fault struck, on the monotonic clock: as the injector left word, else when it was noticed."""
        word = cast("bytes | None", _internal_kv_get(FAULT_TIME_KEY, namespace=b"ftppo"))
        if word is None:
            return noticed
        _internal_kv_del(FAULT_TIME_KEY, namespace=b"ftppo")
        return noticed - max(0.0, self.clock.now() - float(word))


def record_of(
    faults: Sequence[Fault],
    plan: Substitute | Reshape,
    source: Source,
    phase: Phase,
    lost: int,
    watch: Stopwatch,
    began: float,
) -> RecoveryRecord:
    """The record of a recovery that `plan` was carried out for, its first step still to come."""
    laps = dict(watch.laps)
    laps["detect"] = laps.get("detect", 0.0) + watch.started - began
    return RecoveryRecord(
        generation=plan.roster.generation,
        cause="; ".join(f"{fault.kind}: {fault.reason}" for fault in faults) or plan.reason,
        slots=tuple(fault.slot for fault in faults) or (tuple(plan.takers) if isinstance(plan, Grow) else ()),
        phase=phase,
        plan=_NAMES[type(plan)],
        source=source,
        lost_steps=lost,
        seconds=RecoverySeconds(**laps),
    )


def restart_record(generation: int, source: Source, lost: int, watch: Stopwatch) -> RecoveryRecord:
    """The record of a run whose last driver was lost, and which another one goes on with."""
    return RecoveryRecord(
        generation=generation,
        cause=f"{FaultKind.DRIVER_LOST}: the last driver ended without a word",
        slots=(),
        phase="idle",
        plan="restart",
        source=source,
        lost_steps=lost,
        seconds=RecoverySeconds(**watch.laps),
    )


_NAMES: dict[type, Literal["substitute", "shrink", "grow"]] = {
    Substitute: "substitute",
    Shrink: "shrink",
    Grow: "grow",
}


def phase_of(broken: GenerationBroken) -> Phase:
    """The phase of an iteration that the break interrupted."""
    name = broken.phase.partition(".")[0]
    return name if name in get_args(Phase) else "idle"  # type: ignore[return-value]

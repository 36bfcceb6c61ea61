"""What a lost rank costs, against stopping everything and starting again from the checkpoint. Comes in: rounds.

The whole program runs with as many kills as there are rounds, one slot after the other, each in the backward pass of an
update; the parts of a recovery are those of summary.json. Then the same command is stopped and started again, as often
as there are kills up to five: from the start of the process to the first optimizer step that is done.
"""

import json
import signal
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ftppo.clock import SystemClock
from ftppo.driver.jsonfiles import read_lines
from ftppo.driver.record import RECOVERY_PHASES
from ftppo.driver.runfiles import METRICS
from tests.faults.program import Outcome, Program
from tests.sandbox import Sandbox

FIRST, GAP = 2, 4  # iteration of the first kill, iterations between two
MOST_RESTARTS = 5
LAYOUTS = {"dp2 tp2": ("dp2tp2", 4), "dp2 tp2 pp2": ("dp2tp2pp2", 8)}
BASE = ("experiment=demo", "train.warmup_steps=0", "cluster=cpu", "cluster.standby=2", "cluster.address=local")


@dataclass(frozen=True)
class Cost:
    """Medians, in seconds. `parts` are those of a recovery, `step` is what one optimizer step takes."""

    case: str
    num: int
    parts: dict[str, float]
    step_s: float
    restart_s: float

    @property
    def less_step_s(self) -> float:
        """The whole recovery but for the step that is run again."""
        return self.parts["total"] - self.step_s

    def row(self) -> list[str]:
        """A line of the table."""
        seconds = [*(self.parts[name] for name in (*RECOVERY_PHASES, "total")), self.step_s, self.less_step_s]
        ratio = (self.restart_s - self.step_s) / self.less_step_s
        return [self.case, str(self.num), *(f"{one:.2f}" for one in seconds), f"{self.restart_s:.1f}", f"{ratio:.0f}"]


def compare(rounds: int) -> str:
    """A table with a row for each layout."""
    head = ["case", "kills", *RECOVERY_PHASES, "total", "step", "less step", "restart", "ratio"]
    rows = [head, *(_cost(case, *layout, rounds).row() for case, layout in LAYOUTS.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(["recovery: a rank is killed, median seconds", *(f"  {line}" for line in lines)])


def _cost(case: str, parallel: str, num_slots: int, rounds: int) -> Cost:
    places = [(FIRST + GAP * number, (3 * number + 1) % num_slots) for number in range(rounds)]
    faults = [
        {"iteration": iteration, "phase": "update.backward", "slot": slot, "kind": "sigkill"}
        for iteration, slot in places
    ]
    command = (*BASE, f"parallel={parallel}", f"chaos.faults={json.dumps(faults).replace('"', '')}")
    with tempfile.TemporaryDirectory(prefix="ftppo-bench-") as folder, Sandbox() as sandbox:
        with Program(sandbox, Path(folder), *command, f"train.iterations={places[-1][0] + GAP}") as program:
            done = program.wait(3600.0)
        assert done.status == 0, done.output
        cost = _read(case, done)
        longer = (*command, f"train.iterations={places[-1][0] + 1000}")
        restarts = [_restart(sandbox, Path(folder), longer) for _ in range(min(rounds, MOST_RESTARTS))]
    return replace(cost, restart_s=statistics.median(restarts))


def _read(case: str, done: Outcome) -> Cost:
    """All but what a restart costs."""
    found = [vars(one.seconds) for one in done.summary.recoveries]
    parts = {name: statistics.median(one[name] for one in found) for name in (*RECOVERY_PHASES, "total")}
    iterations = done.rows("iteration")
    num_steps = sum(row["iteration"] == 0 for row in done.rows("step"))
    step_s = statistics.median(row["update_s"] for row in iterations) / num_steps
    return Cost(case, len(found), parts, step_s, restart_s=0.0)


def _restart(sandbox: Sandbox, folder: Path, command: tuple[str, ...]) -> float:
    """Seconds from the start of the program, which goes on from its checkpoint, to a step that is done."""
    clock, metrics = SystemClock(), folder / "run" / METRICS
    before, started = _num_steps(metrics), clock.monotonic()
    with Program(sandbox, folder, *command) as program:
        program.wait_until(lambda: _num_steps(metrics) > before, "a step was done")
        spent = clock.monotonic() - started
        program.process.send_signal(signal.SIGINT)
        program.wait()
    return spent


def _num_steps(metrics: Path) -> int:
    return sum(row["kind"] == "step" for row in read_lines(metrics))

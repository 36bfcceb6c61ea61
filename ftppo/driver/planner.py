"""From faults to a plan that can be carried out. Comes in: a roster and what struck it; goes out: a plan.

Here standbys are waited for, and here a run is given up: for want of them, of recoveries that are left, or of another
machine to try a fault on.
"""

from collections.abc import Collection, Sequence

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.announce import announce
from ftppo.driver.display import Display
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.standbys import Standbys
from ftppo.errors import ClusterError, RepeatedFault
from ftppo.plan.budget import refusal
from ftppo.plan.faults import NO_SLOT, Fault, FaultKind, Leave
from ftppo.plan.fitting import fitting
from ftppo.plan.recovery import GiveUp, Plan, Reshape, Substitute, Wait, plan_recovery
from ftppo.plan.roster import Roster
from ftppo.types import DriverState

POLL_S = 0.5


class Planner:
    """Plans for the recoveries of a run; keeps count of them, and of what was raised in which step."""

    def __init__(
        self, config: Config, pool: Pool, standbys: Standbys, files: RunFiles, display: Display, clock: Clock
    ) -> None:
        self.config, self.pool, self.standbys = config, pool, standbys
        self.files, self.display, self.clock = files, display, clock
        self._begun: list[tuple[float, Collection[FaultKind]]] = []  # attempts too: one that never succeeds must end
        self._raised: dict[int, set[str]] = {}  # version -> what was raised in the step after it

    def plan(
        self, roster: Roster, faults: Sequence[Fault], in_order: bool, in_memory: bool, has_checkpoint: bool
    ) -> Substitute | Reshape:
        """A plan that can be carried out now. Lost actors are retired, and standbys waited for while it is to wait.

        `in_order`: nothing went wrong, slots are to move. `in_memory`: all slots' state is in living actors' memory.
        Raises the plan's error where it gives up; the last checkpoint is untouched.
        """
        refused = self._count(faults, in_order)
        for fault in faults:
            if fault.slot != NO_SLOT and fault.leave is None:
                self.pool.retire(roster.actor(fault.slot))  # its bundle comes free for another
        self.standbys.knock()
        roster = self.present(roster)

        def plan() -> Plan:
            return plan_recovery(
                roster,
                faults,
                self._warm(roster, faults),
                when_short=self.config.recovery.when_short,
                refused=refused,
                has_checkpoint=has_checkpoint,
                wanted_dp=self.config.parallel.dp,
                holders=dict.fromkeys(range(roster.layout.world), True) if in_memory else None,
            )

        until = self.clock.monotonic() + self.config.recovery.standby_s
        while isinstance(found := plan(), Wait):
            if self.clock.monotonic() < until:
                self.display.phase("wait", found.reason)
                self.standbys.begin(roster)
                roster = self.standbys.tend(roster, POLL_S)
            else:
                roster = self._without_cold(roster, found)
        if isinstance(found, GiveUp):
            raise found.error
        return found

    def make_room(self, roster: Roster, faults: Sequence[Fault]) -> None:
        """End who was told to leave where too few stand by: its place is the only one for who comes after it.

        Its buddy has its state. Where there are enough, it lives on until its state has been handed over.
        """
        told = [roster.actor(fault.slot) for fault in faults if fault.leave is Leave.TOLD]
        if len(self.present(roster).standby) < len({fault.slot for fault in faults}):
            for name in told:
                self.pool.retire(name)

    def present(self, roster: Roster) -> Roster:
        """`roster` without standbys that are gone."""
        return roster.without_standby([name for name in roster.standby if name not in self.pool.members])

    def refuse_repetition(self, faults: Sequence[Fault], state: DriverState) -> None:
        """Raise RepeatedFault for an exception that another actor has raised in the same step before."""
        said = {fault.reason.partition(": ")[2] for fault in faults if fault.kind == FaultKind.EXCEPTION}
        before = self._raised.get(state.version, set())
        again = said & before
        if again:
            raise RepeatedFault(f"{'; '.join(sorted(again))} (again in step {state.step}, on another actor)")
        self._raised = {state.version: before | said}

    def _count(self, faults: Sequence[Fault], in_order: bool) -> str | None:
        """Why no recovery may begin, if so. It counts as one, unless nothing has gone wrong."""
        if in_order and all(fault.leave is not None for fault in faults):
            return None
        self._begun.append((self.clock.monotonic(), {fault.kind for fault in faults}))
        recovery = self.config.recovery
        return refusal(self._begun, recovery.max_recoveries, recovery.max_per_hour)

    def _warm(self, roster: Roster, faults: Sequence[Fault]) -> list[str]:
        """Standbys that could take a slot at once, each as far as can be where it takes the one it is built for."""
        warm = [name for name in self.pool.promotable() if roster.stands_by(name)]
        built_for = {name: self.pool.members[name].built_for for name in warm}
        return fitting(sorted({fault.slot for fault in faults}), warm, built_for)

    def _without_cold(self, roster: Roster, plan: Wait) -> Roster:
        """The waiting is over: those that have not become warm are given up. Raises where there are none."""
        limit = f"recovery.standby_s={self.config.recovery.standby_s:g} s"
        cold = [name for name in roster.standby if name not in self.pool.warm]
        if not cold:
            remedy = "add machines, raise it, or take recovery=shrink"
            raise ClusterError(f"{plan.reason}; none came within {limit}: {remedy}")
        for name in cold:
            self.pool.retire(name)
            announce(self.files, self.display, "standby_failed", f"{name}: not warm within {limit}")
        return self.present(roster)

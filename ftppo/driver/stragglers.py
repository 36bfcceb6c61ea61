"""Watches for replicas that are slow. Comes in: what each slot took for its own work in a step, as the answers to the
step say; goes out: each replica's share in the metrics, an event for a straggler, and the slots to replace.
"""

from ftppo.config import Config
from ftppo.driver.announce import announce
from ftppo.driver.display import Display
from ftppo.driver.mesh import Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.text import count
from ftppo.plan.roster import Roster
from ftppo.plan.stragglers import shares, stragglers

STRAGGLER = "straggler"  # the event


class Stragglers:
    """Those of a run."""

    def __init__(self, config: Config, files: RunFiles, display: Display) -> None:
        self._recovery, self.files, self.display = config.recovery, files, display
        self._paces: list[list[float]] = []  # of the steps since the last look: seconds a token, by slot
        self._generation: int | None = None
        self._told: set[str] = set()  # actors
        self._to_go: list[dict[int, float]] = []

    def to_go(self, roster: Roster) -> list[dict[int, float]]:
        """The replicas that are to be replaced, as slot -> the replica's share, the slowest first."""
        return self._to_go if roster.generation == self._generation else []

    def step_done(self, mesh: Mesh) -> None:
        """A step has ended; every recovery.straggler_steps of one generation, look who is slow."""
        recovery, roster = self._recovery, mesh.roster
        if not recovery.straggler_ratio or roster.layout.dp == 1:
            return
        if roster.generation != self._generation:
            self._generation, self._paces, self._to_go = roster.generation, [], []
        if len(mesh.work) == roster.layout.world:
            self._paces.append([mesh.work[slot].pace for slot in range(roster.layout.world)])
        if len(self._paces) >= recovery.straggler_steps:
            self._look(roster)
            self._paces = []

    def _look(self, roster: Roster) -> None:
        found = shares(self._paces, roster.layout)
        self.files.shares(found)
        slow = stragglers(found, self._recovery.straggler_ratio)
        for dp in slow:
            self._tell(roster, dp, found[dp])
        if self._recovery.replace_stragglers:
            self._to_go = [dict.fromkeys(roster.layout.dp_replica(dp), found[dp]) for dp in slow]

    def _tell(self, roster: Roster, dp: int, share: float) -> None:
        slots = roster.layout.dp_replica(dp)
        actors = {roster.actor(slot) for slot in slots}
        if actors & self._told:
            return
        self._told |= actors
        who = roster.layout.describe(slots[0]) if len(slots) == 1 else f"dp {dp} (slots {', '.join(map(str, slots))})"
        steps = count(len(self._paces), "step")
        reason = f"{who} takes {share:.1f} times as long for its own work as the others (median of {steps})"
        announce(self.files, self.display, STRAGGLER, reason)

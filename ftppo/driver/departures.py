"""Moves slots to standbys between two steps, with nothing lost. Comes in: a mesh; goes out: nothing, or the
GenerationBroken in good order by which recovery puts standbys in their places.

Who goes: actors that were told to (SIGTERM), actors on nodes that are about to go, and stragglers where that is wanted.
The last two stay while there are not enough warm standbys for them, or no snapshots to move by: they still work.
"""

from collections.abc import Mapping
from typing import Any

from ftppo.clock import Clock
from ftppo.driver.announce import announce
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.standbys import Standbys
from ftppo.driver.stragglers import Stragglers
from ftppo.driver.text import count
from ftppo.plan.departures import going
from ftppo.plan.faults import Leave, Observation

DRAINING = "node_draining"  # the event
NODE_WORDS = "its node is about to go"


class Departures:
    """Those of a run."""

    def __init__(
        self, standbys: Standbys, stragglers: Stragglers, files: RunFiles, display: Display, clock: Clock
    ) -> None:
        self.standbys, self.stragglers, self.pool = standbys, stragglers, standbys.pool
        self.files, self.display, self.clock = files, display, clock
        self._told: set[str] = set()  # nodes

    def due(self, mesh: Mesh) -> bool:
        """Whether somebody is to go."""
        return bool(self._going(mesh))

    def run_if_due(self, mesh: Mesh, version: int) -> None:
        """Have them go, once their buddies have copies of `version`, which is the newest. Raises GenerationBroken."""
        if not self.due(mesh):
            return
        self.standbys.knock()
        seen = self._going(mesh)
        if seen:
            mesh.call("hand_over", version, phase="idle")
            raise GenerationBroken(seen, "idle", mesh.roster, in_order=True)

    def _going(self, mesh: Mesh) -> list[Observation]:
        """Who goes now, and why, by slot."""
        draining, slow = self.pool.draining(), self.stragglers.to_go(mesh.roster)
        if not mesh.leaving and not draining and not slow:
            return []
        on_node = self._slots_by_node(mesh, draining)
        num_warm = len(self.pool.promotable())
        self._tell(draining, on_node, num_warm)

        def seen(slot: int, **why: Any) -> Observation:
            return Observation(slot, mesh.roster.actor(slot), process_dead=False, **why)

        found = {slot: seen(slot, share=share) for replica in slow for slot, share in replica.items()}
        on_nodes = [slot for slots in on_node.values() for slot in slots]
        found |= {slot: seen(slot, leave=Leave.BETTER, exit_detail=NODE_WORDS) for slot in on_nodes}
        found |= {slot: seen(slot, leave=Leave.TOLD) for slot in mesh.leaving}
        better = [*on_node.values(), *slow] if mesh.buddy_of else []
        return [found[slot] for slot in going(mesh.leaving, better, num_warm, mesh.buddy_of)]

    def _slots_by_node(self, mesh: Mesh, draining: Mapping[str, float | None]) -> dict[str, list[int]]:
        """The slots on each of these nodes, the node that goes first in front."""
        found: dict[str, list[int]] = {}
        for node in sorted(draining, key=lambda node: (draining[node] or float("inf"), node)):
            found[node] = [slot for slot, name in enumerate(mesh.roster.slots) if self.pool.node_of(name) == node]
        return {node: slots for node, slots in found.items() if slots}

    def _tell(self, draining: Mapping[str, float | None], on_node: Mapping[str, list[int]], num_warm: int) -> None:
        """Say of each node once that it is about to go, and what becomes of its slots."""
        for node, slots in on_node.items():
            if node in self._told:
                continue
            self._told.add(node)
            until = draining[node]
            within = f" in {max(0.0, until - self.clock.now()):.0f} s" if until is not None else ""
            words = f"node {node[:8]} is about to go{within}, with slots {', '.join(map(str, slots))}"
            if len(slots) > num_warm:
                words += f"; they stay until {count(len(slots), 'standby')} elsewhere are warm"
            announce(self.files, self.display, DRAINING, words)

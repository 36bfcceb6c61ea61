"""Moves slots to standbys between two steps, with nothing lost. Comes in: a mesh; goes out: nothing, or the
GenerationBroken in good order by which recovery puts standbys in their places.

Who goes: actors that were told to (SIGTERM), actors on nodes that are about to go, and stragglers where that is wanted.
The last two stay while there are not enough warm standbys for them: they still work.
"""

from collections.abc import Mapping

from ftppo.clock import Clock
from ftppo.driver.announce import announce
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.stragglers import Stragglers
from ftppo.driver.text import count
from ftppo.plan.departures import going
from ftppo.plan.faults import Observation

DRAINING = "node_draining"  # the event
NODE_WORDS = "its node is about to go"


class Departures:
    """Those of a run."""

    def __init__(self, pool: Pool, stragglers: Stragglers, files: RunFiles, display: Display, clock: Clock) -> None:
        self.pool, self.stragglers, self.files, self.display, self.clock = pool, stragglers, files, display, clock
        self._told: set[str] = set()  # nodes

    def due(self, mesh: Mesh) -> bool:
        """Whether somebody is to go."""
        return bool(self._going(mesh))

    def run_if_due(self, mesh: Mesh) -> None:
        """Have them go, once their buddies have their newest copies. Raises GenerationBroken."""
        slots = self._going(mesh)
        if not slots:
            return
        seen = [self._seen(mesh, slot) for slot in slots]  # now: who is to go may be told otherwise after the wait
        mesh.call("settle", phase="idle")
        raise GenerationBroken(seen, "idle", mesh.roster)

    def _seen(self, mesh: Mesh, slot: int) -> Observation:
        name = mesh.roster.actor(slot)
        if slot in mesh.leaving:
            return Observation(slot, name, process_dead=False, leaving=True)
        if self.pool.node_of(name) in self.pool.draining():
            return Observation(slot, name, process_dead=False, leaving=True, exit_detail=NODE_WORDS)
        share = next(replica[slot] for replica in self.stragglers.to_go(mesh.roster) if slot in replica)
        return Observation(slot, name, process_dead=False, share=share)

    def _going(self, mesh: Mesh) -> list[int]:
        draining, slow = self.pool.draining(), self.stragglers.to_go(mesh.roster)
        if not mesh.leaving and not draining and not slow:
            return []
        on_node = self._slots_by_node(mesh, draining)
        num_warm = len(self.pool.promotable())
        self._tell(draining, on_node, num_warm)
        return going(mesh.leaving, [*on_node.values(), *slow], num_warm, mesh.buddy_of)

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

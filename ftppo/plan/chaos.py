"""Which faults to inject, where and when. Comes in: the configured faults; goes out: those due now, each once a run."""

from dataclasses import dataclass, replace

from ftppo.config import Fault, FaultPhase
from ftppo.plan.topology import Layout


@dataclass(frozen=True)
class ChaosSchedule:
    """The faults of a run. `spent` are the indices of those handed out; a driver that resumes a run hands it on."""

    faults: tuple[Fault, ...] = ()
    spent: frozenset[int] = frozenset()

    def take(self, iteration: int, phase: FaultPhase) -> tuple[tuple[Fault, ...], "ChaosSchedule"]:
        """The faults due in this phase of this 0-based iteration and not handed out yet; the schedule without them."""
        due = [
            index
            for index, fault in enumerate(self.faults)
            if index not in self.spent and (fault.iteration, call_of(fault.phase)) == (iteration, phase)
        ]
        return tuple(self.faults[index] for index in due), replace(self, spent=self.spent.union(due))


def call_of(phase: str) -> str:
    """The phase of an iteration whose calls a fault of this phase strikes in: snapshots are taken in the update."""
    return "update" if phase == "snapshot" else phase.partition(".")[0]


def targets(fault: Fault, layout: Layout) -> tuple[int, ...]:
    """The slots to hit: a whole data-parallel replica for kill_dp_group, else the fault's own.

    For kill_node that is the slot whose node goes, for kill_driver the slot at whose moment the driver goes.
    """
    if fault.slot >= layout.world:
        return ()  # a mesh that has shrunk has no such slot
    if fault.kind == "kill_dp_group":
        return layout.dp_replica(layout.coordinate(fault.slot).dp)
    return (fault.slot,)

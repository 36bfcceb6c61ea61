"""What happened to a run. Comes in: an Observation of each slot, any part unknown; goes out: Faults with their reasons.

Victims are told from causes: who only lost a peer is not at fault, and nobody is accused for want of data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ftppo.plan.topology import Layout

NO_SLOT = -1  # of a fault that is no slot's, such as a lost driver

_MEMORY_ERRORS = frozenset({"MemoryError", "OutOfMemoryError"})  # Python's own, torch's
_NUMERIC_ERROR = "FloatingPointError"
# In the order of an iteration. A snapshot is of the step before it, and names it as its own.
_PHASES = {"load": 0, "build": 0, "rollout": 1, "score": 2, "update": 3, "snapshot": 4, "save": 5}


class FaultKind(StrEnum):
    """What a fault is judged to be."""

    CRASH = "crash"
    HANG = "hang"
    EXCEPTION = "exception"
    NODE_LOST = "node_lost"
    OOM = "oom"
    BAD_NUMERICS = "bad_numerics"
    CORRUPT = "corrupt"
    PREEMPTED = "preempted"
    STRAGGLER = "straggler"
    DRIVER_LOST = "driver_lost"


class Leave(StrEnum):
    """How an actor that works comes to leave its slot, between two steps."""

    TOLD = "told"  # it will be ended soon: it goes, whoever takes its place
    BETTER = "better"  # its node will be, or it is slow: it stays while there is nobody to take its place


class ExitKind(StrEnum):
    """Why a process ended, where the cluster says so."""

    OOM = "oom"  # ended by who watches the node's memory
    PREEMPTED = "preempted"  # the node was asked for
    FENCED = "fenced"  # ended by the driver, because it did not let go in time


@dataclass(frozen=True)
class ErrorView:
    """An exception inside an actor: its type's bare name, where, what it said, and the formatted traceback."""

    type: str
    phase: str
    message: str
    trace: str = ""


@dataclass(frozen=True)
class BeaconView:
    """How far a slot had come when last heard, and the seconds since it moved."""

    phase: str
    step: int
    micro: int
    age_s: float

    @property
    def progress(self) -> tuple[int, int, int]:
        """Orders positions in a run. The step leads, since phases come round again."""
        return self.step, _PHASES.get(self.phase, len(_PHASES)), self.micro

    def __str__(self) -> str:
        return f"{self.phase}, step {self.step}, micro-batch {self.micro}"


@dataclass(frozen=True)
class Observation:
    """All that is known of one slot after something broke. None is "not known", which is no evidence of anything.

    Example: Observation(slot=3, actor="a3", process_dead=True)
    """

    slot: int
    actor: str
    process_dead: bool | None = None
    exit_kind: ExitKind | None = None
    exit_detail: str | None = None  # of its end, or why it is to leave; for people, never judged
    error: ErrorView | None = None  # its own, or the PeerLost that it raised
    peer_lost: bool = False  # what it raised is the consequence of another's fault
    corrupt: bool | None = None  # True: its weights differ from what most of its replicas have
    leave: Leave | None = None  # it, or its node, was told to go
    share: float | None = None  # where it is to be replaced for that: of the time that other replicas take
    beacon: BeaconView | None = None  # the last one heard
    silent_s: float | None = None  # seconds since it owes an answer on the control group
    answered_control: bool | None = None
    node_alive: bool | None = None


@dataclass(frozen=True)
class Fault:
    """A judged observation. `reason` is a sentence for a person and begins with the slot.

    Where its actor works and only leaves its slot, `leave` says how.
    """

    slot: int
    kind: FaultKind
    reason: str
    leave: Leave | None = None


def judge(observations: Sequence[Observation], *, layout: Layout, hang_s: float) -> list[Fault]:
    """The causes among the observations, by slot; at most one a slot, and none where the evidence names nobody.

    `hang_s` is the longest time that a slot may stay where it is, in seconds. A slot that has stayed longer hangs if it
    is silent on the control group. Where that explains nothing, it hangs if it is behind every other slot heard of:
    the others then wait for it. Equal progress accuses nobody, since who waits and who hangs look alike; the fence
    tells them apart, and what it has to end comes back here with ExitKind.FENCED.
    """
    assert len({seen.slot for seen in observations}) == len(observations), "two observations of one slot"
    found: dict[int, tuple[FaultKind, str]] = {}
    for seen in observations:
        judged = _end(seen) or _error(seen) or _silence(seen, hang_s)
        if judged:
            found[seen.slot] = judged
    if not found:
        found = _laggard(observations, hang_s)
    of_slot = {seen.slot: seen for seen in observations}
    return [_fault(of_slot[slot], *found[slot], layout) for slot in sorted(found)]


def _end(seen: Observation) -> tuple[FaultKind, str] | None:
    """The process ended, or is about to."""
    if seen.node_alive is False:
        return FaultKind.NODE_LOST, "its node is gone"
    if seen.corrupt and not seen.process_dead:
        return FaultKind.CORRUPT, "its weights are not those of the other replicas"
    if not seen.process_dead:
        if seen.leave:
            return FaultKind.PREEMPTED, _how_it_ended(seen, "told to leave")
        slow = seen.share and f"its replica takes {seen.share:.1f} times as long as the others"
        return (FaultKind.STRAGGLER, slow) if slow else None
    if seen.exit_kind is ExitKind.OOM:
        return FaultKind.OOM, _how_it_ended(seen, "process ended for want of memory")
    if seen.exit_kind is ExitKind.PREEMPTED or seen.leave:
        return FaultKind.PREEMPTED, _how_it_ended(seen, "told to leave")
    if seen.error and not seen.peer_lost:
        return _error(seen)  # it said why before it ended
    if seen.exit_kind is ExitKind.FENCED:
        return FaultKind.HANG, _how_it_ended(seen, "did not let go of its groups in time and was ended")
    return FaultKind.CRASH, _how_it_ended(seen, "process died")


def _how_it_ended(seen: Observation, text: str) -> str:
    """`text`, with the first line of the detail."""
    detail = (seen.exit_detail or "").strip().partition("\n")[0]
    return f"{text}: {detail}" if detail else text


def _error(seen: Observation) -> tuple[FaultKind, str] | None:
    """It raised something of its own."""
    if seen.error is None or seen.peer_lost:
        return None
    error = seen.error
    said = f"{error.type} in {error.phase}: {error.message.strip().partition('\n')[0]}"
    if error.type in _MEMORY_ERRORS:
        return FaultKind.OOM, f"out of memory, {said}"
    return (FaultKind.BAD_NUMERICS if error.type == _NUMERIC_ERROR else FaultKind.EXCEPTION), said


def _silence(seen: Observation, hang_s: float) -> tuple[FaultKind, str] | None:
    """It owes an answer on the control group, and has owed it, or stood still, for too long."""
    # An idle slot may stand still for as long as the others work.
    stood_s = seen.beacon.age_s if seen.beacon and seen.beacon.phase != "idle" else 0.0
    still_s = max(seen.silent_s or 0.0, stood_s)
    if seen.answered_control is not False or still_s <= hang_s:
        return None
    last = f", last heard in {seen.beacon}" if seen.beacon else ""
    return FaultKind.HANG, f"has not answered or moved for {still_s:.1f} s (recovery.hang_s is {hang_s:g}){last}"


def _laggard(observations: Sequence[Observation], hang_s: float) -> dict[int, tuple[FaultKind, str]]:
    """The one slot that is behind all others heard of, if it works, is no victim, and has stood still for too long."""
    heard = [(seen, seen.beacon) for seen in observations if seen.beacon]
    # An idle slot has done its part or got no work yet: it is ahead of all who owe some.
    working = [(seen, beacon) for seen, beacon in heard if beacon.phase != "idle"]
    if not working or (len(heard) == 1 and len(observations) > 1):
        return {}
    seen, beacon = min(working, key=lambda pair: pair[1].progress)
    alone = sum(other.progress == beacon.progress for _, other in working) == 1
    if not alone or seen.peer_lost or beacon.age_s <= hang_s:
        return {}
    where = f"stands still in {beacon} for {beacon.age_s:.1f} s (recovery.hang_s is {hang_s:g})"
    return {seen.slot: (FaultKind.HANG, where + (", behind all others" if len(heard) > 1 else ""))}


def _fault(seen: Observation, kind: FaultKind, text: str, layout: Layout) -> Fault:
    leaves = kind in (FaultKind.PREEMPTED, FaultKind.STRAGGLER) and not seen.process_dead
    how = (seen.leave or Leave.BETTER) if leaves else None
    return Fault(seen.slot, kind, f"{layout.describe(seen.slot)}: {text}", how)

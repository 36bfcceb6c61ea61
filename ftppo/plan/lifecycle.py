"""What a run is doing, one small type a state. Comes in: what a state needs to go on; goes out: the same, as a value.

Starting -> Running <-> Recovering       any -> Finished | Failed
"""

from dataclasses import dataclass

from ftppo.plan.faults import Fault
from ftppo.plan.recovery import Plan
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout


@dataclass(frozen=True)
class Starting:
    """Actors come up; there is no roster yet."""

    layout: Layout
    num_standbys: int


@dataclass(frozen=True)
class Running:
    """Every slot of `roster` works in its generation."""

    roster: Roster


@dataclass(frozen=True)
class Recovering:
    """`roster` broke; `plan` is being carried out."""

    roster: Roster  # of the generation that broke
    faults: tuple[Fault, ...]
    plan: Plan
    since_s: float  # when the fault was noticed, on the monotonic clock
    phase: str  # what it interrupted: "rollout" | "score" | "update" | "save" | "idle"


@dataclass(frozen=True)
class Finished:
    """All iterations are done and saved."""

    roster: Roster


@dataclass(frozen=True)
class Failed:
    """The run ended before its time."""

    cause: BaseException


type State = Starting | Running | Recovering | Finished | Failed

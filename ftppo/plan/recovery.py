"""What to do about faults. Comes in: a roster, the faults, the warm standbys; goes out: one plan with its reason.

enough warm standbys -> Substitute      else who leaves for the better stays
else standbys still warming up -> Wait
else by when_short: wait -> Wait, shrink -> Shrink where a whole replica can be made, fail -> GiveUp
nothing lost, and standbys for the replicas that were dropped before -> Grow
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ftppo.errors import FtppoError, NotEnoughStandbys, TooManyRecoveries
from ftppo.plan.faults import NO_SLOT, Fault, Leave
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout

Source = Literal["peer", "checkpoint", "initial"]
WhenShort = Literal["fail", "wait", "shrink"]

_SHOWN = 3  # reasons, or takers, that a sentence names


@dataclass(frozen=True)
class Substitute:
    """Standbys take exactly the lost slots: `takers` is slot -> actor. Empty: the same actors build new groups."""

    takers: Mapping[int, str]
    roster: Roster  # of the next generation
    source: Source  # where the state of all slots comes from
    reason: str


@dataclass(frozen=True)
class Shrink:
    """The run goes on with fewer data-parallel replicas, all in a new layout."""

    dropped: tuple[int, ...]  # dp coordinates of the old layout
    roster: Roster  # of the next generation
    source: Source
    reason: str


@dataclass(frozen=True)
class Grow:
    """The run goes on with more data-parallel replicas, those that were dropped before."""

    takers: Mapping[int, str]  # slots of the new layout -> standbys
    roster: Roster  # of the next generation
    source: Source
    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing can be done before `missing` more standbys are warm."""

    missing: int
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """The run ends with `error`."""

    reason: str
    error: FtppoError


Reshape = Shrink | Grow
type Plan = Substitute | Reshape | Wait | GiveUp


def plan_recovery(
    roster: Roster,
    faults: Sequence[Fault],
    warm_standbys: Sequence[str],
    *,
    when_short: WhenShort,
    has_checkpoint: bool,
    refused: str | None = None,
    holders: Mapping[int, bool] | None = None,
    wanted_dp: int = 1,
) -> Plan:
    """The plan for one set of faults; the same arguments give the same plan.

    `warm_standbys` are standbys of `roster`, those to be used first in front; its other standbys are promised but not
    warm. `refused` is why no recovery may begin, if so. `holders` says of each slot, lost or not, whether a living
    actor holds its snapshot of the committed step, its own copy or its buddy's; a slot that it leaves out has none,
    None: there are no snapshots. Without faults the roster stays and the groups are rebuilt, unless warm standbys make
    up for replicas that are missing of `wanted_dp`.
    """
    assert all(roster.stands_by(actor) for actor in warm_standbys), "a warm standby that does not stand by"
    why = _why(faults)
    if refused is not None:
        return _give_up(f"{why}; {refused}", TooManyRecoveries)
    lost = _slots(faults)
    if len(lost) > len(warm_standbys):
        lost = _slots(fault for fault in faults if fault.leave is not Leave.BETTER)
    missing = len(lost) - len(warm_standbys)
    source = _source(roster, holders, has_checkpoint)
    if not lost and (dp := dp_within_reach(roster.layout, wanted_dp, len(warm_standbys))) > roster.layout.dp:
        return _grow(roster, dp, warm_standbys, source)
    if missing <= 0:
        return _substitute(roster, lost, warm_standbys, source, why)
    short = f"{why}; {len(lost)} slots lost, {len(warm_standbys)} standbys warm"
    if len(lost) <= len(roster.standby):
        return Wait(missing, f"{short}, {missing} more promised")
    if when_short == "wait":
        return Wait(missing, f"{short}: waiting for {missing} more")
    if when_short == "shrink":
        return _shrink(roster, lost, warm_standbys, source, short)
    return _give_up(f"{short}: raise cluster.standby, or set recovery.when_short=wait", NotEnoughStandbys)


def dp_within_reach(layout: Layout, wanted_dp: int, num_warm: int) -> int:
    """How many replicas there can be, up to `wanted_dp`, if warm standbys make new ones."""
    return min(max(wanted_dp, layout.dp), layout.dp + num_warm * layout.dp // layout.world)


def _grow(roster: Roster, dp: int, warm: Sequence[str], source: Source) -> Grow:
    """The replicas that are there keep their places; new ones come after them."""
    layout = roster.layout
    larger = dataclasses.replace(layout, dp=dp)
    slots, fillers, takers = [""] * larger.world, iter(warm), dict[int, str]()
    for replica in range(layout.dp):
        for new, old in zip(larger.dp_replica(replica), layout.dp_replica(replica), strict=True):
            slots[new] = roster.actor(old)
    for replica in range(layout.dp, dp):
        for new in larger.dp_replica(replica):
            slots[new] = takers[new] = next(fillers)
    standby = [actor for actor in roster.standby if actor not in set(slots)]
    reason = f"{len(warm)} standbys warm; layout {layout} becomes {larger}; state from {source}"
    return Grow(takers, roster.reshape(larger, slots, standby), source, reason)


def _substitute(roster: Roster, lost: Sequence[int], warm: Sequence[str], source: Source, why: str) -> Substitute:
    takers = dict(zip(lost, warm, strict=False))
    who = _listed([f"{actor} takes slot {slot}" for slot, actor in takers.items()]) or "all actors stay"
    return Substitute(takers, roster.replace(takers), source, f"{why}; {who}; state from {source}")


def _shrink(roster: Roster, lost: Sequence[int], warm: Sequence[str], source: Source, short: str) -> Shrink | GiveUp:
    """Keep the replicas that lost nothing; their actors keep their place within the replica.

    Where every replica lost a slot, the least damaged is filled up from standbys and from survivors of the others.
    """
    layout, gone = roster.layout, set(lost)
    num_lost = Counter(layout.coordinate(slot).dp for slot in lost)
    num_alive = layout.world - len(gone) + len(warm)
    dp = max(layout.dp - len(num_lost), min(1, num_alive * layout.dp // layout.world))
    if not dp:
        needs = f"those left make no whole replica of {layout.world // layout.dp}"
        return _give_up(f"{short}: {needs}: raise cluster.standby, or set recovery.when_short=wait", NotEnoughStandbys)
    ranked = sorted(range(layout.dp), key=lambda replica: (num_lost[replica], replica))
    kept, dropped = sorted(ranked[:dp]), tuple(sorted(ranked[dp:]))
    spares = [roster.actor(slot) for replica in dropped for slot in layout.dp_replica(replica) if slot not in gone]
    fillers = iter([*warm, *spares])
    smaller = dataclasses.replace(layout, dp=dp)
    slots = [""] * smaller.world
    for place, replica in enumerate(kept):
        for new, old in zip(smaller.dp_replica(place), layout.dp_replica(replica), strict=True):
            slots[new] = next(fillers) if old in gone else roster.actor(old)
    placed = set(slots)
    standby = [actor for actor in (*roster.standby, *spares) if actor not in placed]
    reason = f"{short}; layout {layout} becomes {smaller}; state from {source}"
    return Shrink(dropped, roster.reshape(smaller, slots, standby), source, reason)


def _source(roster: Roster, holders: Mapping[int, bool] | None, has_checkpoint: bool) -> Source:
    """The cheapest place that has the state of every slot, at one step."""
    if holders and all(holders.get(slot, False) for slot in range(roster.layout.world)):
        return "peer"
    return "checkpoint" if has_checkpoint else "initial"


def _slots(faults: Iterable[Fault]) -> list[int]:
    return sorted({fault.slot for fault in faults} - {NO_SLOT})


def _why(faults: Collection[Fault]) -> str:
    return _listed([fault.reason for fault in faults]) or "no slot is to blame"


def _listed(parts: Sequence[str]) -> str:
    """The first few in full, and how many more."""
    more = [f"and {len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
    return "; ".join([*parts[:_SHOWN], *more])


def _give_up(reason: str, kind: type[FtppoError]) -> GiveUp:
    return GiveUp(reason, kind(reason))

"""What the driver's own bookkeeping costs with thousands of slots. Comes in: rounds; goes out: a table.

No process and no Ray: actors and their answers are stood in for, on nodes of eight; what Ray takes to send a call and
to hand over its result comes on top. Processor time of the thread is counted, so that other load hardly matters. A row
is about linear if ten times the slots cost about ten times as much.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from ftppo.clock import SystemClock
from ftppo.driver.detect import survey
from ftppo.driver.dispatch import dispatch_of
from ftppo.driver.mesh import Mesh
from ftppo.plan.faults import BeaconView, Fault, FaultKind, Observation, judge
from ftppo.plan.holders import newest_common
from ftppo.plan.recovery import plan_recovery
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout, Place, buddies, order_places
from ftppo.types import Beacon, RolloutRequest, Scores, Sequences
from ftppo.worker.actor import Reply
from tests.bench.pairs import aligned

SMALL, LARGE = Layout(dp=125, tp=4, pp=2), Layout(dp=1_250, tp=4, pp=2)
NODE = 8  # slots of one
LOST = 100  # one of so many
ROWS, SEQ = 4, 64  # of a data shard
VERSION = 5

type Action = Callable[[], object]


def compare(rounds: int, small: Layout = SMALL, large: Layout = LARGE) -> str:
    """A row for each piece: milliseconds on both layouts, microseconds a slot on the large one, how much it grew."""
    rows = [["what the driver does", f"ms, {small.world:,} slots", f"ms, {large.world:,} slots", "us a slot", "growth"]]
    with patch.multiple("ray", wait=_all_at_once, get=_value):
        for name, prepare in WORK.items():
            small_s, large_s = (_median_s(prepare(layout), rounds) for layout in (small, large))
            figures = (small_s * 1e3, large_s * 1e3, large_s / large.world * 1e6, large_s / small_s)
            rows.append([name, *(f"{figure:,.2f}" for figure in figures)])
    return aligned(f"scale: bookkeeping of {large.world:,} slots, one in {LOST} lost", rows)


def _median_s(action: Action, rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        started = time.thread_time()
        action()
        taken.append(time.thread_time() - started)
    return statistics.median(taken)


def _place(layout: Layout) -> Action:
    places = [Place(f"a{index}", f"node-{index // NODE}", index % NODE) for index in range(layout.world)]
    random.Random(1).shuffle(places)
    return lambda: order_places(places, layout.tp)


def _pair(layout: Layout) -> Action:
    nodes = {slot: f"node-{slot // NODE}" for slot in range(layout.world)}
    return lambda: buddies(layout, nodes)


def _replace(layout: Layout) -> Action:
    roster = _roster(layout)
    takers = dict(zip(_lost(layout), roster.standby, strict=True))
    return lambda: roster.replace(takers)


def _judge_crash(layout: Layout) -> Action:
    lost = set(_lost(layout))
    seen = [
        Observation(slot, f"a{slot}", process_dead=slot in lost, peer_lost=slot not in lost)
        for slot in range(layout.world)
    ]
    return lambda: judge(seen, layout=layout, hang_s=60.0)


def _judge_hang(layout: Layout) -> Action:
    seen = [
        Observation(slot, f"a{slot}", answered_control=True, beacon=BeaconView("update", 3, min(slot, 1), 90.0))
        for slot in range(layout.world)
    ]
    return lambda: judge(seen, layout=layout, hang_s=60.0)


def _plan(layout: Layout) -> Action:
    roster, held = _roster(layout), dict.fromkeys(range(layout.world), True)
    faults = [Fault(slot, FaultKind.CRASH, f"{layout.describe(slot)}: process died") for slot in _lost(layout)]
    return lambda: plan_recovery(roster, faults, roster.standby, when_short="fail", has_checkpoint=True, holders=held)


def _hold(layout: Layout) -> Action:
    lost = set(_lost(layout))
    held = {
        f"a{buddy}": [(one, version) for one in (slot, buddy) for version in (VERSION - 1, VERSION)]
        for slot, buddy in buddies(layout).items()
        if buddy not in lost
    }
    slots = _roster(layout).slots
    return lambda: newest_common(slots, held)


def _dispatch(layout: Layout) -> Action:
    """Shards of a batch, and the one each slot gets; the collectors' results, joined."""
    num = ROWS * layout.dp
    request = RolloutRequest(0, torch.zeros(num, SEQ, dtype=torch.int64), torch.ones(num).long(), torch.arange(num))
    scores = Scores(*(torch.zeros(ROWS, SEQ) for _ in range(3)))
    dispatch = dispatch_of("mesh_shared")

    def action() -> None:
        shards = dispatch.shards(layout, request)
        for slot in range(layout.world):
            assert shards[dispatch.shard_of(layout, slot)] is not None
        dispatch.merge([scores for _ in dispatch.collectors(layout)])

    return action


def _call(layout: Layout) -> Action:
    """One call of the whole mesh, with all that the driver does around sending it and taking its results."""
    scores = Scores(*(torch.zeros(ROWS, SEQ) for _ in range(3)))
    handles = _handles(layout, call=Reply(scores, VERSION, False, True))
    mesh = Mesh(_roster(layout), handles, SystemClock(), 60.0)
    sequences = Sequences(torch.zeros(ROWS * layout.dp, SEQ, dtype=torch.int64), torch.zeros(ROWS * layout.dp, SEQ))
    return lambda: mesh.call("score", rows=sequences, via="mesh", phase="score")


def _sweep(layout: Layout) -> Action:
    handles = _handles(layout, beacon=Beacon(0, 0, "update", 3, 1, time.time()))
    roster = _roster(layout)
    return lambda: survey(roster, handles, {}, [], SystemClock(), 1.0)


WORK: dict[str, Callable[[Layout], Action]] = {
    "orders the places of actors": _place,
    "finds each slot a buddy": _pair,
    "judges a crash": _judge_crash,
    "judges a hang": _judge_hang,
    "finds the newest copies": _hold,
    "plans the recovery": _plan,
    "writes the next roster": _replace,
    "reads all beacons": _sweep,
    "cuts and joins a batch": _dispatch,
    "calls the whole mesh": _call,
}


def _roster(layout: Layout) -> Roster:
    standby = tuple(f"s{number}" for number, _ in enumerate(_lost(layout)))
    return Roster(0, layout, tuple(f"a{slot}" for slot in range(layout.world)), standby)


def _lost(layout: Layout) -> range:
    return range(0, layout.world, LOST)


class _Reference:
    """Stands in for the reference to a result that is there."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _handles(layout: Layout, **results: Any) -> Mapping[str, Any]:
    """Actors by name that answer each of these methods with its result."""
    methods = {name: _answering(value) for name, value in results.items()}
    handle = SimpleNamespace(**methods)
    return {f"a{slot}": handle for slot in range(layout.world)}


def _answering(value: Any) -> Any:
    return SimpleNamespace(remote=lambda *arguments: _Reference(value))


def _all_at_once(references: Sequence[_Reference], **_: Any) -> tuple[Sequence[_Reference], list[_Reference]]:
    return references, []


def _value(reference: _Reference, **_: Any) -> Any:
    return reference.value

"""Work grows with the slots and no faster: lines run, and slots and actor ids compared, are counted, not time."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from ftppo.plan.faults import BeaconView, Observation, judge
from ftppo.plan.holders import newest_common
from ftppo.plan.recovery import Shrink, Substitute, plan_recovery
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout, Place, buddies, order_places
from tests.work import Name, Slot, work


def mesh(dp: int) -> Layout:
    return Layout(dp=dp, tp=4, pp=2)


def roster_of(layout: Layout) -> Roster:
    names = tuple(Name(f"a{slot}") for slot in range(layout.world))
    return Roster(0, layout, names, tuple(Name(f"s{number}") for number in range(layout.world)))


def lose(dp: int) -> Callable[[], object]:
    """Half the slots of each of half the replicas crash, and standbys take them; or there are none, and it shrinks."""
    layout = mesh(dp)
    roster = roster_of(layout)
    dead = {slot for replica in range(0, dp, 2) for slot in layout.dp_replica(replica)[::2]}
    seen = [
        Observation(Slot(slot), actor, process_dead=slot in dead, peer_lost=slot not in dead)
        for slot, actor in enumerate(roster.slots)
    ]

    def action() -> None:
        faults = judge(seen, layout=layout, hang_s=1.0)
        assert len(faults) == len(dead)
        how: dict[str, Any] = {"when_short": "shrink", "has_checkpoint": True}
        assert isinstance(plan_recovery(roster, faults, roster.standby, **how), Substitute)
        alone = roster.without_standby(roster.standby)
        assert isinstance(plan_recovery(alone, faults, (), **how), Shrink)

    return action


def hang(dp: int) -> Callable[[], object]:
    seen = [Observation(slot, "", beacon=BeaconView("update", 3, min(slot, 1), 9.0)) for slot in range(mesh(dp).world)]
    return lambda: judge(seen, layout=mesh(dp), hang_s=1.0)


def place(dp: int) -> Callable[[], object]:
    places = [Place(f"a{index}", f"n{index // 8}", index % 8) for index in range(mesh(dp).world)]
    random.Random(1).shuffle(places)
    return lambda: order_places(places, 4)


def pair(dp: int) -> Callable[[], object]:
    nodes = {slot: f"n{slot // 8}" for slot in range(mesh(dp).world)}
    return lambda: buddies(mesh(dp), nodes)


def find(dp: int) -> Callable[[], object]:
    roster = roster_of(mesh(dp))
    others = [Name(actor) for actor in roster.actors]
    return lambda: [(roster.slot_of(actor), roster.stands_by(actor)) for actor in others]


def hold(dp: int) -> Callable[[], object]:
    """Every fourth slot is lost; its neighbour, which is not, holds two versions of it and what never changes."""
    slots: list[str] = [Name(f"a{slot}") for slot in range(mesh(dp).world)]
    held: dict[str, list[tuple[int, int]]] = {
        slots[slot]: [(Slot(one), version) for one in (slot, slot - 1) for version in (-1, 4, 5)]
        for slot in range(len(slots))
        if slot % 4
    }

    def action() -> None:
        found = newest_common(slots, held, [-1])
        assert found is not None and found.version == 5 and found.holder[0] == slots[1]

    return action


@pytest.mark.parametrize("task", [lose, hang, place, pair, find, hold], ids=lambda task: task.__name__)
def test_ten_times_the_slots_are_about_ten_times_the_work(task: Callable[[int], Callable[[], object]]) -> None:
    assert mesh(1250).world == 10_000
    small, large = work(task(125)), work(task(1250))
    assert large < 12 * small + 1000

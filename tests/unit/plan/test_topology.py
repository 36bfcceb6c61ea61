"""Slots, groups, buddies and the order of places."""

import itertools
import random
from collections import Counter

import pytest

from ftppo.plan.topology import Coordinate, GroupKind, Layout, Place, buddies, order_places

LAYOUTS = [Layout(), Layout(4, 1, 1, 1), Layout(2, 2, 1, 1), Layout(2, 2, 2, 1), Layout(1, 2, 2, 2), Layout(3, 2, 4, 2)]
MEGATRON_NAMES: dict[GroupKind, str] = {
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "pp": "pp",
    "dp_cp": "dp-cp",
    "mp": "tp-pp",
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_groups_are_those_of_megatron(layout: Layout) -> None:
    import inspect

    from megatron.core import parallel_state

    order = inspect.signature(parallel_state.initialize_model_parallel).parameters["order"].default
    generator = parallel_state.RankGenerator(layout.tp, 1, layout.dp, layout.pp, layout.cp, order)
    for kind, name in MEGATRON_NAMES.items():
        groups = generator.get_ranks(name)
        assert sorted(itertools.chain(*groups)) == list(range(layout.world))
        for members in groups:
            assert all(layout.group(kind, slot) == tuple(members) for slot in members), kind


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_coordinates_and_slots_are_one_to_one(layout: Layout) -> None:
    coordinates = [layout.coordinate(slot) for slot in range(layout.world)]
    assert [layout.slot(at) for at in coordinates] == list(range(layout.world))
    assert len(set(coordinates)) == layout.world == layout.dp * layout.tp * layout.pp * layout.cp


def test_outside_the_mesh_is_a_programmer_error() -> None:
    with pytest.raises(AssertionError):
        Layout(2, 2).coordinate(4)
    with pytest.raises(AssertionError):
        Layout(2, 2).slot(Coordinate(dp=2))
    with pytest.raises(AssertionError):
        Layout(0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_replicas_and_collectors(layout: Layout) -> None:
    replicas = [layout.dp_replica(dp) for dp in range(layout.dp)]
    assert sorted(itertools.chain(*replicas)) == list(range(layout.world))
    assert all(layout.coordinate(slot).dp == dp for dp, replica in enumerate(replicas) for slot in replica)

    last = layout.pp - 1
    assert [layout.coordinate(slot) for slot in layout.collectors()] == [
        Coordinate(dp=dp, pp=last) for dp in range(layout.dp)
    ]
    assert [layout.coordinate(slot) for slot in layout.rollout_collectors()] == [
        Coordinate(dp=dp, pp=last, cp=cp) for dp in range(layout.dp) for cp in range(layout.cp)
    ]


def test_a_slot_is_described_by_the_axes_that_matter() -> None:
    assert Layout(2, 2).describe(3) == "slot 3 (dp 1, tp 1)"
    assert Layout().describe(0) == "slot 0"


def on_own_node(pairs: dict[int, int], node_of: dict[int, str]) -> int:
    return sum(node_of[slot] == node_of[buddy] for slot, buddy in pairs.items())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_buddies_are_a_permutation_without_fixed_points(layout: Layout) -> None:
    draw = random.Random(7)
    scattered = {slot: f"n{draw.randrange(3)}" for slot in range(layout.world)}
    for node_of in (None, {slot: "n" for slot in range(layout.world)}, scattered):
        pairs = buddies(layout, node_of)
        assert sorted(pairs) == sorted(pairs.values()) == list(range(layout.world))
        assert layout.world == 1 or all(slot != buddy for slot, buddy in pairs.items())


def test_without_nodes_the_buddy_is_the_next_data_parallel_neighbour() -> None:
    layout = Layout(3, 2, 2, 2)
    for slot, buddy in buddies(layout).items():
        here, there = layout.coordinate(slot), layout.coordinate(buddy)
        assert there == Coordinate((here.dp + 1) % 3, here.tp, here.pp, here.cp)


def test_the_neighbour_on_another_node_is_preferred() -> None:
    layout = Layout(4, 2)
    node_of = {slot: "a" if slot < 4 else "b" for slot in range(8)}  # dp 0 and 1 on a, 2 and 3 on b
    pairs = buddies(layout, node_of)
    assert on_own_node(pairs, node_of) == 0
    assert all(layout.group("dp", slot) == layout.group("dp", buddy) for slot, buddy in pairs.items())


def test_the_copy_leaves_the_data_parallel_group_where_that_is_on_one_node() -> None:
    pipelined = Layout(dp=2, pp=2)  # each stage, and so each data-parallel group, has a node of its own
    for layout in (pipelined, Layout(pp=2, tp=2)):
        node_of = {slot: "a" if layout.coordinate(slot).pp == 0 else "b" for slot in range(layout.world)}
        assert on_own_node(buddies(layout, node_of), node_of) == 0


def test_a_node_with_more_than_half_keeps_only_what_it_must() -> None:
    layout = Layout(tp=7)
    node_of = {slot: "big" if slot < 5 else "small" for slot in range(7)}
    fewest = min(
        on_own_node(dict(enumerate(order)), node_of)
        for order in itertools.permutations(range(7))
        if all(slot != buddy for slot, buddy in enumerate(order))
    )
    assert on_own_node(buddies(layout, node_of), node_of) == fewest == 3


def test_places_are_ordered_by_node_and_device_and_not_as_given() -> None:
    places = [Place(f"a{node}{device}", f"node-{node}", device) for node in (1, 2, 10) for device in (0, 2, 10)]
    draw = random.Random(3)
    for _ in range(5):
        shuffled = draw.sample(places, len(places))
        assert order_places(shuffled) == places


def test_tensor_parallel_groups_stay_on_a_node_where_they_can() -> None:
    places = [Place(f"{node}{device}", node, device) for node, count in (("a", 3), ("b", 3)) for device in range(count)]
    assert [place.actor for place in order_places(places, tp=2)] == ["a0", "a1", "b0", "b1", "a2", "b2"]
    assert Counter(place.node for place in order_places(places, tp=2)[:4]) == {"a": 2, "b": 2}

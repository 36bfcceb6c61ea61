"""Nodes that are about to go: asked for seldom, and no news where there is nowhere to go instead."""

from ftppo.clock import FakeClock
from ftppo.driver.bundles import AGAIN_S, Bundles
from ftppo.driver.nodes import ASK_S, Nodes


class Head:
    """Counts how often it is asked."""

    def __init__(self, **draining: int) -> None:
        self.draining, self.num_asked = draining, 0

    def __call__(self) -> dict[str, int]:
        self.num_asked += 1
        return self.draining


def test_a_deadline_is_in_seconds_and_may_be_missing() -> None:
    nodes = Nodes(FakeClock(), Head(n1=1_500, n2=0))
    assert nodes.draining(["n1", "n3"]) == {"n1": 1.5, "n2": None}


def test_the_head_is_asked_once_in_a_while() -> None:
    clock, head = FakeClock(), Head()
    nodes = Nodes(clock, head)
    for _ in range(100):
        nodes.draining(["n1"])
    assert head.num_asked == 1
    head.draining = {"n1": 0}
    clock.advance(ASK_S)
    assert "n1" in nodes.draining(["n1", "n2"]) and head.num_asked == 2


def test_where_all_nodes_go_nobody_can_leave_them() -> None:
    nodes = Nodes(FakeClock(), Head(n1=0, n2=0))
    assert nodes.draining(["n1", "n2", None]) == {}
    assert set(nodes.draining(["n1", "n2", "n3"])) == {"n1", "n2"}


def test_a_bundle_on_a_node_that_is_about_to_go_waits() -> None:
    bundles = Bundles(FakeClock())
    for bundle, node in ((4, "n1"), (2, "n2"), (7, None)):
        bundles.give(bundle, node)
    assert bundles.take(5, {"n1"}) == [2, 7]
    assert bundles.take(5, {"n1"}) == [] and bundles.take(5, {}) == [4]


def test_bundles_are_taken_in_their_order_and_no_more_than_wanted() -> None:
    bundles = Bundles(FakeClock(), [3, 1, 2])
    assert bundles.take(-1, {}) == []
    assert bundles.take(2, {}) == [3, 1] and bundles.free == [2]


def test_what_came_to_nothing_is_tried_again_later() -> None:
    clock = FakeClock()
    bundles = Bundles(clock, [0])
    bundles.rest()
    assert bundles.take(1, {}) == []
    clock.advance(AGAIN_S)
    assert bundles.take(1, {}) == [0]

"""Where everything sits. Comes in: the four sizes of a mesh and the places of actors.

Goes out: slot <-> coordinate, members of groups, collecting slots, buddies, the order in which places become slots.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

GroupKind = Literal["tp", "cp", "dp", "pp", "dp_cp", "mp"]

# Fastest first: megatron-core's default order "tp-cp-ep-dp-pp", where nothing is expert-parallel.
_ORDER = ("tp", "cp", "dp", "pp")
_GROUP_AXES: dict[GroupKind, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "pp": ("pp",),
    "dp_cp": ("cp", "dp"),
    "mp": ("tp", "pp"),
}


@dataclass(frozen=True)
class Coordinate:
    """A slot's place on each axis, 0-based."""

    dp: int = 0
    tp: int = 0
    pp: int = 0
    cp: int = 0


@dataclass(frozen=True)
class Layout:
    """The sizes of the mesh, each at least 1. Slots are numbered as megatron-core numbers ranks.

    Example: Layout(dp=2, tp=2).coordinate(3) == Coordinate(dp=1, tp=1)
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        assert min(self.dp, self.tp, self.pp, self.cp) >= 1, self

    def __str__(self) -> str:
        return f"({self.dp}, {self.tp}, {self.pp}, {self.cp})"

    @property
    def world(self) -> int:
        """Number of slots."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def _axes(self) -> dict[str, tuple[int, int]]:
        """Axis -> (size, distance in slots between neighbours)."""
        axes, stride = {}, 1
        for axis in _ORDER:
            size = getattr(self, axis)
            axes[axis] = (size, stride)
            stride *= size
        return axes

    def coordinate(self, slot: int) -> Coordinate:
        """Where `slot` is."""
        assert 0 <= slot < self.world, f"slot {slot} of layout {self}"
        return Coordinate(**{axis: slot // stride % size for axis, (size, stride) in self._axes.items()})

    def slot(self, at: Coordinate) -> int:
        """Which slot is there."""
        total = 0
        for axis, (size, stride) in self._axes.items():
            index = getattr(at, axis)
            assert 0 <= index < size, f"{at} in layout {self}"
            total += index * stride
        return total

    def group(self, kind: GroupKind, slot: int) -> tuple[int, ...]:
        """The members of the group of this kind that `slot` is in, ascending, itself included.

        "dp_cp" is data and context parallel together, "mp" a whole model: tensor and pipeline parallel together.
        """
        axes, at = _GROUP_AXES[kind], self.coordinate(slot)
        return self._span(slot - sum(getattr(at, axis) * self._axes[axis][1] for axis in axes), axes)

    def dp_replica(self, dp: int) -> tuple[int, ...]:
        """All slots at this dp coordinate, ascending: one replica of the model, its context-parallel ranks included."""
        assert 0 <= dp < self.dp, f"dp {dp} of layout {self}"
        return self._span(dp * self._axes["dp"][1], ("tp", "cp", "pp"))

    def collectors(self) -> tuple[int, ...]:
        """The slot that answers for each data shard, in dp order: tp 0, cp 0, last pipeline stage."""
        return self._span(self.slot(Coordinate(pp=self.pp - 1)), ("dp",))

    def rollout_collectors(self) -> tuple[int, ...]:
        """As `collectors`, for work that context-parallel ranks share as data: one a (dp, cp), cp running faster."""
        return self._span(self.slot(Coordinate(pp=self.pp - 1)), ("cp", "dp"))

    def describe(self, slot: int) -> str:
        """A name to print, with the axes that have more than one place: "slot 3 (dp 1, tp 1)"."""
        at = self.coordinate(slot)
        where = ", ".join(f"{axis} {getattr(at, axis)}" for axis in ("dp", "tp", "pp", "cp") if getattr(self, axis) > 1)
        return f"slot {slot} ({where})" if where else f"slot {slot}"

    def _span(self, base: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The slots reached from `base` along `axes`, given fastest first; ascending."""
        slots = [base]
        for axis in axes:
            size, stride = self._axes[axis]
            slots = [slot + index * stride for index in range(size) for slot in slots]
        return tuple(slots)


def buddies(layout: Layout, node_of: Mapping[int, str] | None = None) -> dict[int, int]:
    """Slot -> the slot that keeps a copy of its snapshot: a permutation, so every host carries as much as it hands out.

    A buddy is a data-parallel neighbour. Where leaving the data-parallel group puts more copies on another node, the
    whole mesh is the group. `node_of` is slot -> node; without it all are taken to share one. A single slot is its own.
    """
    nodes = {slot: node_of[slot] if node_of else "" for slot in range(layout.world)}
    mesh = _rotate(range(layout.world), nodes)
    if layout.dp == 1:
        return mesh
    within: dict[int, int] = {}
    for slot in layout.dp_replica(0):
        within |= _rotate(layout.group("dp", slot), nodes)
    return within if _on_own_node(within, nodes) <= _on_own_node(mesh, nodes) else mesh


def _rotate(slots: Sequence[int], nodes: Mapping[int, str]) -> dict[int, int]:
    """Each slot -> the one that follows its node's, with the fewest pairs on one node that a permutation can have.

    Slots stand node by node in a ring. A turn by the size of the largest node takes every slot off its node, unless
    that node holds more than half: then 2 x largest - all must stay, and no permutation does better.
    """
    by_node: dict[str, list[int]] = {}
    for slot in slots:
        by_node.setdefault(nodes[slot], []).append(slot)
    largest = max(map(len, by_node.values()))
    turn = largest if len(by_node) > 1 else 1
    ring = [slot for members in by_node.values() for slot in members]
    return {slot: ring[(index + turn) % len(ring)] for index, slot in enumerate(ring)}


def _on_own_node(pairs: Mapping[int, int], nodes: Mapping[int, str]) -> int:
    return sum(nodes[slot] == nodes[buddy] for slot, buddy in pairs.items())


@dataclass(frozen=True)
class Place:
    """Where an actor found itself: its node, and the number of its device there (any number that orders them)."""

    actor: str
    node: str
    device: int


def order_places(places: Sequence[Place], tp: int = 1) -> list[Place]:
    """The places in the order in which they become slots, what is over standing by. Independent of the order given.

    Nodes come in natural order ("node-2" before "node-10"), their devices by number. Whole multiples of `tp` come
    first, so that no tensor-parallel group crosses nodes while another node has room for it; remainders come last.
    """
    by_node: dict[str, list[Place]] = {}
    for place in places:
        by_node.setdefault(place.node, []).append(place)
    whole, rest = [], []
    for node in sorted(by_node, key=_natural):
        members = sorted(by_node[node], key=lambda place: (place.device, _natural(place.actor)))
        cut = len(members) - len(members) % tp
        whole += members[:cut]
        rest += members[cut:]
    return whole + rest


def _natural(name: str) -> tuple[list[str | int], str]:
    """A key that orders digits as numbers; the name itself settles "1" against "01"."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name

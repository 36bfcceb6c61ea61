"""How a call spreads over the mesh. Comes in: arguments; goes out: each slot's share, and one result from many.

A Dispatch says what each slot gets and whose results count. MeshDispatch cuts rows over data shards;
PassThroughDispatch gives everybody the same. `register` adds a user's own.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ftppo.errors import ConfigError
from ftppo.plan.topology import Layout


class Dispatch(Protocol):
    """How a call's arguments and results spread over the slots."""

    def shards(self, layout: Layout, value: Any) -> list[Any]:
        """One argument, cut into as many shards as `shard_of` names."""
        ...

    def shard_of(self, layout: Layout, slot: int) -> int:
        """Which shard `slot` gets."""
        ...

    def collectors(self, layout: Layout) -> Sequence[int]:
        """The slots whose results count, in the order in which `merge` gets them."""
        ...

    def merge(self, results: list[Any]) -> Any:
        """The collectors' results, put together."""
        ...


class MeshDispatch:
    """Rows are cut over the DP ranks (with `share_context` over CP ranks too); TP, PP and CP replicas share a chunk."""

    def __init__(self, share_context: bool = False) -> None:
        self.share_context = share_context

    def shards(self, layout: Layout, value: Any) -> list[Any]:
        num = len(self.collectors(layout))
        if hasattr(value, "split"):
            return list(value.split(num))
        return [value.rows(index) for index in torch.arange(len(value.tokens)).tensor_split(num)]

    def shard_of(self, layout: Layout, slot: int) -> int:
        at = layout.coordinate(slot)
        return at.dp * layout.cp + at.cp if self.share_context else at.dp

    def collectors(self, layout: Layout) -> Sequence[int]:
        return layout.rollout_collectors() if self.share_context else layout.collectors()

    def merge(self, results: list[Any]) -> Any:
        """Named types of tensors are joined along their rows."""
        kind = type(results[0])
        return kind(**{name: torch.cat([vars(one)[name] for one in results]) for name in vars(results[0])})


class PassThroughDispatch:
    """Everybody gets the same, and every slot's result counts, in slot order."""

    def shards(self, layout: Layout, value: Any) -> list[Any]:
        return [value]

    def shard_of(self, layout: Layout, slot: int) -> int:
        return 0

    def collectors(self, layout: Layout) -> Sequence[int]:
        return range(layout.world)

    def merge(self, results: list[Any]) -> Any:
        return results


class _FirstSlot:
    """Slot 0 alone gets the argument, the others None, and its result counts."""

    def shards(self, layout: Layout, value: Any) -> list[Any]:
        return [value, None]

    def shard_of(self, layout: Layout, slot: int) -> int:
        return min(slot, 1)

    def collectors(self, layout: Layout) -> Sequence[int]:
        return (0,)

    def merge(self, results: list[Any]) -> Any:
        return results[0]


class _FirstCollector(MeshDispatch):
    """As MeshDispatch, for results that are the same on every data shard: the first one's is taken."""

    def merge(self, results: list[Any]) -> Any:
        return results[0]


_REGISTRY: dict[str, Dispatch] = {
    "mesh": MeshDispatch(),
    "mesh_shared": MeshDispatch(share_context=True),
    "mesh_first": _FirstCollector(),
    "pass_through": PassThroughDispatch(),
    "first_slot": _FirstSlot(),
}


def register(name: str, dispatch: Dispatch) -> None:
    """Make `dispatch` known under `name`. Raises ConfigError where the name is taken."""
    if name in _REGISTRY:
        raise ConfigError("dispatch", name, f"is registered already; names taken: {', '.join(_REGISTRY)}")
    _REGISTRY[name] = dispatch


def dispatch_of(name: str) -> Dispatch:
    """The Dispatch registered under `name`."""
    assert name in _REGISTRY, f"no dispatch {name!r}; there are {', '.join(_REGISTRY)}"
    return _REGISTRY[name]

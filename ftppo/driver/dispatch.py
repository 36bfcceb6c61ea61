"""Calls to the mesh. Comes in: a method and its arguments; goes out: its result, or GenerationBroken within a deadline.

A Dispatch says what each slot gets and whose results count. MeshDispatch cuts rows over data shards;
PassThroughDispatch gives everybody the same. `register` adds a user's own.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import ray
import torch

from ftppo.clock import Clock
from ftppo.config import Fault, FaultPhase
from ftppo.driver.detect import from_error, from_silence
from ftppo.errors import ConfigError, FtppoError
from ftppo.plan.chaos import targets
from ftppo.plan.faults import Observation
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.worker.actor import Stamp

# What a call is for: a phase that faults are configured for, a part of one after a dot, or what no fault is meant for.
CallPhase = FaultPhase | Literal["update.other", "save.publish", "warmup", "load", "digest", "idle"]


class GenerationBroken(FtppoError):
    """The mesh cannot go on in this generation. `observations` are what showed it; there may be more to see."""

    def __init__(self, observations: Sequence[Observation], phase: CallPhase, roster: Roster | None = None) -> None:
        super().__init__(observations, phase, roster)
        self.observations, self.phase, self.roster = tuple(observations), phase, roster


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


class _FirstCollector(MeshDispatch):
    """As MeshDispatch, for results that are the same on every data shard: the first one's is taken."""

    def merge(self, results: list[Any]) -> Any:
        return results[0]


_REGISTRY: dict[str, Dispatch] = {
    "mesh": MeshDispatch(),
    "mesh_shared": MeshDispatch(share_context=True),
    "mesh_first": _FirstCollector(),
    "pass_through": PassThroughDispatch(),
}


def register(name: str, dispatch: Dispatch) -> None:
    """Make `dispatch` known under `name`. Raises ConfigError where the name is taken."""
    if name in _REGISTRY:
        raise ConfigError("dispatch", name, f"is registered already; names taken: {', '.join(_REGISTRY)}")
    _REGISTRY[name] = dispatch


class Mesh:
    """The slots of one generation as one callable thing."""

    def __init__(self, roster: Roster, handles: dict[str, Any], clock: Clock, deadline_s: float) -> None:
        self.roster, self.handles, self.clock, self.deadline_s = roster, handles, clock, deadline_s
        self.faults: Callable[[CallPhase], tuple[Fault, ...]] = lambda phase: ()

    def call(
        self,
        method: str,
        *shared: Any,
        rows: Any = None,
        via: str = "pass_through",
        phase: CallPhase,
        deadline_s: float | None = None,
    ) -> Any:
        """Run Engine.`method`(*shared, this slot's shard of `rows`) on every slot. Raises GenerationBroken."""
        dispatch, layout = _REGISTRY[via], self.roster.layout
        shards = [ray.put(shard) for shard in dispatch.shards(layout, rows)] if rows is not None else []
        collectors = list(dispatch.collectors(layout))
        faults = self.faults(phase)
        references = {}
        for slot, name in enumerate(self.roster.slots):
            mine = tuple(fault for fault in faults if slot in targets(fault, layout))
            stamp = Stamp(self.roster.generation, slot in collectors, mine)
            arguments = (*shared, shards[dispatch.shard_of(layout, slot)]) if shards else shared
            references[self.handles[name].call.remote(stamp, method, *arguments)] = slot
        results = self.wait(references, phase, deadline_s or self.deadline_s)
        return dispatch.merge([results[slot] for slot in collectors])

    def wait(self, references: dict[Any, int], phase: CallPhase, deadline_s: float) -> dict[int, Any]:
        """All results by slot. The first that fails, or the deadline, breaks the generation."""
        results: dict[int, Any] = {}
        pending, until = dict(references), self.clock.monotonic() + deadline_s
        while pending:
            left = until - self.clock.monotonic()
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=max(left, 0.0))
            if not ready:
                late = sorted(pending.values())
                raise GenerationBroken(
                    [from_silence(slot, self.roster.actor(slot), deadline_s) for slot in late], phase, self.roster
                )
            # take all that are there: one ray.get for many is cheaper than one each
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0.0)
            for reference in ready:
                slot = pending.pop(reference)
                try:
                    results[slot] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    observed = from_error(slot, self.roster.actor(slot), error)
                    if observed is None:
                        raise error.cause from None  # type: ignore[attr-defined]
                    raise GenerationBroken([observed], phase, self.roster) from error
        return results

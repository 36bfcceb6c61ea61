"""The actors: one a bundle, in slots or standing by.

Comes in: how many; goes out: members, placed, warmed, promoted, retired.
An actor starts light, says where it is, and is warmed (imports, device, models) when its turn comes: those of the slots
first, standbys behind them.
"""

import dataclasses
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.cluster import Cluster
from ftppo.errors import ClusterError
from ftppo.plan.topology import Layout, Place, order_places
from ftppo.worker.actor import TrainActor, Whereabouts


@dataclass(frozen=True)
class Member:
    """One actor of the pool."""

    name: str
    handle: Any
    place: Whereabouts
    snapshots: tuple[str, int] | None = None  # where its snapshots are found; None until it is warm


class Pool:
    """All actors of a run by name. `warm` are the names of standbys that could take a slot at once."""

    def __init__(self, config: Config, cluster: Cluster, vocab_size: int, eos: int, clock: Clock) -> None:
        self.config, self.cluster, self.clock = config, cluster, clock
        self.members: dict[str, Member] = {}
        self.warm: list[str] = []
        self._warming: dict[Any, tuple[str, Any]] = {}  # built -> name, reference to its address
        self._prepare_args = (config, cluster.kind, vocab_size, eos, secrets.token_hex(16))
        self._group: PlacementGroup | None = None

    def start(self, layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Place and start all actors. Returns the names for the slots, in slot order, and those of the standbys."""
        num = layout.world + self.config.cluster.standby
        bundle = self.cluster.bundle(self.config)
        self._group = placement_group([bundle] * num, strategy="PACK")
        if not self._group.wait(self.config.cluster.start_s):
            raise ClusterError(
                f"{num} bundles of {bundle} were not placed within cluster.start_s={self.config.cluster.start_s:g} s; "
                f"available now: {ray.available_resources()}"
            )
        handles = {f"a{index}": self._spawn(index, bundle) for index in range(num)}
        places = self._gather([handle.whereabouts.remote() for handle in handles.values()], "came up")
        self.members = {
            name: Member(name, handle, place) for (name, handle), place in zip(handles.items(), places, strict=True)
        }
        found = [Place(name, member.place.node, member.place.device) for name, member in self.members.items()]
        names = [place.actor for place in order_places(found, layout.tp)]
        return tuple(names[: layout.world]), tuple(names[layout.world :])

    def build(self, slots: Sequence[str]) -> None:
        """Warm the actors of the slots, and build each for its own."""
        handles = [self.members[name].handle for name in slots]
        addresses = [handle.prepare.remote(*self._prepare_args) for handle in handles]
        built = [handle.build.remote(slot) for slot, handle in enumerate(handles)]
        found = self._gather([*addresses, *built], "was built")
        for name, address in zip(slots, found, strict=False):
            self._found_at(name, address)

    def warm_up(self, standbys: Sequence[str], num_slots: int) -> None:
        """Begin to warm standbys, each for the shape of some slot. Returns at once."""
        for index, name in enumerate(standbys):
            handle = self.members[name].handle
            address = handle.prepare.remote(*self._prepare_args)
            self._warming[handle.build.remote(index % num_slots)] = name, address

    def poll(self, timeout_s: float = 0.0) -> list[tuple[str, Exception | None]]:
        """Standbys whose warming has ended since last asked, with the error of those that failed."""
        if not self._warming:
            return []
        ready, _ = ray.wait(list(self._warming), num_returns=len(self._warming), timeout=timeout_s)
        ended: list[tuple[str, Exception | None]] = []
        for reference in ready:
            name, address = self._warming.pop(reference)
            try:
                ray.get(reference)
                self._found_at(name, ray.get(address))
                self.warm.append(name)
                ended.append((name, None))
            except Exception as error:  # whatever ended it, this actor is of no use
                self.retire(name)
                ended.append((name, error))
        return ended

    def promote(self, names: Iterable[str]) -> None:
        """These standbys hold slots from now on."""
        taken = set(names)
        self.warm = [name for name in self.warm if name not in taken]

    def retire(self, name: str) -> None:
        """End an actor, whatever its state."""
        member = self.members.pop(name, None)
        if name in self.warm:
            self.warm.remove(name)
        if member is not None:
            ray.kill(member.handle, no_restart=True)

    def stop(self) -> None:
        """End all actors and give the bundles back."""
        for name in list(self.members):
            self.retire(name)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _found_at(self, name: str, address: tuple[str, int]) -> None:
        self.members[name] = dataclasses.replace(self.members[name], snapshots=address)

    def _spawn(self, index: int, bundle: dict[str, float]) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)  # type: ignore[arg-type]
        return TrainActor.options(  # type: ignore[attr-defined]
            num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), scheduling_strategy=strategy
        ).remote()

    def _gather(self, references: Sequence[Any], what: str) -> list[Any]:
        limit = self.config.cluster.start_s
        ready, late = ray.wait(list(references), num_returns=len(references), timeout=limit)
        if late:
            raise ClusterError(
                f"{len(ready)} of {len(references)} actors: each {what} within cluster.start_s={limit:g} s"
            )
        try:
            return list(ray.get(list(references)))
        except ray.exceptions.RayError as error:
            raise ClusterError(f"an actor ended before it {what}: {error}") from error

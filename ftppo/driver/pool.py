"""The actors: one a bundle, in slots or standing by.

Comes in: how many; goes out: members, placed, warmed, promoted, retired.
An actor starts light, says where it is, and is warmed (imports, device, models) when its turn comes: those of the slots
first, standbys behind them.
"""

import dataclasses
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.bundles import Bundles
from ftppo.driver.cluster import Cluster
from ftppo.driver.estate import Estate
from ftppo.driver.lending import Lending
from ftppo.driver.nodes import Nodes
from ftppo.errors import ClusterError, DeviceFault, Superseded
from ftppo.plan.fitting import least_covered
from ftppo.plan.topology import Layout, Place, order_places
from ftppo.worker.actor import TrainActor
from ftppo.worker.whereabouts import Whereabouts, end_process


@dataclass(frozen=True)
class Member:
    """One actor of the pool."""

    name: str
    handle: Any
    bundle: int  # index in the placement group
    place: Whereabouts | None = None  # None until it has come up
    snapshots: tuple[str, int] | None = None  # where its snapshots are found; None until it is warm
    built_for: int | None = None  # of a standby: the slot whose models it has ready


@dataclass(frozen=True)
class _Warming:
    """References to what a standby will answer on its way to be warm."""

    name: str
    place: Any
    snapshots: Any


class Pool:
    """All actors of a run by name. `warm` are the names of standbys that could take a slot at once."""

    def __init__(
        self, config: Config, cluster: Cluster, vocab_size: int, eos: int, clock: Clock, lending: Lending | None = None
    ) -> None:
        """With a `lending` the actors outlive this driver; without they end with it."""
        self.config, self.cluster, self.clock, self.lending = config, cluster, clock, lending
        self.members: dict[str, Member] = {}
        self.warm: list[str] = []
        self.nodes = Nodes(clock)
        parallel = config.parallel
        self.layout = Layout(parallel.dp, parallel.tp, parallel.pp, parallel.cp)  # the one that standbys are built for
        self._warming: dict[Any, _Warming] = {}  # by the reference that tells that it is built
        self._bundles = Bundles(clock)  # that nobody holds
        self._built: dict[str, tuple[Layout, int]] = {}  # the slots that actors were built for as they took them
        self._num_spawned = 0
        self._prepare_args = (config, cluster.kind, vocab_size, eos, secrets.token_hex(16))
        self._group: PlacementGroup | None = None
        if lending is not None:
            lending.hold(lambda: [member.handle for member in list(self.members.values())])

    def start(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Place and start all actors. Returns the names for the slots, in slot order, and those of the standbys."""
        num = self.layout.world + self.config.cluster.standby
        bundle = self.cluster.bundle(self.config)
        lasting = {"name": self.lending.run, "lifetime": "detached"} if self.lending is not None else {}
        self._group = placement_group([bundle] * num, strategy="PACK", **lasting)
        if not self._group.wait(limit := self.config.cluster.start_s):
            slow = f"{num} bundles of {bundle} were not placed within cluster.start_s={limit:g} s"
            raise ClusterError(f"{slow}; available now: {ray.available_resources()}")
        members = [self._spawn(index) for index in range(num)]
        places = self._gather([member.handle.whereabouts.remote() for member in members], "came up")
        found = []
        for member, place in zip(members, places, strict=True):
            self._learn(member.name, place=place)
            found.append(Place(member.name, place.node, place.device))
        names = [place.actor for place in order_places(found, self.layout.tp)]
        return tuple(names[: self.layout.world]), tuple(names[self.layout.world :])

    def adopt(self, estate: Estate) -> None:
        """Take actors over as an earlier driver has left them. Those that were not ready yet are ended."""
        assert self.lending is not None
        self._group = get_placement_group(self.lending.run)
        for name, account in estate.accounts.items():
            built_for = account.slot if account.generation < 0 else None
            bundle, handle = estate.bundles[name], estate.handles[name]
            self.members[name] = Member(name, handle, bundle, account.place, account.snapshots, built_for)
        held = {member.bundle for member in self.members.values()}
        self._bundles = Bundles(self.clock, sorted(set(range(self._group.bundle_count)) - held))
        self._num_spawned = 1 + max(int(name.removeprefix("a")) for name in estate.handles)
        token = next(account.token for account in estate.accounts.values() if account.token is not None)
        self._prepare_args = (*self._prepare_args[:-1], token)
        self.warm = list(estate.roster.standby)
        self.settle(estate.roster.layout, estate.roster.slots)
        for name in set(self.members) - set(estate.roster.actors):
            self.retire(name)

    def build(self, slots: Sequence[str]) -> None:
        """Warm the actors of the slots, and build each for its own."""
        handles = [self.members[name].handle for name in slots]
        addresses = [handle.prepare.remote(*self._prepare_args) for handle in handles]
        built = [handle.build.remote(self.layout, slot, False) for slot, handle in enumerate(handles)]
        found = self._gather([*addresses, *built], "was built")
        for name, address in zip(slots, found, strict=False):
            self._learn(name, snapshots=address)
        self.settle(self.layout, slots)

    def settle(self, layout: Layout, slots: Sequence[str]) -> None:
        """These actors have been built for the slots of `layout`, in slot order."""
        self._built = {name: (layout, slot) for slot, name in enumerate(slots)}

    def to_build(self, layout: Layout, slots: Sequence[str]) -> list[int]:
        """The slots of `layout` whose actors are not known to have been built for them.

        They are about to be: what they were built for before does not count any more, whatever comes of it.
        """
        found = [slot for slot, name in enumerate(slots) if self._built.get(name) != (layout, slot)]
        for slot in found:
            self._built.pop(slots[slot], None)
        return found

    def warm_up(self, standbys: Sequence[str]) -> None:
        """Begin to warm standbys, each built for a slot that needs one most. Returns at once."""
        covered = Counter(member.built_for for member in self.members.values())
        nodes = {slot: self.node_of(name) for name, (layout, slot) in self._built.items() if layout == self.layout}
        for name in standbys:
            own = self.node_of(name) or self._bundles.node_of(self.members[name].bundle)
            slot = least_covered(self.layout.world, covered, nodes, own)
            covered[slot] += 1
            self._learn(name, built_for=slot)
            handle = self.members[name].handle
            place = handle.whereabouts.remote()
            address = handle.prepare.remote(*self._prepare_args)
            self._warming[handle.build.remote(self.layout, slot, True)] = _Warming(name, place, address)

    def poll(self, timeout_s: float = 0.0) -> list[tuple[str, Exception | None]]:
        """Standbys whose warming has ended since last asked, with the error of those that failed."""
        if not self._warming:
            self.clock.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._warming), num_returns=len(self._warming), timeout=timeout_s)
        ended: list[tuple[str, Exception | None]] = []
        for reference in ready:
            warming = self._warming.pop(reference)
            if warming.name not in self.members:
                continue  # retired meanwhile
            try:
                place, snapshots = ray.get([warming.place, warming.snapshots])
                ray.get(reference)
                self._learn(warming.name, place=place, snapshots=snapshots)
                self.warm.append(warming.name)
                ended.append((warming.name, None))
            except Exception as error:  # whatever ended it, this actor is of no use
                self.retire(warming.name, for_good=isinstance(getattr(error, "cause", None), DeviceFault))
                self._bundles.rest()
                ended.append((warming.name, error))
        return ended

    def promote(self, names: Iterable[str]) -> None:
        """These actors hold slots from now on, if they have not before."""
        taken = set(names)
        self.warm = [name for name in self.warm if name not in taken]
        for name in taken:
            self._learn(name, built_for=None)

    def addresses(self, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Where actors serve their snapshots, of those that are warm."""
        members = [self.members[name] for name in names if name in self.members]
        return {member.name: member.snapshots for member in members if member.snapshots is not None}

    def node_of(self, name: str) -> str | None:
        """The node that an actor runs on; None where it is not known, or no more."""
        place = self.members[name].place if name in self.members else None
        return place.node if place is not None else None

    def warm_by_node(self) -> dict[str, list[str]]:
        """The actors of each node that have come as far as to serve snapshots."""
        found: dict[str, list[str]] = {}
        for name in self.addresses(self.members):
            node = self.node_of(name)
            if node is not None:
                found.setdefault(node, []).append(name)
        return found

    def draining(self) -> Mapping[str, float | None]:
        """Nodes that are about to go, as of Nodes."""
        return self.nodes.draining(self.node_of(name) for name in self.members)

    def promotable(self) -> list[str]:
        """The warm standbys on nodes that stay."""
        draining = self.draining()
        return [name for name in self.warm if self.node_of(name) not in draining]

    def demote(self, names: Iterable[str]) -> None:
        """These actors, whose slots are no more, stand by from now on."""
        self.warm += names

    def retire(self, name: str, for_good: bool = False) -> None:
        """End an actor, whatever its state: stopped, hung or dead already.

        Its bundle comes free, unless it is `for_good`: the next actor there would have the same device.
        """
        member = self.members.pop(name, None)
        self.warm = [one for one in self.warm if one != name]
        if member is None:
            return
        if not for_good:
            self._bundles.give(member.bundle, member.place.node if member.place is not None else None)
        ray.kill(member.handle, no_restart=True)
        self._end_process(member)

    def refill(self) -> list[str]:
        """Begin to start standbys in bundles on nodes that stay, up to the number configured. Returns their names."""
        missing = self.config.cluster.standby + self.layout.world - len(self.members)
        fresh = [self._spawn(bundle).name for bundle in self._bundles.take(missing, self.draining())]
        self.warm_up(fresh)
        return fresh

    def check_ours(self) -> None:
        """Raise Superseded where the actors are another driver's by now."""
        if self.lending is not None:
            self.lending.check(member.handle for member in self.members.values())

    def abandon(self) -> None:
        """Leave all actors to another driver."""
        self.members.clear()
        self._group = None

    def stop(self) -> None:
        """End all actors and give the bundles back; those that are another driver's by now are left to it."""
        try:
            self.check_ours()
        except Superseded:
            self.abandon()
        if self.lending is not None:
            self.lending.let_go()
        for name in list(self.members):
            self.retire(name)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _spawn(self, bundle: int) -> Member:
        needs = self.cluster.bundle(self.config)
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)  # type: ignore[arg-type]
        name = f"a{self._num_spawned}"
        lasting = self.lending.options(name, bundle) if self.lending is not None else {}
        handle = TrainActor.options(  # type: ignore[attr-defined]
            num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), scheduling_strategy=strategy, **lasting
        ).remote(self.lending.terms if self.lending is not None else None)
        member = Member(name, handle, bundle)
        self._num_spawned += 1
        self.members[member.name] = member
        return member

    def _end_process(self, member: Member) -> None:
        """Kill by process id too: Ray asks a process to end, and a stopped one does not hear it."""
        if member.place is None:
            return
        if member.place.node == ray.get_runtime_context().get_node_id():
            end_process(member.place)
            return
        node = member.place.node
        neighbour = next((one for one in self.members.values() if one.place and one.place.node == node), None)
        if neighbour is not None:
            neighbour.handle.end_neighbour.remote(member.place)

    def _learn(self, name: str, **known: Any) -> None:
        self.members[name] = dataclasses.replace(self.members[name], **known)

    def _gather(self, references: Sequence[Any], what: str) -> list[Any]:
        limit = self.config.cluster.start_s
        ready, late = ray.wait(list(references), num_returns=len(references), timeout=limit)
        if late:
            slow = f"of {len(references)} actors only {len(ready)} each {what} within cluster.start_s={limit:g} s"
            raise ClusterError(f"{slow}: raise it, or see with run.ray_logs=true what the others are at")
        try:
            return list(ray.get(list(references)))
        except ray.exceptions.RayError as error:
            raise ClusterError(f"an actor ended before it {what}: {error}") from error

"""Carries out a recovery. Comes in: a broken generation; goes out: the next one's mesh, the state to go on from.

judge -> plan -> promote standbys -> fence survivors -> build -> new groups -> state   (a fault on the way: a new plan)
"""

import dataclasses
from collections.abc import Sequence

import ray

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.account import Accounts, Stopwatch, phase_of, record_of, restart_record
from ftppo.driver.announce import announce
from ftppo.driver.copies import Copies, find_copies
from ftppo.driver.detect import SURVEY_S, from_error, nobody_at
from ftppo.driver.display import Display
from ftppo.driver.inquiry import find_faults
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.planner import Planner
from ftppo.driver.pool import Member, Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.saver import DAMAGED, Saver
from ftppo.driver.standbys import Standbys
from ftppo.errors import CheckpointError
from ftppo.plan.faults import NO_SLOT, ExitKind, Fault, Observation
from ftppo.plan.recovery import Reshape, Source, Substitute
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout, buddies
from ftppo.types import DriverState
from ftppo.worker.meeting import Rendezvous


@dataclasses.dataclass(frozen=True)
class Recovered:
    """A generation that stands again. `state` is given where it came from storage; else work goes on at `version`."""

    mesh: Mesh
    source: Source
    version: int
    state: DriverState | None

    @property
    def at(self) -> int:
        """The version that work goes on from."""
        return self.version if self.state is None else self.state.version


class Recovery:
    """Forms generations, the first one too, and keeps the account of each recovery."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        standbys: Standbys,
        saver: Saver,
        files: RunFiles,
        display: Display,
        clock: Clock,
    ) -> None:
        self.config, self.pool, self.saver = config, pool, saver
        self.files, self.display, self.clock = files, display, clock
        self.oldest = 0  # version that the driver knows how to go on from
        self._layouts: dict[str, Layout] = {}  # those that a mesh has had, by how they write themselves
        # Who has left a slot and works: their copies may be wanted until all is restored.
        self._leavers = set[str]()
        self.planner = Planner(config, pool, standbys, files, display, clock)
        self.accounts = Accounts(files, display, clock)

    def mesh_of(self, roster: Roster) -> Mesh:
        """The slots of `roster` as a Mesh, whether or not they have groups."""
        handles = {name: self.pool.members[name].handle for name in roster.slots if name in self.pool.members}
        return Mesh(roster, handles, self.clock, self.config.recovery.hang_s)

    def form(self, roster: Roster) -> Mesh:
        """Have all slots of `roster` meet and build their groups. Raises GenerationBroken."""
        mesh = self.mesh_of(roster)
        handles = mesh.handles
        self._layouts[str(roster.layout)] = roster.layout
        limit = self.config.recovery.groups_s
        opened = mesh.wait({handles[roster.actor(0)].open_store.remote(limit): 0}, "idle", limit)
        meet = Rendezvous(roster.generation, *opened[0])
        buddy_of = buddies(roster.layout, {slot: self._node(roster, slot) for slot in range(roster.layout.world)})
        references = {
            handles[name].join.remote(meet, self._buddy_address(roster, buddy_of[slot], slot), limit): slot
            for slot, name in enumerate(roster.slots)
        }
        try:
            mesh.wait(references, "idle", limit)
        except GenerationBroken:
            handles[roster.actor(0)].close_store.remote()  # who waits there would not hear that it is to let go
            raise
        mesh.buddy_of = buddy_of if self.config.snapshot.every_steps else {}
        return mesh

    def run(self, mesh: Mesh, broken: GenerationBroken, state: DriverState, at_most: int) -> Recovered:
        """The next generation that stands. `state` is where the run stood, completed steps included.

        It goes on at the version `at_most`, or as little before it as can be.

        Raises the plan's error where it gives up; the last checkpoint is untouched.
        """
        watch = Stopwatch(self.clock)
        began = self.accounts.fault_time(watch.started)
        known = mesh.committed
        faults, plan, done = self._until_one_stands(mesh.roster, broken, state, at_most, watch)
        known = known if known is not None and done.source == "peer" else state.version
        lost = max(0, known - done.at)
        record = record_of(faults, plan, done.source, phase_of(broken), lost, watch, began)
        self.accounts.open(record, began, state.step + 1)
        return done

    def take_over(self, mesh: Mesh, broken: GenerationBroken, state: DriverState, known: int) -> Recovered:
        """As `run`, after the death of an earlier driver: `state` is the furthest that the run can have come.

        `known` is how many steps were committed for all that its files say.
        """
        watch = Stopwatch(self.clock)
        self._layouts[str(mesh.roster.layout)] = mesh.roster.layout
        _, _, done = self._until_one_stands(mesh.roster, broken, state, state.version, watch)
        num_steps = done.at - state.begun if done.state is None else done.state.step
        record = restart_record(done.mesh.roster.generation, done.source, max(0, known - num_steps), watch)
        self.accounts.open(record, watch.started, num_steps + 1)
        return done

    def _until_one_stands(
        self, roster: Roster, broken: GenerationBroken, state: DriverState, at_most: int, watch: Stopwatch
    ) -> tuple[list[Fault], Substitute | Reshape, Recovered]:
        first_faults: list[Fault] = []
        while True:
            try:
                faults = find_faults(roster, broken, self.pool, self.files, self.clock, self.config.recovery.hang_s)
                faults = [fault for fault in faults if fault.leave is None] or faults  # who works leaves another time
                first_faults = first_faults or faults
                self._announce(faults)
                self.planner.refuse_repetition(faults, state)
                watch.lap("detect")
                self.planner.make_room(roster, faults)
                copies = self._copies(roster, faults, at_most)
                has_checkpoint = self.saver.last_step is not None
                plan = self.planner.plan(roster, faults, broken.in_order, copies is not None, has_checkpoint)
                if isinstance(plan, Reshape):
                    self._event("reshaped", plan.reason)
                watch.lap("promote")
                return first_faults, plan, self._carry_out(plan, roster, copies, watch)
            except GenerationBroken as again:
                roster, broken = again.roster, again
                roster = self.planner.present(roster)

    def _announce(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self.files.record("fault", f"{fault.kind}: {fault.reason}", slot=fault.slot)
            self.display.event(f"fault ({fault.kind}): {fault.reason}")

    def _copies(self, roster: Roster, faults: Sequence[Fault], at_most: int) -> Copies | None:
        """The newest version, up to `at_most`, that living actors hold of every slot."""
        if not self.config.snapshot.every_steps:
            return None
        struck = [fault for fault in faults if fault.slot != NO_SLOT]
        lost = {roster.actor(fault.slot) for fault in struck if fault.leave is None}
        leaving = self._leavers.union(roster.actor(fault.slot) for fault in struck if fault.leave is not None)
        asked = {*roster.slots, *self.pool.warm, *leaving}.intersection(self.pool.members) - lost
        handles = {name: self.pool.members[name].handle for name in asked}
        needs_reference = self.config.algo.needs_reference
        limit = self.config.recovery.fence_s
        copies = find_copies(roster, handles, self._layouts, needs_reference, at_most, limit, leaving)
        return copies if copies is not None and copies.version >= self.oldest else None

    def _carry_out(self, plan: Substitute | Reshape, old: Roster, copies: Copies | None, watch: Stopwatch) -> Recovered:
        new = plan.roster
        alive = [name for name in old.slots if name in self.pool.members]
        self._leavers.update(set(alive) - set(new.actors))
        self.pool.promote(new.slots)
        self.pool.demote(name for name in alive if new.stands_by(name))
        self._fence(alive, new)
        new = self.planner.present(new)
        if copies is not None and not self.pool.members.keys() >= set(copies.holder.values()):
            raise GenerationBroken((), "idle", new)  # who was to hand over its copies is gone: others may have them
        watch.lap("fence")
        self._build(new)
        watch.lap("promote")
        mesh = self.form(new)
        watch.lap("groups")
        done = self._restore(mesh, copies)
        watch.lap("state")
        for name in self._leavers:
            self.pool.retire(name)
        self._leavers.clear()
        return done

    def _build(self, new: Roster) -> None:
        """Models for who takes a slot, now or in an attempt that failed; in another layout, for everybody."""
        until = self.clock.monotonic() + self.config.recovery.groups_s
        builders = self.pool.to_build(new.layout, new.slots)
        building = {self._member(new, slot).handle.build.remote(new.layout, slot, True): slot for slot in builders}
        try:
            self.mesh_of(new).wait(building, "idle", self.config.recovery.groups_s)
        except GenerationBroken:
            # The others cannot let go before they have built.
            left_s = max(until - self.clock.monotonic(), 0.0)
            ray.wait(list(building), num_returns=len(building), timeout=left_s)
            raise
        self.pool.settle(new.layout, new.slots)

    def _fence(self, survivors: Sequence[str], new: Roster) -> None:
        """Survivors let go of their groups; who does not in time is ended, and counts as lost if it has a slot."""
        handles = {name: self.pool.members[name].handle for name in survivors}
        for handle in handles.values():
            handle.abort.remote(new.generation)
        references = {handle.release.remote(): name for name, handle in handles.items()}
        ray.wait(list(references), num_returns=len(references), timeout=self.config.recovery.fence_s)
        lost = []
        for reference, name in references.items():
            slot = new.slot_of(name)
            at = NO_SLOT if slot is None else slot
            try:
                ray.get(reference, timeout=0)
                continue
            except ray.exceptions.GetTimeoutError:
                seen = Observation(at, name, process_dead=True, exit_kind=ExitKind.FENCED)
            except ray.exceptions.RayError as error:
                seen = from_error(at, name, error) or Observation(at, name, process_dead=True)
            self.pool.retire(name)
            if slot is not None:
                lost.append(seen)
        if lost:
            raise GenerationBroken(lost, "idle", new)

    def _restore(self, mesh: Mesh, copies: Copies | None) -> Recovered:
        """Every slot at one version: from memory where all have a holder, else from the last checkpoint."""
        if copies is not None:
            sources = {slot: self.pool.members[holder].snapshots for slot, holder in copies.holder.items()}
            try:
                if copies.layout == mesh.roster.layout:
                    own = {slot for slot, holder in copies.holder.items() if holder == mesh.roster.actor(slot)}
                    elsewhere = {slot: place for slot, place in sources.items() if slot not in own}
                    mesh.call("restore", copies.version, elsewhere, phase="load")
                else:
                    mesh.call("reshard", copies.version, copies.layout, sources, phase="load")
                mesh.call("regain", copies.version, phase="load")
                return Recovered(mesh, "peer", copies.version, None)
            except CheckpointError as error:
                if nobody_at(self.pool.addresses(copies.holder.values()), SURVEY_S):
                    raise GenerationBroken((), "load", mesh.roster) from error  # as above
                self._event("snapshot_unusable", f"taking the last checkpoint: {error}")
        restored = self.saver.restore(mesh, self._tell_damaged)
        if restored is None:
            mesh.call("reset", phase="load")
        state = restored.state if restored else DriverState(kl_coef=self.config.algo.kl_coef)
        mesh.call("snapshot", state.version, phase="load")
        return Recovered(mesh, "checkpoint" if restored else "initial", state.version, state)

    def _tell_damaged(self, reason: str) -> None:
        self._event(DAMAGED, reason)

    def _event(self, event: str, reason: str) -> None:
        announce(self.files, self.display, event, reason)

    def _member(self, roster: Roster, slot: int) -> Member:
        return self.pool.members[roster.actor(slot)]

    def _node(self, roster: Roster, slot: int) -> str:
        place = self._member(roster, slot).place
        assert place is not None, f"slot {slot} went to an actor that has not come up"
        return place.node

    def _buddy_address(self, roster: Roster, buddy: int, slot: int) -> tuple[str, int] | None:
        return self._member(roster, buddy).snapshots if buddy != slot else None

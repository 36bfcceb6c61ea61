"""Durable checkpoints of a run. Comes in: the mesh, where the run stands; goes out: a published checkpoint, or state.

Ranks write, each on its own; slot 0 publishes once all have reported success; old checkpoints go after that. Training
may go on meanwhile: a save is taken one piece further whenever the ranks have done the one before.
"""

import dataclasses
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import zip_longest
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.stores import config_digest, retrying_store_of
from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.record import CheckpointRecord
from ftppo.errors import CheckpointError, CorruptCheckpoint, StorageError
from ftppo.plan.retention import LEFTOVER_S, keep
from ftppo.types import DriverState

DAMAGED = "checkpoint_damaged"  # the event of a checkpoint that was passed over


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A save that was begun and is not published yet."""

    header: Header
    started: float  # monotonic
    stall_s: float  # training has stood still for it so far
    publishing: bool = False  # every rank has written, and slot 0 was told


@dataclasses.dataclass(frozen=True)
class Restored:
    """What every rank was filled from, and where the run stood then."""

    manifest: Manifest
    state: DriverState


class Saver:
    """Saves and restores, one save at a time. `last_step` is the step of the newest checkpoint; None: there is none."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config, self.clock = config, clock
        self.store = retrying_store_of(config.checkpoint)
        self.catalog = Catalog(self.store, clock)
        self.last_step: int | None = None
        self.pending: _Pending | None = None
        self.prune_error: Exception | None = None
        self._pruning: Future[Exception | None] | None = None
        self._sweeping = threading.Lock()  # no save begins meanwhile: who sweeps would take it for a leftover
        self._live: tuple[str, ...] = ()  # prefix of an attempt that may be being written

    def latest(self) -> Manifest | None:
        """The newest published checkpoint of this run whose manifest can be read; None where there is none at all.

        Raises CorruptCheckpoint where none can be read, or the newest cannot and `checkpoint.fallback` is off.
        """
        manifest = self.catalog.latest(skip_unreadable=self.config.checkpoint.fallback)
        self.last_step = manifest.step if manifest else None
        return manifest

    def begin(self, mesh: Mesh, state: DriverState) -> None:
        """Have all ranks start to copy their state and to write the copy. Who changes the state next waits for it.

        Raises StorageError where the store does not answer who sweeps it.
        """
        assert self.pending is None, "one save at a time"
        started, limit = self.clock.monotonic(), self.config.checkpoint.save_s
        header = self._header(mesh, state)
        if not self._sweeping.acquire(timeout=limit):
            what = f"a sweep of leftovers has not ended for checkpoint.save_s={limit:g} s"
            raise StorageError(f"{self.store.url}: {what}: see why the store does not answer, or raise it")
        self._live = (header.prefix,)
        self._sweeping.release()
        mesh.call("begin_save", header.prefix, phase="save", deadline_s=limit)
        self.pending = _Pending(header, started, self.clock.monotonic() - started)

    def advance(self, mesh: Mesh) -> CheckpointRecord | None:
        """The next piece of what was begun, waiting for the ranks: slot 0 publishes, or has; the checkpoint then.

        What retention lets go is deleted after that, behind the training where the save was. Raises CheckpointError,
        StorageError, and the save is over then; GenerationBroken, and it is still pending.
        """
        assert self.pending is not None, "no save was begun"
        pending, self.pending = self.pending, None
        try:
            return self._advance(mesh, pending)
        except GenerationBroken:
            self.pending = pending
            raise

    def _advance(self, mesh: Mesh, pending: _Pending) -> CheckpointRecord | None:
        waiting, limit = self.clock.monotonic(), self.config.checkpoint.save_s
        if not pending.publishing:
            written = mesh.call("end_save", phase="save.publish", deadline_s=limit)
            mesh.call(
                "begin_publish", pending.header, rows=written, via="first_slot", phase="save.publish", deadline_s=limit
            )
            stall_s = max(one.stalled_s for one in written) + self.clock.monotonic() - waiting
            self.pending = dataclasses.replace(pending, stall_s=pending.stall_s + stall_s, publishing=True)
            return None
        manifest: Manifest = mesh.call("end_publish", via="first_slot", phase="save.publish", deadline_s=limit)
        now, self.last_step, self._live = self.clock.monotonic(), manifest.step, ()
        self._start_to_prune()
        if not self.config.checkpoint.asynchronous or manifest.iteration >= self.config.train.iterations:
            self.settle()
        return CheckpointRecord(
            step=manifest.step,
            uri=f"{self.store.url}/{manifest.prefix}",
            bytes=manifest.size_bytes,
            stall_s=pending.stall_s + now - waiting,
            total_s=now - pending.started,
            retries=manifest.retries,
        )

    @property
    def publishing(self) -> bool:
        """Whether all is written and slot 0 is at it."""
        return self.pending is not None and self.pending.publishing

    def end(self, mesh: Mesh) -> CheckpointRecord:
        """All that is left of what was begun. Raises as `advance` does."""
        while (record := self.advance(mesh)) is None:
            pass
        return record

    def settle(self) -> None:
        """Wait until nothing is being deleted any more, or for as long as a save may take."""
        if self._pruning is not None:
            limit, pruning, self._pruning = self.config.checkpoint.save_s, self._pruning, None
            try:
                self.prune_error = pruning.result(limit)
            except TimeoutError as error:
                self.prune_error = error

    def forget(self) -> None:
        """The generation broke: what was begun in it is abandoned, and made again."""
        self.pending = None

    def restore(self, mesh: Mesh, tell: Callable[[str], None]) -> Restored | None:
        """Fill every rank from the newest checkpoint that is whole; None where there is none at all.

        One that is damaged is told of, naming step and object, and all ranks load the next older one. Once they have,
        it is withdrawn, so that its step can be published again; until then nothing is touched.
        Raises CorruptCheckpoint where `checkpoint.fallback` is off, no older one is left, or a rank alone finds fault
        with a whole one; CheckpointError where it does not fit this run; StorageError.
        """
        self.settle()
        steps, damaged = self.catalog.steps(), list[int]()
        for step, older in zip_longest(steps, steps[1:]):
            try:
                manifest = self.catalog.load(step)
                state = driver_state(manifest)
                mesh.call("load", manifest, phase="load", deadline_s=self.config.checkpoint.save_s)
            except CorruptCheckpoint as error:
                tell(self._pass_over(step, older, error))
                damaged.append(step)
                continue
            for newer in damaged:
                self.catalog.withdraw(newer)
            self.last_step = step
            return Restored(manifest, state)
        self.last_step = None
        return None

    def _header(self, mesh: Mesh, state: DriverState) -> Header:
        layout = mesh.roster.layout
        return Header(
            run=self.config.run.name,
            step=state.step,
            iteration=state.iteration,
            generation=mesh.roster.generation,
            uid=secrets.token_hex(4),
            layout={axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp")},
            config_digest=config_digest(self.config),
            model=self.config.model.model_dump(mode="json"),
            state=_plain(state),
        )

    def _pass_over(self, step: int, older: int | None, error: CorruptCheckpoint) -> str:
        """What to say of a damaged checkpoint that is passed over. Raises CorruptCheckpoint where it must not be."""
        if older is None:
            remedy = "there is no older checkpoint: bring this one back, or take another run.name to start anew"
            raise CorruptCheckpoint(f"step {step}: {error}; {remedy}") from error
        if not self.config.checkpoint.fallback:
            remedy = f"checkpoint.fallback=true goes on from step {older}"
            raise CorruptCheckpoint(f"step {step}: {error}; {remedy}") from error
        problems = self.catalog.verify(step) or self.catalog.verify(step, deep=True)
        if not problems:
            remedy = "read from here it is whole: every node must see the same storage"
            raise CorruptCheckpoint(f"step {step}: {error}; {remedy}") from error
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return f"step {step}: {problems[0]}{more}; going back to step {older}"

    def _start_to_prune(self) -> None:
        """On a thread that holds up nobody. `prune_error` is what became of the time before."""
        self.settle()
        pruning = self._pruning = Future[Exception | None]()

        def prune() -> None:
            try:
                pruning.set_result(self._prune())
            except Exception as error:
                pruning.set_exception(error)

        threading.Thread(target=prune, name="prune", daemon=True).start()

    def _prune(self) -> Exception | None:
        """Delete what retention lets go. A store that refuses costs space, not the run: its error is returned.

        What cannot be read does not count, and stays.
        """
        knobs = self.config.checkpoint
        try:
            published = [(one.step, one.iteration) for one in self.catalog.published()]
            _, old = keep(published, knobs.keep_last, knobs.keep_every_iterations)
            self.catalog.prune(step for step, _ in old)
            with self._sweeping:
                self.catalog.sweep(LEFTOVER_S, self._live)
        except (StorageError, CheckpointError) as error:
            return error
        return None


def driver_state(manifest: Manifest) -> DriverState:
    """The driver's part of a checkpoint. Raises CheckpointError that names the keys which are not as they must be."""
    known, found = {field.name for field in dataclasses.fields(DriverState)}, set(manifest.state)
    wrong = {"unknown": found - known, "missing": known - found}
    try:
        state = TypeAdapter(DriverState).validate_python(manifest.state)
    except ValidationError as error:
        wrong["of another type"] = {str(one["loc"][0]) for one in error.errors()}
    if any(wrong.values()):
        what = "; ".join(f"{how}: {', '.join(sorted(keys))}" for how, keys in wrong.items() if keys)
        raise CheckpointError(
            f"the driver's state in {manifest.prefix} does not fit this version ({what}): take another run.name"
        )
    return state


def _plain(state: DriverState) -> dict[str, Any]:
    return dataclasses.asdict(state)

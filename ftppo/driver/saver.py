"""Durable checkpoints of a run. Comes in: the mesh, where the run stands; goes out: a published checkpoint, or state.

Ranks write, each on its own; slot 0 publishes once all have reported success; old checkpoints go after that.
"""

import dataclasses
import secrets
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.stores import config_digest, retrying_store_of
from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.mesh import Mesh
from ftppo.driver.record import CheckpointRecord
from ftppo.errors import CheckpointError, StorageError
from ftppo.plan.retention import keep
from ftppo.types import DriverState

LEFTOVER_S = 24 * 3600.0  # a failed attempt older than that is nobody's any more


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A save that was begun and is not published yet."""

    header: Header
    started: float  # monotonic
    stall_s: float  # training has stood still for it so far


class Saver:
    """Saves and restores, one save at a time. `last_step` is the step of the newest checkpoint; None: there is none."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config, self.clock = config, clock
        self.store = retrying_store_of(config.checkpoint)
        self.catalog = Catalog(self.store, clock)
        self.last_step: int | None = None
        self.pending: _Pending | None = None
        self.prune_error: Exception | None = None

    def latest(self) -> Manifest | None:
        """The newest published checkpoint of this run."""
        manifest = self.catalog.latest()
        self.last_step = manifest.step if manifest else None
        return manifest

    def begin(self, mesh: Mesh, state: DriverState) -> None:
        """Have all ranks copy their state and start to write it. Training waits for the copies alone."""
        assert self.pending is None, "one save at a time"
        started = self.clock.monotonic()
        header = self._header(mesh, state)
        mesh.call("begin_save", header.prefix, phase="save", deadline_s=self.config.checkpoint.save_s)
        self.pending = _Pending(header, started, self.clock.monotonic() - started)

    def end(self, mesh: Mesh) -> CheckpointRecord:
        """Publish what was begun, waiting for the ranks.

        Slot 0 publishes when every rank has reported success; what retention lets go is deleted after that.
        Raises CheckpointError, StorageError; nothing is published then.
        """
        assert self.pending is not None, "no save was begun"
        pending, self.pending = self.pending, None
        waiting, limit = self.clock.monotonic(), self.config.checkpoint.save_s
        records = mesh.call("end_save", phase="save.publish", deadline_s=limit)
        manifests = mesh.call("publish", pending.header, records, phase="save.publish", deadline_s=limit)
        manifest: Manifest = next(found for found in manifests if found is not None)
        self.last_step = manifest.step
        self.prune_error = self._prune()
        now = self.clock.monotonic()
        return CheckpointRecord(
            step=manifest.step,
            uri=f"{self.store.url}/{manifest.prefix}",
            bytes=manifest.size_bytes,
            stall_s=pending.stall_s + now - waiting,
            total_s=now - pending.started,
            retries=manifest.retries,
        )

    def forget(self) -> None:
        """The generation broke: what was begun in it is never published."""
        self.pending = None

    def restore(self, mesh: Mesh, manifest: Manifest) -> DriverState:
        """Fill every rank from a checkpoint. Raises CheckpointError where it does not fit this run."""
        mesh.call("load", manifest, phase="load", deadline_s=self.config.checkpoint.save_s)
        return driver_state(manifest)

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
            state=_plain(state),
        )

    def _prune(self) -> Exception | None:
        """Delete what retention lets go. A store that refuses costs space, not the run: its error is returned."""
        knobs = self.config.checkpoint
        try:
            published = [(one.step, one.iteration) for one in self.catalog.published()]
            _, old = keep(published, knobs.keep_last, knobs.keep_every_iterations)
            self.catalog.prune(step for step, _ in old)
            self.catalog.sweep(LEFTOVER_S)
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

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


class Saver:
    """Saves and restores. `last_step` is the step of the newest checkpoint known, None where there is none."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config, self.clock = config, clock
        self.store = retrying_store_of(config.checkpoint)
        self.catalog = Catalog(self.store, clock)
        self.last_step: int | None = None

    def latest(self) -> Manifest | None:
        """The newest published checkpoint of this run."""
        manifest = self.catalog.latest()
        self.last_step = manifest.step if manifest else None
        return manifest

    def save(self, mesh: Mesh, state: DriverState) -> CheckpointRecord:
        """Write and publish the state of all ranks. Raises CheckpointError, StorageError; nothing is published then."""
        started = self.clock.monotonic()
        header = self._header(mesh, state)
        limit = self.config.checkpoint.save_s
        records = mesh.call("save", header.prefix, phase="save", deadline_s=limit)
        manifests = mesh.call("publish", header, records, phase="save.publish", deadline_s=limit)
        manifest: Manifest = next(found for found in manifests if found is not None)
        self.last_step = state.step
        self._prune()
        spent = self.clock.monotonic() - started
        uri = f"{self.store.url}/{manifest.prefix}"
        return CheckpointRecord(
            state.step, uri, manifest.size_bytes, stall_s=spent, total_s=spent, retries=manifest.retries
        )

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

    def _prune(self) -> None:
        """Delete what retention lets go. A store that refuses costs space, not the run."""
        knobs = self.config.checkpoint
        try:
            published = [(one.step, one.iteration) for one in self.catalog.published()]
            _, old = keep(published, knobs.keep_last, knobs.keep_every_iterations)
            self.catalog.prune(step for step, _ in old)
            self.catalog.sweep(LEFTOVER_S)
        except (StorageError, CheckpointError) as error:
            self.prune_error: Exception | None = error


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

"""The checkpoints in a store. Comes in: a store and step numbers; goes out: manifests, problems found, things removed.

What exists is what has a manifest, found by looking into the store: nothing is remembered between runs. No torch here.
"""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from ftppo.checkpoint.index import Index, ObjectRecord
from ftppo.checkpoint.manifest import INDEX, Manifest, attempt_of, manifest_key, manifest_step
from ftppo.clock import Clock, SystemClock
from ftppo.errors import CheckpointError, CorruptCheckpoint, NotFound
from ftppo.storage.base import ObjectStore
from ftppo.storage.crc import crc32

_CHUNK_BYTES = 16 * 2**20  # of an object whose checksum is taken
_THREADS = 4  # that take checksums at once


@dataclass(frozen=True)
class Attempt:
    """What there is of one attempt to save `step`. `newest_s` is when its youngest object came, by the store."""

    step: int
    prefix: str
    num_objects: int
    size_bytes: int
    newest_s: float


class Catalog:
    """Checkpoints of one store. Every method asks the store anew."""

    def __init__(self, store: ObjectStore, clock: Clock | None = None) -> None:
        self.store = store
        self.clock = clock or SystemClock()

    def steps(self) -> list[int]:
        """Steps that have a manifest, newest first. Does not open the manifests."""
        found = (manifest_step(info.key) for info in self.store.list("step-"))
        return sorted((step for step in found if step is not None), reverse=True)

    def published(self) -> list[Manifest]:
        """All checkpoints whose manifest can be read, newest first."""
        found = []
        for step in self.steps():
            with suppress(CorruptCheckpoint):
                found.append(self.load(step))
        return found

    def latest(self, skip_unreadable: bool = False) -> Manifest | None:
        """The newest checkpoint; None where there is none.

        Raises CorruptCheckpoint where its manifest cannot be read; with `skip_unreadable`, where none can.
        """
        first: CorruptCheckpoint | None = None
        for step in self.steps():
            try:
                return self.load(step)
            except CorruptCheckpoint as error:
                first = first or error
                if not skip_unreadable:
                    break
        if first is not None:
            raise first
        return None

    def load(self, step: int) -> Manifest:
        """The checkpoint of `step`. Raises CheckpointError where there is none, CorruptCheckpoint where garbled."""
        manifest = self._manifest(step)
        if manifest is None:
            raise CheckpointError(f"{self.store.url}: no checkpoint of step {step}; there are {self.steps()}")
        return manifest

    def index(self, manifest: Manifest) -> Index:
        """Where the tensors of a checkpoint lie. Raises CorruptCheckpoint where the index is not what was published."""
        key = f"{manifest.prefix}/{INDEX}"
        wanted = manifest.find(INDEX)
        if wanted is None:
            raise CorruptCheckpoint(f"{manifest_key(manifest.step)} names no {INDEX}")
        try:
            data = self.store.get(key)
        except NotFound as error:
            raise CorruptCheckpoint(f"{key} is missing") from error
        if len(data) != wanted.size or f"{crc32(data):08x}" != wanted.crc32:
            raise CorruptCheckpoint(f"{key} is not what was written ({len(data)} bytes, {wanted.size} expected)")
        return Index.from_bytes(data, key)

    def verify(self, step: int, deep: bool = False) -> list[str]:
        """What is wrong with the checkpoint of `step`, one line each, each naming the object; nothing wrong: empty.

        Looks at presence and size of every object; `deep` reads them all and compares checksums.
        """
        try:
            manifest = self.load(step)
            self.index(manifest)
        except CheckpointError as error:
            return [str(error)]
        folder = f"{manifest.prefix}/"
        sizes = {info.key.removeprefix(folder): info.size_bytes for info in self.store.list(folder)}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="verify") as pool:
            problems = pool.map(
                lambda entry: self._problem(folder, entry, sizes.get(entry.name), deep), manifest.objects
            )
            return [problem for problem in problems if problem is not None]

    def withdraw(self, step: int) -> None:
        """Have the checkpoint of `step` not exist any more, so that the step can be published again.

        Its manifest goes; its objects are then an attempt that no manifest names, which sweep() removes in its time.
        """
        self.store.delete(manifest_key(step))

    def prune(self, steps: Iterable[int]) -> None:
        """Removes checkpoints, each manifest before its data: a removal cut short leaves an attempt that sweep() knows.

        Where the manifest cannot be read it alone is removed, and sweep() does the rest. Steps without one are passed.
        """
        for step in steps:
            try:
                manifest = self._manifest(step)
            except CorruptCheckpoint:
                manifest = None
            self.store.delete(manifest_key(step))
            if manifest is not None:
                self._delete_under(manifest.prefix)

    def attempts(self) -> list[Attempt]:
        """All attempts to save a step, the published ones too, newest step first."""
        found: dict[str, Attempt] = {}
        for info in self.store.list("step-"):
            place = attempt_of(info.key)
            if place is not None:
                step, prefix = place
                one = found.get(prefix, Attempt(step, prefix, 0, 0, info.modified_s))
                newest_s = max(one.newest_s, info.modified_s)
                found[prefix] = Attempt(step, prefix, one.num_objects + 1, one.size_bytes + info.size_bytes, newest_s)
        return sorted(found.values(), key=lambda one: (-one.step, one.prefix))

    def leftovers(self, older_than_s: float, live: Collection[str] = ()) -> list[Attempt]:
        """Attempts that no manifest names, of which no object is younger than that.

        `live` are prefixes of attempts still being written.
        """
        oldest_s = self.clock.now() - older_than_s
        old = [one for one in self.attempts() if one.newest_s <= oldest_s and one.prefix not in live]
        # manifests are asked for after the listing, one at a time: an attempt published meanwhile is then seen
        return [one for one in old if not self._names(one.step, one.prefix)]

    def sweep(self, older_than_s: float, live: Collection[str] = ()) -> list[Attempt]:
        """Removes leftovers(), and uploads never finished of that age. Returns the attempts removed.

        While there are any `live`, uploads are left alone, for one may be theirs.
        """
        swept = self.leftovers(older_than_s, live)
        for one in swept:
            self._delete_under(one.prefix)
        if not live:
            self.sweep_uploads(older_than_s)
        return swept

    def sweep_uploads(self, older_than_s: float) -> int:
        """Aborts uploads never finished of that age. Returns how many there were."""
        return self.store.sweep_uploads("step-", older_than_s)

    def _manifest(self, step: int) -> Manifest | None:
        key = manifest_key(step)
        try:
            manifest = Manifest.from_bytes(self.store.get(key), key)
        except NotFound:
            return None
        if manifest.step != step:
            raise CorruptCheckpoint(f"{key} is about step {manifest.step}")
        return manifest

    def _names(self, step: int, prefix: str) -> bool:
        """Whether the manifest of `step` names the attempt; one that cannot be read may name any."""
        try:
            manifest = self._manifest(step)
        except CorruptCheckpoint:
            return True
        return manifest is not None and manifest.prefix == prefix

    def _problem(self, folder: str, entry: ObjectRecord, size: int | None, deep: bool) -> str | None:
        key = folder + entry.name
        if size is None:
            return f"{key} is missing"
        if size != entry.size:
            return f"{key} has {size} bytes, {entry.size} were written"
        try:
            damaged = deep and self._crc32(key, size) != entry.crc32
        except NotFound:
            return f"{key} is missing"  # it is gone since the listing
        return f"{key} has other content than was written" if damaged else None

    def _crc32(self, key: str, size: int) -> str:
        found = 0
        for start in range(0, size, _CHUNK_BYTES):
            found = crc32(self.store.get(key, start, _CHUNK_BYTES), found)
        return f"{found:08x}"

    def _delete_under(self, prefix: str) -> None:
        for info in self.store.list(f"{prefix}/"):
            self.store.delete(info.key)

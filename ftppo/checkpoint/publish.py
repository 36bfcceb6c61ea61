"""Turns what all writers stored into a checkpoint. Comes in: their records; goes out: a Manifest, written last of all.

Until the manifest is there nothing exists for a reader. Its key is the same for all attempts to save a step and is
written create-only, so of several attempts one wins and none is ever overwritten.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ftppo.checkpoint.index import Index, ObjectRecord, ShardRecord
from ftppo.checkpoint.manifest import INDEX, Header, Manifest, manifest_key
from ftppo.checkpoint.stock import stock_files
from ftppo.clock import Clock, SystemClock
from ftppo.errors import AlreadyExists, CheckpointError, NotFound
from ftppo.storage.base import ObjectStore
from ftppo.storage.crc import crc32

_LOOK_EVERY_S = 0.5


def publish(
    store: ObjectStore,
    header: Header,
    records: Sequence[ShardRecord],
    writers: int,
    clock: Clock | None = None,
    visible_s: float = 30.0,
    confirm: Callable[[], None] = lambda: None,
) -> Manifest:
    """Publishes the attempt that `header` describes, stored by writers 0 to `writers` - 1.

    Where the step is published already with the same content (by this call whose answer was lost, or by a run that died
    right after) that is the success, and its manifest is returned: this attempt is left to be swept. It is, too, where
    the run has published the step in another layout, whose bytes cannot be compared.
    `visible_s` is how long objects may take to show in a listing (network file systems). `confirm` is called right
    before the manifest is written: what it raises keeps that from being. Raises CheckpointError where a writer failed
    or is missing, boxes do not tile a tensor, or an object has another size than recorded; AlreadyExists where the step
    is published with other content. Nothing is published then.
    """
    _check_outcomes(records, writers)
    index = Index.merge(records)
    data = tuple(stored for record in sorted(records, key=lambda record: record.writer) for stored in record.objects)
    found = _published(store, header, data)
    if found is not None:
        return found
    small = _put_small(store, header.prefix, {INDEX: index.to_bytes(), **stock_files(index, header)})
    retries = sum(record.retries for record in records)
    manifest = Manifest(**dict(header), objects=data + small, retries=retries)
    _check_sizes(store, manifest, clock or SystemClock(), visible_s)
    confirm()
    try:
        store.create(manifest_key(header.step), manifest.to_bytes())
    except AlreadyExists:
        found = _published(store, header, data)
        if found is None:
            raise
        return found
    return manifest


def _check_outcomes(records: Sequence[ShardRecord], writers: int) -> None:
    failed = [f"writer {record.writer}: {record.error}" for record in records if record.error is not None]
    if failed:
        raise CheckpointError(f"{len(failed)} of {writers} writers failed; {'; '.join(failed)}")
    present = sorted(record.writer for record in records)
    if present != list(range(writers)):
        raise CheckpointError(f"records of writers 0 to {writers - 1} are needed, there are {present}")


def _published(store: ObjectStore, header: Header, data: tuple[ObjectRecord, ...]) -> Manifest | None:
    """The manifest of the step; None where it has none. Raises AlreadyExists where it holds something else."""
    key = manifest_key(header.step)
    try:
        manifest = Manifest.from_bytes(store.get(key), key)
    except NotFound:
        return None
    about = header.model_copy(update={"layout": manifest.layout}).about()
    same_layout = manifest.layout == header.layout
    if manifest.about() != about or (same_layout and manifest.objects[: len(data)] != data):
        raise AlreadyExists(f"{store.url}/{key}: step {header.step} is published with other content, {manifest.prefix}")
    return manifest


def _put_small(store: ObjectStore, prefix: str, files: Mapping[str, bytes]) -> tuple[ObjectRecord, ...]:
    def put(name: str) -> ObjectRecord:
        found = crc32(files[name])
        store.put(f"{prefix}/{name}", files[name], found)
        return ObjectRecord(name=name, size=len(files[name]), crc32=f"{found:08x}")

    with ThreadPoolExecutor(len(files), thread_name_prefix="publish") as pool:  # training may wait for it
        return tuple(pool.map(put, files))


def _check_sizes(store: ObjectStore, manifest: Manifest, clock: Clock, visible_s: float) -> None:
    """What the store lists must be what the writers say they wrote, after `visible_s` at the latest."""
    give_up_s = clock.monotonic() + visible_s
    folder = f"{manifest.prefix}/"
    while True:
        listed = {info.key.removeprefix(folder): info.size_bytes for info in store.list(folder)}
        wrong = [entry for entry in manifest.objects if listed.get(entry.name) != entry.size]
        if not wrong:
            return
        if clock.monotonic() >= give_up_s:
            first, size = wrong[0], listed.get(wrong[0].name, "missing")
            raise CheckpointError(
                f"{store.url}/{folder}{first.name}: {size} where {first.size} bytes were written "
                f"({len(wrong)} of {len(manifest.objects)} objects are wrong)"
            )
        clock.sleep(_LOOK_EVERY_S)

"""What `python -m ftppo.checkpoint` does. Comes in: a Catalog and what was asked; goes out: lines, and an exit status.

Nothing here imports torch: the commands answer at once, on any machine that reaches the store.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from ftppo.checkpoint.catalog import Attempt, Catalog
from ftppo.checkpoint.index import Index
from ftppo.checkpoint.manifest import Manifest
from ftppo.checkpoint.tables import Cell, age, moment, size, table
from ftppo.errors import CheckpointError, CorruptCheckpoint
from ftppo.plan.retention import keep

FINE, PROBLEM = 0, 1


def list_all(catalog: Catalog) -> int:
    """Every checkpoint, and every attempt that is none, newest first."""
    attempts = {one.prefix: one for one in catalog.attempts()}
    rows: list[tuple[int, Sequence[Cell]]] = []
    status = FINE
    for step in catalog.steps():
        try:
            manifest = catalog.load(step)
        except CorruptCheckpoint as error:
            rows.append((step, (step, "", "", "", "", "", "", f"unreadable: {error}")))
            status = PROBLEM
            continue
        when = _when(catalog, attempts.pop(manifest.prefix, None))
        content = (size(manifest.size_bytes), len(manifest.objects))
        rows.append((step, (step, manifest.iteration, layout(manifest), *content, *when, "published")))
    for one in attempts.values():
        cells = (one.step, "", "", size(one.size_bytes), one.num_objects, *_when(catalog, one))
        rows.append((one.step, (*cells, f"unpublished: {one.prefix}")))
    if rows:
        header = ("STEP", "ITERATION", "LAYOUT", "SIZE", "OBJECTS", "WRITTEN", "AGE", "STATE")
        print(table(header, [cells for _, cells in sorted(rows, key=lambda row: -row[0])]))
    else:
        print(f"no checkpoint in {catalog.store.url}")
    return status


def verify(catalog: Catalog, step: int | None, deep: bool) -> int:
    """What is wrong with one checkpoint, or with each. Raises CheckpointError where there is none."""
    rows: list[Sequence[Cell]] = []
    status = FINE
    for one in _steps(catalog, step):
        problems = catalog.verify(one, deep)
        rows += [(one, "damaged", problem) for problem in problems] or [(one, "whole", "")]
        status = PROBLEM if problems else status
    print(table(("STEP", "STATE", "PROBLEM"), rows))
    return status


def show(catalog: Catalog, step: int | None, tensors: bool) -> int:
    """What the manifest of a checkpoint says, of the newest where none is named. Raises CheckpointError."""
    manifest = catalog.load(_steps(catalog, step)[0])
    facts = manifest.model_dump(mode="json", exclude={"objects", "layout"})
    rows = [("folder", manifest.prefix), ("layout", layout(manifest)), *_flat(facts)]
    print(table(("KEY", "VALUE"), rows))
    objects = [(entry.name, entry.size, entry.crc32) for entry in manifest.objects]
    print("\n" + table(("OBJECT", "BYTES", "CRC32"), objects))
    if tensors:
        print("\n" + table(("TENSOR", "DTYPE", "SHAPE", "BOXES", "BYTES"), list(_tensors(catalog.index(manifest)))))
    return FINE


def prune(catalog: Catalog, keep_last: int, keep_every: int, older_than_s: float, dry_run: bool) -> int:
    """Remove what retention lets go, and attempts that are nobody's any more; say what.

    A damaged checkpoint does not count as one that is kept, lest a whole one go for it, and is left alone.
    """
    readable = {one.step: one for one in catalog.published()}
    damaged = [step for step in catalog.steps() if catalog.verify(step)]
    whole = [(step, one.iteration) for step, one in readable.items() if step not in damaged]
    stay, go = keep(whole, keep_last, keep_every)
    if dry_run:
        uploads, leftovers = 0, catalog.leftovers(older_than_s)
    else:
        catalog.prune(step for step, _ in go)
        uploads, leftovers = catalog.sweep_uploads(older_than_s), catalog.sweep(older_than_s)
    does = "would remove" if dry_run else "removed"
    rows: list[Sequence[Cell]] = [("kept", f"step {step}", size(readable[step].size_bytes)) for step, _ in stay]
    rows += [("damaged, left alone", f"step {step}", "") for step in damaged]
    rows += [(does, f"step {step}", size(readable[step].size_bytes)) for step, _ in go]
    rows += [(does, one.prefix, size(one.size_bytes)) for one in leftovers]
    if uploads:
        rows.append((does, f"{uploads} unfinished uploads", ""))
    print(table(("", "WHAT", "SIZE"), rows) if rows else f"nothing to do in {catalog.store.url}")
    return PROBLEM if damaged else FINE


def layout(manifest: Manifest) -> str:
    """The layout that wrote it, as the presets are named: dp2tp2; single for one rank."""
    return "".join(f"{axis}{extent}" for axis, extent in manifest.layout.items() if extent > 1) or "single"


def _steps(catalog: Catalog, step: int | None) -> list[int]:
    """`step`, or all steps, newest first. Raises CheckpointError where there is none."""
    steps = catalog.steps()
    if not steps or step not in (None, *steps):
        about = "" if step is None else f" of step {step}; there are {steps}"
        raise CheckpointError(f"{catalog.store.url}: no checkpoint{about}")
    return steps if step is None else [step]


def _when(catalog: Catalog, attempt: Attempt | None) -> tuple[str, str]:
    """When it was written, and how long ago; blanks where nothing is left of it."""
    if attempt is None:
        return "", ""
    return moment(attempt.newest_s), age(catalog.clock.now() - attempt.newest_s)


def _tensors(index: Index) -> Iterator[tuple[Cell, ...]]:
    for key, items in index.by_key.items():
        shape = ", ".join(map(str, items[0].shape))
        yield key, items[0].dtype, f"[{shape}]", len(items), sum(item.length for item in items)


def _flat(facts: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys, and values as a person or JSON writes them."""
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value)

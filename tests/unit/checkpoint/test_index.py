"""Records survive JSON; boxes must tile each tensor; names lead back to steps."""

import json
import math
import random

import pytest
from pydantic import ValidationError

from ftppo.checkpoint.index import Index, Item, ObjectRecord, ShardRecord
from ftppo.checkpoint.manifest import Header, Manifest, attempt_of, attempt_prefix, manifest_key, manifest_step
from ftppo.errors import CheckpointError, CorruptCheckpoint


def item(
    offset: tuple[int, ...], size: tuple[int, ...], shape: tuple[int, ...] = (4, 6), dtype: str = "float32"
) -> Item:
    return Item(
        key="w", shape=shape, offset=offset, size=size, dtype=dtype, object="__0_0.distcp", start=0, length=9, crc32="1"
    )


def merge(*items: Item) -> Index:
    return Index.merge([ShardRecord(writer=writer, items=(found,)) for writer, found in enumerate(items)])


HEADER = {
    "run": "r", "step": 7, "iteration": 1, "generation": 2, "uid": "ab", "layout": {"dp": 2}, "config_digest": "d",
    "state": {"kl": 0.1 + 0.2, "worst": math.inf, "none": None},
}  # fmt: skip


def test_round_trip_keeps_every_bit() -> None:
    record = ShardRecord(writer=3, items=(item((0, 0), (4, 6)),), objects=(ObjectRecord(name="o", size=9, crc32="c"),))
    assert ShardRecord.from_bytes(record.to_bytes(), "here") == record
    assert ShardRecord.model_validate(json.loads(json.dumps(record.model_dump(mode="json")))) == record
    manifest = Manifest(**HEADER, objects=record.objects)
    again = Manifest.from_bytes(manifest.to_bytes(), "here")
    assert again == manifest and again.state["kl"] == 0.1 + 0.2 and again.prefix == "step-00000007/attempt-000002-ab"
    nan = Header(**(HEADER | {"state": {"x": math.nan}}))
    assert str(Header.from_bytes(nan.to_bytes(), "here").state["x"]) == "nan"


def test_a_state_that_json_cannot_keep_is_refused_at_once() -> None:
    with pytest.raises(ValidationError, match="state"):
        Header.model_validate(HEADER | {"state": {"x": object()}})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"items": [1]}', b"\xff\xfe", b'{"items": [], "more": 1}'])
def test_what_is_no_index_is_corrupt_and_named(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"a/index\.json is no index"):
        Index.from_bytes(data, "a/index.json")


def test_order_of_writers_does_not_matter() -> None:
    top, bottom = item((0, 0), (2, 6)), item((2, 0), (2, 6))
    assert merge(top, bottom).to_bytes() == merge(bottom, top).to_bytes()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([item((0, 0), (2, 6))], "w: 12 of 24 elements were written by nobody"),
        ([item((0, 0), (4, 6)), item((0, 0), (4, 6))], "w: written twice"),
        ([item((0, 0), (2, 6)), item((2, 0), (2, 5)), item((1, 5), (1, 1))], "w: written twice"),
        ([item((0, 0), (5, 6))], "w: box .* leaves"),
        ([item((0, 0), (2, 6)), item((2, 0), (2, 6), shape=(4, 7))], "w: writers disagree"),
        ([item((0, 0), (2, 6)), item((2, 0), (2, 6), dtype="int64")], "w: writers disagree"),
        ([item((), (), ()), item((), (), ())], "w: written twice"),
    ],
)
def test_what_does_not_tile_is_refused_with_the_key(items: list[Item], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        merge(*items)


def cut(shape: tuple[int, ...], draw: random.Random) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A random tiling by repeated cuts."""
    parts = [(tuple(0 for _ in shape), shape)]
    for _ in range(draw.randint(0, 12)):
        offset, size = parts.pop(draw.randrange(len(parts)))
        axis = draw.randrange(len(shape))
        if size[axis] < 2:
            parts.append((offset, size))
            continue
        at = draw.randint(1, size[axis] - 1)
        for begin, n in ((0, at), (at, size[axis] - at)):
            part_offset = (*offset[:axis], offset[axis] + begin, *offset[axis + 1 :])
            parts.append((part_offset, (*size[:axis], n, *size[axis + 1 :])))
    return parts


@pytest.mark.parametrize("seed", range(40))
def test_any_tiling_passes_and_any_gap_or_overlap_does_not(seed: int) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.randint(2, 7) for _ in range(draw.randint(1, 3)))
    items = [item(offset, size, shape) for offset, size in cut(shape, draw)]
    merge(*items)
    with pytest.raises(CheckpointError, match="w: written twice"):
        merge(*items, draw.choice(items))
    if len(items) > 1:
        items.pop(draw.randrange(len(items)))
        with pytest.raises(CheckpointError, match="written by nobody"):
            merge(*items)


def test_names_lead_back_to_steps() -> None:
    assert manifest_step(manifest_key(42)) == 42 and manifest_step(manifest_key(123456789)) == 123456789
    assert manifest_step("step-00000042/attempt-000001-a/manifest.json") is None
    prefix = attempt_prefix(42, 3, "9f")
    assert attempt_of(f"{prefix}/__0_0.distcp") == (42, prefix)
    assert attempt_of(manifest_key(42)) is None and attempt_of("notes.txt") is None

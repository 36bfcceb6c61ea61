"""Ranks of another layout load from a bucket, each through a proxy of its own that sees what it asks for."""

import re
from collections.abc import Sequence

import pytest
import torch

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import Item
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.publish import publish
from ftppo.checkpoint.shards import read_shards, write_shards
from ftppo.clock import FakeClock
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.storage.url import open_store
from tests.storage.proxy import FaultProxy

LAYERS, ROWS, COLUMNS = 8, 16, 40
WRITERS = 2  # tensor-parallel: each holds half of the rows of every layer
READERS = 4  # pipeline-parallel: each wants two whole layers

type Range = tuple[str, int, int]  # object, first byte, last byte


def layer(number: int) -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) + 1000.0 * number


def piece(number: int, tensor: torch.Tensor, row: int = 0) -> Piece:
    return Piece(f"layers.{number}.w", (ROWS, COLUMNS), (row, 0), tensor)


def saved(store: ObjectStore) -> Manifest:
    """A checkpoint of all layers by the writers."""
    header = Header(run="r", step=1, iteration=1, generation=1, uid="a", layout={}, config_digest="d", state={})
    retrier, half = Retrier(RetryPolicy(), FakeClock()), ROWS // WRITERS
    records = []
    for writer in range(WRITERS):
        row = writer * half
        pieces = [piece(number, layer(number)[row : row + half], row) for number in range(LAYERS)]
        records.append(write_shards(pieces, store, header.prefix, writer, retrier, part_bytes=4096))
    return publish(store, header, records, WRITERS)


def asked(proxy: FaultProxy) -> list[Range]:
    """What was read through `proxy`."""
    found = []
    for seen in proxy.seen:
        assert seen.method == "GET", seen
        name = re.search(r"__\d+_0\.distcp", seen.path)
        limits = re.fullmatch(r"bytes=(\d+)-(\d+)", seen.headers.get("range", ""))
        assert name and limits, f"a whole object was asked for: {seen}"
        found.append((name[0], int(limits[1]), int(limits[2])))
    return sorted(found)


def needed(items: Sequence[Item], keys: Sequence[str]) -> list[Range]:
    """From each object the bytes from the first to the last of the items of `keys`, which lie side by side."""
    ranges = []
    for name in sorted({item.object for item in items}):
        wanted = [item for item in items if item.object == name and item.key in keys]
        first, end = min(item.start for item in wanted), max(item.start + item.length for item in wanted)
        assert end - first == sum(item.length for item in wanted)
        ranges.append((name, first, end - 1))
    return ranges


def test_each_rank_fetches_its_own_bytes_and_all_ranks_together_each_byte_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    endpoint, bucket = request.getfixturevalue(f"{kind}_endpoint"), request.getfixturevalue(f"{kind}_bucket")
    url = f"{'gs' if kind == 'gcs' else kind}://{bucket}/run"
    direct = open_store(url, endpoint=endpoint)
    manifest = saved(direct)
    index, total = Catalog(direct).index(manifest), 0
    direct.close()
    for reader in range(READERS):
        mine = range(LAYERS // READERS * reader, LAYERS // READERS * (reader + 1))
        found = {number: torch.zeros(ROWS, COLUMNS) for number in mine}
        with FaultProxy(endpoint) as proxy:
            store = open_store(url, endpoint=proxy.url)
            fetched = read_shards([piece(*one) for one in found.items()], index, store, manifest.prefix)
            store.close()
            ranges = asked(proxy)
        assert all(torch.equal(tensor, layer(number)) for number, tensor in found.items())
        assert ranges == needed(index.items, [f"layers.{number}.w" for number in mine])
        assert fetched == sum(last - first + 1 for _, first, last in ranges)
        total += fetched
    assert total == sum(stored.size for stored in manifest.objects if stored.name.endswith(".distcp"))

"""Any boxes in, any boxes out; only what is needed is fetched; what is wrong is named."""

import itertools
import random
from collections.abc import Buffer

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import Index, ShardRecord
from ftppo.checkpoint.pieces import Piece, flat_pieces
from ftppo.checkpoint.planning import merge_runs, plan_load
from ftppo.checkpoint.shards import read_shards, write_shards
from ftppo.errors import CheckpointError, CorruptCheckpoint, StorageError
from ftppo.storage.base import Upload
from ftppo.storage.memory import MemoryStore
from ftppo.storage.retry import Retrier

from .conftest import Cut, Save

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


def whole(key: str, tensor: Tensor) -> Piece:
    return Piece(key, tuple(tensor.shape), tuple(0 for _ in tensor.shape), tensor)


def transposed(like: Tensor) -> Tensor:
    order = tuple(reversed(range(like.dim())))
    return torch.zeros(tuple(reversed(like.shape))).permute(order)


def written(store: MemoryStore, retrier: Retrier, *shards: list[Piece]) -> Index:
    return Index.merge(write_shards(pieces, store, "a", writer, retrier) for writer, pieces in enumerate(shards))


@pytest.mark.parametrize("seed", range(25))
def test_random_boxes_come_back_in_other_random_boxes(
    seed: int, store: MemoryStore, retrier: Retrier, cut: Cut
) -> None:
    draw = random.Random(seed)
    source: dict[str, Tensor] = {}
    for number in range(4):
        shape = tuple(draw.randint(1, 7) for _ in range(draw.randint(0, 3)))
        source[f"t{number}"] = torch.randn(shape, generator=torch.Generator().manual_seed(seed + number))
    pieces = [piece for key, tensor in source.items() for piece in cut(key, tensor, draw)]
    draw.shuffle(pieces)
    index = written(store, retrier, pieces[::3], pieces[1::3], pieces[2::3])
    target = {key: torch.zeros_like(tensor) for key, tensor in source.items()}
    for _ in range(2):  # two ranks of another layout, the second reading into transposed memory
        wanted = [piece for key, tensor in target.items() for piece in cut(key, tensor, draw)]
        read_shards(wanted, index, store, "a")
        assert all(torch.equal(target[key], tensor) for key, tensor in source.items())
        target = {key: transposed(tensor) for key, tensor in source.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_kept_to_the_bit(dtype: torch.dtype, store: MemoryStore, retrier: Retrier) -> None:
    tensor = torch.randint(0, 2, (5, 3)).to(dtype)
    target = torch.zeros_like(tensor)
    read_shards([whole("w", target)], written(store, retrier, [whole("w", tensor)]), store, "a")
    assert torch.equal(target, tensor)


def test_flat_shards_of_a_distributed_optimizer_reshard(store: MemoryStore, retrier: Retrier) -> None:
    moment = torch.randn(10, 6)
    shards = []
    for column in range(2):  # TP 2 cuts columns, DP 3 cuts each local tensor's flat range
        flat = moment[:, 3 * column : 3 * column + 3].reshape(-1)
        bounds = [0, 7, 19, 30]
        for start, stop in itertools.pairwise(bounds):
            shards.append(flat_pieces("m", (10, 6), (10, 3), (0, 3 * column), start, flat[start:stop]))
    index = written(store, retrier, *shards)
    flat = torch.zeros(17)
    read_shards(flat_pieces("m", (10, 6), (10, 6), (0, 0), 20, flat), index, store, "a")  # TP 1, DP 4 or so
    assert torch.equal(flat, moment.reshape(-1)[20:37])


def test_a_view_is_stored_without_the_rest_of_its_storage(store: MemoryStore, retrier: Retrier) -> None:
    big = torch.zeros(100_000)
    record = write_shards([whole("w", big[:10])], store, "a", 0, retrier)
    assert record.objects[0].size < 5_000


def test_parameters_are_read_and_written_in_place(store: MemoryStore, retrier: Retrier) -> None:
    source, target = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.zeros(3, 2))
    source.__dict__["allreduce"] = lambda: None  # an attribute that would not pickle
    read_shards([whole("w", target)], written(store, retrier, [whole("w", source)]), store, "a")
    assert torch.equal(target, source) and target.requires_grad and target.grad_fn is None


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[str, int, int | None]] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.ranges.append((key, start, length))
        return super().get(key, start, length)


def test_only_overlapping_items_are_fetched_and_neighbours_in_one_read(retrier: Retrier) -> None:
    store = CountingStore()
    tensor = torch.arange(40.0).view(8, 5)
    rows = [Piece("w", (8, 5), (row, 0), tensor[row : row + 1]) for row in range(8)]
    index = written(store, retrier, rows[:4], rows[4:])
    target = torch.zeros(4, 5)
    fetched = read_shards([Piece("w", (8, 5), (1, 0), target)], index, store, "a")
    assert torch.equal(target, tensor[1:5])
    assert sorted(key for key, _, _ in store.ranges) == ["a/__0_0.distcp", "a/__1_0.distcp"]
    assert fetched == sum(item.length for item in index.items[1:5])


def test_runs_are_cut_at_the_limit(store: MemoryStore, retrier: Retrier) -> None:
    pieces = [whole(f"t{number}", torch.zeros(2)) for number in range(5)]
    index = written(store, retrier, pieces)
    wanted = plan_load(pieces, index)
    assert [len(run) for run in merge_runs(wanted, 2 * index.items[0].length)] == [2, 2, 1]
    assert [len(run) for run in merge_runs(wanted, 1)] == [1] * 5


def test_empty_pieces_are_nothing(store: MemoryStore, retrier: Retrier) -> None:
    empty = Piece("w", (4, 2), (4, 0), torch.zeros(0, 2))
    assert write_shards([empty], store, "a", 3, retrier) == ShardRecord(writer=3)
    assert store.list() == []
    assert read_shards([empty], Index(items=()), store, "a") == 0


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (whole("v", torch.zeros(4, 2)), "v: not in the checkpoint"),
        (whole("w", torch.zeros(4, 3)), r"w: the checkpoint has shape \(4, 2\), wanted \(4, 3\)"),
        (
            whole("w", torch.zeros(4, 2, dtype=torch.bfloat16)),
            "w: the checkpoint has dtype torch.float32, wanted torch.bf",
        ),
    ],
)
def test_what_does_not_fit_is_named(piece: Piece, message: str, store: MemoryStore, retrier: Retrier) -> None:
    index = written(store, retrier, [whole("w", torch.zeros(4, 2))])
    with pytest.raises(CheckpointError, match=message):
        read_shards([whole("w", torch.zeros(4, 2)), piece], index, store, "a")


def test_uncovered_elements_are_named(store: MemoryStore, retrier: Retrier) -> None:
    record = write_shards([Piece("w", (4, 2), (0, 0), torch.zeros(3, 2))], store, "a", 0, retrier)
    with pytest.raises(CheckpointError, match=r"w: 2 elements of box \(0, 0\)\+\(4, 2\) are not stored"):
        read_shards([whole("w", torch.zeros(4, 2))], Index(items=record.items), store, "a")


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "missing"])
def test_damage_is_found_where_it_is_and_only_there(
    damage: str, store: MemoryStore, save: Save, retrier: Retrier
) -> None:
    tensor = torch.arange(8.0).view(4, 2)
    manifest = save(store, [[Piece("w", (4, 2), (0, 0), tensor[:2])], [Piece("w", (4, 2), (2, 0), tensor[2:])]])
    key = f"{manifest.prefix}/__1_0.distcp"
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    if damage == "missing":
        store.delete(key)
    else:
        store.put(key, {"flip": bytes(data), "truncate": bytes(data[:-1]), "empty": b""}[damage])
    index, target = Catalog(store).index(manifest), torch.zeros(4, 2)
    read_shards([Piece("w", (4, 2), (0, 0), target[:2])], index, store, manifest.prefix)
    assert torch.equal(target[:2], tensor[:2])
    with pytest.raises(CorruptCheckpoint, match=rf"{manifest.prefix}/__1_0\.distcp"):
        read_shards([whole("w", target)], index, store, manifest.prefix)


class NoisyStore(MemoryStore):
    """Flips a bit of the first answer on its way out."""

    noise = 1

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = bytearray(super().get(key, start, length))
        data[len(data) // 2] ^= self.noise
        self.noise = 0
        return bytes(data)


def test_a_bit_flipped_on_the_way_is_read_again(retrier: Retrier) -> None:
    store, target = NoisyStore(), torch.zeros(4)
    read_shards([whole("w", target)], written(store, retrier, [whole("w", torch.ones(4))]), store, "a")
    assert torch.equal(target, torch.ones(4)) and store.noise == 0


class FullStore(MemoryStore):
    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        raise StorageError("no space left")

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        raise StorageError("no space left")


@pytest.mark.parametrize("num_elements", [10, 100_000])
def test_the_stores_own_error_comes_out(num_elements: int, retrier: Retrier) -> None:
    pieces = [whole(f"t{number}", torch.zeros(num_elements)) for number in range(3)]
    with pytest.raises(StorageError, match="no space left"):
        write_shards(pieces, FullStore(), "a", 0, retrier, part_bytes=1024, ring_buffers=2)

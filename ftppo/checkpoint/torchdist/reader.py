"""Fills pieces from a torch_dist checkpoint. Comes in: Pieces, a folder or URL; goes out: bytes read.

Names are Megatron-Core's own, as ours are; layers may be stacked along a first axis or numbered. Each rank reads what
overlaps its pieces, whatever layout wrote the checkpoint.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor

from ftppo.checkpoint.huggingface.names import EMBEDDING, OUTPUT, own_shapes, stacks_layers
from ftppo.checkpoint.index import Index, Item, check_tiling
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.planning import plan_load
from ftppo.checkpoint.shards import read_shards
from ftppo.checkpoint.stock import torch_dtype
from ftppo.checkpoint.stores import retrying_store_of
from ftppo.checkpoint.torchdist.metadata import read_index
from ftppo.config import Config
from ftppo.errors import CheckpointError, ConfigError, StorageError
from ftppo.storage.base import ObjectStore

KEY = "model.weights"


def check_weights(config: Config, vocab: int) -> None:
    """Raise ConfigError unless `model.weights` holds all weights of the model, which has `vocab` tokens. Reads none."""
    try:
        with closing(_store_of(config)) as store:
            index = read_index(store)
        for key, shape in own_shapes(config.model, vocab).items():
            whole = Piece(key, shape, (0,) * len(shape), torch.empty(shape, device="meta"))
            for piece in _stored(whole, index, vocab):
                check_tiling(piece.key, _items(piece, index))
                plan_load([replace(piece, tensor=piece.tensor.to(_dtype(piece, index)))], index)
    except (CheckpointError, StorageError) as error:
        raise ConfigError(KEY, config.model.weights, str(error)) from error


def read_weights(pieces: Iterable[Piece], config: Config, vocab: int) -> int:
    """Fill `pieces` from `model.weights`, converted to their dtype. Returns the bytes that were fetched.

    Rows of the vocabulary from `vocab` on become 0: they only pad it. Raises CheckpointError, StorageError.
    """
    with closing(_store_of(config)) as store:
        index = read_index(store)
        wanted = [piece for whole in pieces for piece in _stored(whole, index, vocab)]
        fetched = read_shards([piece for piece in wanted if _fits(piece, index)], index, store, "")
        for piece in wanted:
            if not _fits(piece, index):  # by way of a copy, one at a time
                copy = torch.empty(piece.size, dtype=_dtype(piece, index))
                fetched += read_shards([replace(piece, tensor=copy)], index, store, "")
                piece.tensor.copy_(copy)
    return fetched


def _store_of(config: Config) -> ObjectStore:
    try:
        return retrying_store_of(config.checkpoint.model_copy(update={"url": config.model.weights}))
    except ConfigError as error:
        raise ConfigError(KEY, config.model.weights, error.remedy) from error


def _stored(piece: Piece, index: Index, vocab: int) -> Iterator[Piece]:
    """`piece` by the names and shapes of the checkpoint. Raises CheckpointError where it lacks a tensor of it."""
    if piece.key in (EMBEDDING, OUTPUT):
        yield from _without_padding(piece, index, vocab)
    elif piece.key in index.by_key or not stacks_layers(piece.key):
        yield piece
    else:
        yield from (_of_layer(piece, row, tensor) for row, tensor in enumerate(piece.tensor, piece.offset[0]))


def _without_padding(piece: Piece, index: Index, vocab: int) -> Iterator[Piece]:
    """The rows that are tokens; the others become 0: how many rows only pad hangs on who wrote the checkpoint."""
    rows = max(0, min(piece.size[0], vocab - piece.offset[0]))
    piece.tensor[rows:].zero_()
    there = _items(piece, index)[0].shape
    if there[1:] != piece.global_shape[1:] or there[0] < vocab:
        wanted = (vocab, *piece.global_shape[1:])
        raise CheckpointError(f"{piece.key}: the checkpoint has shape {there}, wanted {wanted} or more rows")
    if rows:
        yield Piece(piece.key, there, piece.offset, piece.tensor[:rows])


def _of_layer(piece: Piece, layer: int, tensor: Tensor) -> Piece:
    """One row of a piece whose first axis counts the layers, where each layer has tensors of its own."""
    stack, _, rest = piece.key.partition("layers.")
    return Piece(f"{stack}layers.{layer}.{rest}", piece.global_shape[1:], piece.offset[1:], tensor)


def _fits(piece: Piece, index: Index) -> bool:
    return piece.tensor.dtype == _dtype(piece, index)


def _dtype(piece: Piece, index: Index) -> torch.dtype:
    return torch_dtype(_items(piece, index)[0])


def _items(piece: Piece, index: Index) -> list[Item]:
    found = index.by_key.get(piece.key)
    if found is None:
        names = ", ".join(sorted(index.by_key)[:2]) or "none"
        raise CheckpointError(f"{piece.key}: not in the checkpoint, which holds {len(index.by_key)} tensors ({names})")
    return found

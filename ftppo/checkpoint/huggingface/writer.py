"""A published checkpoint as a folder that transformers loads. Comes in: a store, a manifest; goes out: the folder.

Tensors are put together one after another and written at once, so that memory holds one of them, however large the
model. The format: 8 bytes of length, a JSON header, the data (https://github.com/huggingface/safetensors, README).
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

import torch
from pydantic import ValidationError
from torch import Tensor

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.huggingface.names import EMBEDDING, Strip, shapes, strips
from ftppo.checkpoint.huggingface.reader import INDEX, SINGLE
from ftppo.checkpoint.index import Index
from ftppo.checkpoint.manifest import Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.shards import read_shards
from ftppo.checkpoint.stock import torch_dtype
from ftppo.config_model import Model
from ftppo.errors import CheckpointError, ConfigError
from ftppo.pretrained import CONFIG, TOKENIZER, locate, to_config_json
from ftppo.storage.base import ObjectStore

_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}

type Plan = list[dict[str, tuple[int, ...]]]  # a file each: its tensors and their shapes, in order


def export(store: ObjectStore, manifest: Manifest, out: Path, shard_bytes: int) -> list[str]:
    """Write the policy of a checkpoint to the new folder `out`; returns the names of its files.

    Weights keep their dtype and every bit; files of weights are up to `shard_bytes` (one tensor may be larger). The
    tokenizer of the model that training began with is copied where that is still found. `out` appears when it is whole.
    Raises CheckpointError, CorruptCheckpoint, StorageError; ConfigError where `out` exists.
    """
    if out.exists():
        raise ConfigError("OUT", str(out), "exists: name a new folder")
    model, index = _model(manifest), Catalog(store).index(manifest)
    items = index.by_key.get(EMBEDDING)
    if items is None:
        raise CheckpointError(f"{manifest.prefix} holds no {EMBEDDING}: it is no checkpoint of a policy")
    dtype, vocab = torch_dtype(items[0]), model.vocab or items[0].shape[0]
    found = strips(model, vocab)
    out.parent.mkdir(parents=True, exist_ok=True)
    temp = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        temp.chmod(0o755)
        plan = _plan(found, dtype, shard_bytes)
        _write_weights(temp, plan, dtype, _tensors(found, dtype, index, store, manifest.prefix))
        _write_json(temp / CONFIG, to_config_json(model, vocab, str(dtype).removeprefix("torch.")))
        _copy_tokenizer(model, temp)
        temp.rename(out)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return sorted(file.name for file in out.iterdir())


def _model(manifest: Manifest) -> Model:
    if not manifest.model:
        raise CheckpointError(f"{manifest.prefix} does not say what model it is of: an older version wrote it")
    try:
        return Model.model_validate(manifest.model)
    except ValidationError as error:
        raise CheckpointError(f"{manifest.prefix} describes no model: {error.errors()[0]['msg']}") from error


def _plan(found: Sequence[Strip], dtype: torch.dtype, shard_bytes: int) -> Plan:
    files: Plan = [{}]
    used = 0
    for name, shape in shapes(found).items():
        size = math.prod(shape) * dtype.itemsize
        if used and used + size > shard_bytes:
            files.append({})
            used = 0
        files[-1][name] = shape
        used += size
    return files


def _tensors(
    found: Sequence[Strip], dtype: torch.dtype, index: Index, store: ObjectStore, prefix: str
) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's tensors in the order of `found`, those of one of ours put together at once."""
    for _, group in groupby(found, lambda strip: (strip.key, strip.layer)):
        some = list(group)
        tensors = {name: torch.empty(shape, dtype=dtype) for name, shape in shapes(some).items()}
        read_shards([_piece(strip, tensors[strip.name], index) for strip in some], index, store, prefix)
        yield from tensors.items()


def _piece(strip: Strip, whole: Tensor, index: Index) -> Piece:
    items = index.by_key.get(strip.key)
    if items is None:
        raise CheckpointError(f"{strip.key}: not in the checkpoint")
    view, offset = whole[strip.at : strip.at + strip.rows], (strip.start, *(0 for _ in strip.columns))
    if strip.layer is not None:
        view, offset = view[None], (strip.layer, *offset)
    return Piece(strip.key, items[0].shape, offset, view)


def _write_weights(folder: Path, plan: Plan, dtype: torch.dtype, tensors: Iterator[tuple[str, Tensor]]) -> None:
    names = [f"model-{number:05}-of-{len(plan):05}.safetensors" for number in range(1, len(plan) + 1)]
    if len(plan) == 1:
        names = [SINGLE]
    for name, planned in zip(names, plan, strict=True):
        with (folder / name).open("wb") as file:
            _write_header(file, planned, dtype)
            for expected in planned:
                given, tensor = next(tensors)
                assert given == expected, f"{given} comes where {expected} was planned"
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
    if len(plan) > 1:
        place = {tensor: name for name, planned in zip(names, plan, strict=True) for tensor in planned}
        total = sum(math.prod(shape) for planned in plan for shape in planned.values()) * dtype.itemsize
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": place})


def _write_header(file: IO[bytes], planned: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in planned.items():
        end = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [start, end]}
        start = end
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)  # data begin at a multiple of 8 bytes
    file.write(len(data).to_bytes(8, "little") + data)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _copy_tokenizer(model: Model, folder: Path) -> None:
    if model.path is None:
        return
    try:
        origin = locate(model.path, TOKENIZER)
    except ConfigError:
        return  # no longer there: the weights do without
    for name in TOKENIZER:
        if (origin / name).is_file():
            shutil.copyfile(origin / name, folder / name)

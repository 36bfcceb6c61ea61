"""Fills pieces from a folder of safetensors. Comes in: Pieces, a folder; goes out: bytes read. No other rank is asked.

The files are mapped, not read: of a tensor only the rows and columns of a piece are fetched. What has been fetched
counts as this process's memory for as long as its file is mapped, so no file stays so for longer than a tensor takes.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor, no_grad

from ftppo.checkpoint.huggingface.names import EMBEDDING, OUTPUT, Strip, shapes, stacks_layers, strips
from ftppo.checkpoint.pieces import Piece
from ftppo.config_model import Model
from ftppo.errors import ConfigError
from ftppo.pretrained import KEY, WEIGHTS, locate, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")
_NEEDLESS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")  # computed, and once stored


def check_weights(model: Model, classifies: bool = False) -> None:
    """Raise ConfigError unless `model.path` holds exactly the weights of `model`. Reads no weights, headers alone."""
    assert model.path is not None and model.vocab is not None
    wanted = shapes(strips(model, model.vocab, classifies))
    with _Files(locate(model.path, WEIGHTS)) as files:
        for name, size in wanted.items():
            files.part(name, size)
        tied = {"lm_head.weight"} if model.tie_embeddings else set()
        extra = sorted(name for name in files.names - wanted.keys() - tied if not name.endswith(_NEEDLESS))
    if extra:
        remedy = f"holds {len(extra)} tensors that no {model.family} has here, {extra[0]} first: take another model"
        raise ConfigError(KEY, model.path, remedy)


def read_weights(pieces: Iterable[Piece], model: Model, classifies: bool = False) -> int:
    """Fill `pieces` of `model` from `model.path`, converted to their dtype. Returns the bytes that were fetched.

    Rows of a padded vocabulary become 0. Raises ConfigError where the folder lacks what a piece needs.
    """
    assert model.path is not None and model.vocab is not None
    found = strips(model, model.vocab, classifies)
    places: dict[tuple[str, int | None], list[Strip]] = {}
    for strip in found:
        places.setdefault((strip.key, strip.layer), []).append(strip)
    sizes = shapes(found)
    with _Files(locate(model.path, WEIGHTS)) as files, no_grad():
        return sum(_fill(piece, places, sizes, files) for piece in pieces)


def _fill(
    piece: Piece,
    places: dict[tuple[str, int | None], list[Strip]],
    sizes: dict[str, tuple[int, ...]],
    files: "_Files",
) -> int:
    if not stacks_layers(piece.key):
        return _fill_matrix(piece.tensor, piece.key, piece.offset, places[piece.key, None], sizes, files)
    first = piece.offset[0]
    return sum(
        _fill_matrix(target, piece.key, piece.offset[1:], places[piece.key, first + row], sizes, files)
        for row, target in enumerate(piece.tensor)
    )


def _fill_matrix(
    target: Tensor,
    key: str,
    offset: tuple[int, ...],
    found: list[Strip],
    sizes: dict[str, tuple[int, ...]],
    files: "_Files",
) -> int:
    """Rows and columns of `target` from `offset` on; returns bytes fetched."""
    top, bottom = offset[0], offset[0] + target.shape[0]
    columns = [slice(at, at + size) for at, size in zip(offset[1:], target.shape[1:], strict=True)]
    covered = fetched = 0
    for strip in found:
        begin, end = max(strip.start, top), min(strip.start + strip.rows, bottom)
        if begin >= end:
            continue
        shift = strip.at - strip.start
        source: Tensor = files.part(strip.name, sizes[strip.name])[(slice(begin + shift, end + shift), *columns)]
        target[begin - top : end - top].copy_(source)
        covered += end - begin
        fetched += source.nbytes
    files.let_go()
    if covered < target.shape[0]:
        assert key in (EMBEDDING, OUTPUT), f"{key}: {covered} of {target.shape[0]} rows have a source"
        target[covered:].zero_()
    return fetched


class _Files:
    """The files of a folder; each is opened when something of it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._open: dict[str, Any] = {}
        listed = read_json(folder, INDEX).get("weight_map")
        self._place = listed or dict.fromkeys(self._file(SINGLE).keys(), SINGLE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def let_go(self) -> None:
        """Close what is open."""
        self._open.clear()
        self._stack.close()

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._place)

    def part(self, name: str, shape: tuple[int, ...]) -> Any:
        """A tensor of `shape`, to be indexed with slices: what is not asked for is not fetched. Raises ConfigError."""
        if name not in self._place:
            raise self._unfit(f"lacks {name}")
        try:
            found = self._file(self._place[name]).get_slice(name)
        except SafetensorError as error:
            raise self._unfit(f"lacks {name}, which its index names ({error})") from error
        if tuple(found.get_shape()) != shape:
            raise self._unfit(f"has {name} of shape {tuple(found.get_shape())}, not {shape} as its config.json says")
        if found.get_dtype() not in _DTYPES:
            raise self._unfit(f"has {name} as {found.get_dtype()}, and weights can be {', '.join(_DTYPES)}")
        return found

    def _file(self, name: str) -> Any:
        if name not in self._open:
            path = self.folder / name
            if not path.is_file():
                raise self._unfit(f"has no {name}: weights are read from safetensors alone")
            try:
                self._open[name] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise self._unfit(f"holds a {name} that cannot be read ({error}): fetch it again") from error
        return self._open[name]

    def _unfit(self, remedy: str) -> ConfigError:
        return ConfigError(KEY, str(self.folder), remedy)

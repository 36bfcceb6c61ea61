"""Snapshots: copies of slots' state in host memory. Comes in: tensors; goes out: flat buffers, two versions a slot.

A version numbers the changes to the weights of a run. A slot holds copies of its own state and of the slot that it is
the buddy of; memory is bounded by two buffers for each, and the one being filled. A copy that a buddy on the same
machine holds is the owner's own, in memory that both map: it is there once. Each mesh layout cuts the state its own
way, so a copy goes by its layout too.
"""

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ftppo.checkpoint.shared import SharedBuffer, share

type Buffer = np.ndarray[tuple[int], np.dtype[np.uint8]]

FROZEN = -1  # the version of what never changes during PPO: the reference
TABLE = -2  # the version of the table that says which boxes of which tensors lie where in a slot's copies
KEPT = 2  # versions of one slot: the newest may be on its way to only some of the holders


@dataclass(frozen=True, order=True)
class Tag:
    """Whose state, and which."""

    slot: int
    version: int  # or FROZEN, TABLE
    layout: str = ""  # as Layout writes itself: a slot of another layout is another slot

    @property
    def moves(self) -> bool:
        """Whether it is a version of what steps change."""
        return self.version >= 0

    @property
    def owner(self) -> tuple[str, int]:
        """The slot of a layout whose state it is."""
        return self.layout, self.slot


class Holdings:
    """The copies that one actor holds. All methods may be called from any thread.

    One in shared memory is held for as long as its owner does not fill it anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Tag, Buffer] = {}
        self._spare: list[Buffer] = []

    def blank(self, num_bytes: int, shared: bool = False) -> Buffer:
        """A buffer to fill, a spare one where there is one; `shared`: to be mapped by others, if this machine can."""
        with self._lock:
            for place, spare in enumerate(self._spare):
                if spare.nbytes == num_bytes and isinstance(spare, SharedBuffer) == shared:
                    del self._spare[place]
                    break
            else:
                spare = None
        if isinstance(spare, SharedBuffer):
            spare.unseal()
        made = share(num_bytes) if shared and spare is None else spare
        if made is None:
            return self.blank(num_bytes) if shared else np.empty(num_bytes, dtype=np.uint8)
        return made

    def put(self, tag: Tag, buffer: Buffer) -> None:
        """Hold `buffer` under `tag`; of its slot the newest versions up to this one stay: later ones did not happen."""
        with self._lock:
            self._held[tag] = buffer
            if not tag.moves:
                return
            tags = sorted(held for held in self._held if held.owner == tag.owner and held.moves)
            reached = [held for held in tags if held.version <= tag.version]
            self._let_go(set(tags) - set(reached[-KEPT:]))

    def get(self, tag: Tag) -> Buffer | None:
        """The copy under `tag`. It stays as it is until two newer ones are held, or its owner fills it anew."""
        with self._lock:
            held = self._held.get(tag)
        return held if not isinstance(held, SharedBuffer) or held.sound else None

    def tags(self) -> list[Tag]:
        """All that is held."""
        with self._lock:
            return sorted(tag for tag, held in self._held.items() if not isinstance(held, SharedBuffer) or held.intact)

    def forget(self, newer_than: int) -> None:
        """Drop versions that a recovery went back behind: they are of a past that did not happen."""
        with self._lock:
            self._let_go(tag for tag in list(self._held) if tag.version > newer_than)

    def drop_stale(self, oldest: int) -> None:
        """Let go of versions before `oldest`, and of all of a slot whose newest went: others back it by now."""
        with self._lock:
            stale = [tag for tag in self._held if tag.moves and tag.version < oldest]
            for tag in stale:
                del self._held[tag]
            gone = {tag.owner for tag in stale} - {tag.owner for tag in self._held if tag.moves}
            for tag in [tag for tag in self._held if tag.owner in gone]:
                del self._held[tag]

    @property
    def num_bytes(self) -> int:
        """Host memory in use; what is another's and only mapped here does not count."""
        with self._lock:
            return sum(buffer.nbytes for buffer in (*self._held.values(), *self._spare) if buffer.flags.writeable)

    def _let_go(self, tags: Iterable[Tag]) -> None:
        dropped = [self._held.pop(tag) for tag in tags]
        self._spare += [buffer for buffer in dropped if buffer.flags.writeable]
        del self._spare[:-KEPT]


class Flat:
    """A fixed list of tensors as one run of bytes: same tensors, same bytes. Tensors are live; their order is given.

    Neighbours in the list that are neighbours in memory are copied as one.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        sizes = [tensor.nbytes for tensor in tensors]
        self.num_bytes = sum(sizes)
        ends = itertools.accumulate(sizes)
        self.spans = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]  # bytes of each tensor
        self._runs = _runs(tensor.detach() for tensor in tensors if tensor.nbytes)

    def pack(self, buffer: Buffer) -> None:
        """Copy all tensors into `buffer` [num_bytes]."""
        for run, copy in self._copies(buffer):
            if run.is_cpu and run.is_contiguous():
                np.copyto(copy, _bytes_of(run))  # a memcpy: half of the time that torch's own loop takes
            else:
                _view(copy, run).copy_(run)

    def unpack(self, buffer: Buffer) -> None:
        """Copy `buffer` [num_bytes] into the tensors."""
        assert buffer.nbytes == self.num_bytes, f"{buffer.nbytes} bytes for {self.num_bytes}"
        for run, copy in self._copies(buffer):
            run.copy_(_view(copy, run))

    def _copies(self, buffer: Buffer) -> Iterator[tuple[Tensor, Buffer]]:
        """Each run of tensors, and its place in `buffer`."""
        start = 0
        for run in self._runs:
            yield run, buffer[start : start + run.nbytes]
            start += run.nbytes


def _runs(tensors: Iterable[Tensor]) -> list[Tensor]:
    """`tensors` in their order, those merged to one flat view of which each begins where the one before it ends."""
    found: list[Tensor] = []
    for tensor in tensors:
        if found and _follows(tensor, found[-1]):
            last = found.pop()
            tensor = last.as_strided((last.numel() + tensor.numel(),), (1,))
        found.append(tensor)
    return found


def _follows(tensor: Tensor, last: Tensor) -> bool:
    """Whether `tensor` lies right behind `last` in the same storage."""
    alike = tensor.dtype == last.dtype and tensor.is_contiguous() and last.is_contiguous()
    shared = tensor.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    return alike and shared and bool(tensor.storage_offset() == last.storage_offset() + last.numel())


def _bytes_of(run: Tensor) -> Buffer:
    return cast(Buffer, run.view(-1).view(torch.uint8).numpy())


def _view(part: Buffer, like: Tensor) -> Tensor:
    return torch.frombuffer(part.data, dtype=like.dtype).view(like.shape)

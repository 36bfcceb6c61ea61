"""Snapshots: copies of slots' state in host memory. Comes in: tensors; goes out: flat buffers, two versions a slot.

A version numbers the changes to the weights of a run. A slot holds copies of its own state and of the slot that it is
the buddy of; memory is bounded by two buffers for each, and the one being filled.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

type Buffer = np.ndarray[tuple[int], np.dtype[np.uint8]]

FROZEN = -1  # the version of what never changes during PPO: the reference
KEPT = 2  # versions of one slot: the newest may be on its way to only some of the holders


@dataclass(frozen=True, order=True)
class Tag:
    """Whose state, and which."""

    slot: int
    version: int


class Holdings:
    """The copies that one actor holds. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Tag, Buffer] = {}
        self._spare: list[Buffer] = []

    def blank(self, num_bytes: int) -> Buffer:
        """A buffer to fill, a spare one where there is one of that size."""
        with self._lock:
            for place, spare in enumerate(self._spare):
                if spare.nbytes == num_bytes:
                    return self._spare.pop(place)
        return np.empty(num_bytes, dtype=np.uint8)

    def put(self, tag: Tag, buffer: Buffer) -> None:
        """Hold `buffer` under `tag`; of its slot the newest versions up to this one stay: later ones did not happen."""
        with self._lock:
            self._held[tag] = buffer
            if tag.version == FROZEN:
                return
            versions = sorted(held.version for held in self._held if held.slot == tag.slot and held.version != FROZEN)
            reached = [version for version in versions if version <= tag.version]
            for version in set(versions) - set(reached[-KEPT:]):
                self._spare.append(self._held.pop(Tag(tag.slot, version)))
            del self._spare[:-KEPT]

    def get(self, tag: Tag) -> Buffer | None:
        """The copy under `tag`. It stays as it is until two newer ones are held."""
        with self._lock:
            return self._held.get(tag)

    def tags(self) -> list[Tag]:
        """All that is held."""
        with self._lock:
            return sorted(self._held)

    def forget(self, newer_than: int) -> None:
        """Drop versions that a recovery went back behind: they are of a past that did not happen."""
        with self._lock:
            for tag in [tag for tag in self._held if tag.version > newer_than]:
                self._spare.append(self._held.pop(tag))

    def drop_stale(self, oldest: int) -> None:
        """Let go of versions before `oldest`, and of all of a slot whose newest went: others back it by now."""
        with self._lock:
            stale = [tag for tag in self._held if FROZEN < tag.version < oldest]
            for tag in stale:
                del self._held[tag]
            living = {tag.slot for tag in self._held if tag.version != FROZEN}
            for slot in {tag.slot for tag in stale} - living:
                self._held.pop(Tag(slot, FROZEN), None)

    @property
    def num_bytes(self) -> int:
        """Host memory in use."""
        with self._lock:
            return sum(buffer.nbytes for buffer in (*self._held.values(), *self._spare))


class Flat:
    """A fixed list of tensors as one run of bytes: same tensors, same bytes. Tensors are live; their order is given."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        sizes = [tensor.numel() * tensor.element_size() for tensor in self.tensors]
        self.num_bytes = sum(sizes)
        ends = np.cumsum(sizes).tolist()
        self._spans = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        shapes = ";".join(f"{tuple(tensor.shape)}{tensor.dtype}" for tensor in self.tensors)
        self.shape = hashlib.sha256(shapes.encode()).hexdigest()[:16]  # two Flats of equal shape can exchange bytes

    def pack(self, buffer: Buffer) -> None:
        """Copy all tensors into `buffer` [num_bytes]."""
        for (start, end), tensor in zip(self._spans, self.tensors, strict=True):
            _view(buffer[start:end], tensor).copy_(tensor.detach())

    def unpack(self, buffer: Buffer) -> None:
        """Copy `buffer` [num_bytes] into the tensors."""
        assert buffer.nbytes == self.num_bytes, f"{buffer.nbytes} bytes for {self.num_bytes}"
        with torch.no_grad():
            for (start, end), tensor in zip(self._spans, self.tensors, strict=True):
                tensor.copy_(_view(buffer[start:end], tensor))


def _view(part: Buffer, like: Tensor) -> Tensor:
    # frombuffer refuses an empty run of bytes
    if not part.nbytes:
        return torch.empty_like(like, device="cpu")
    return torch.frombuffer(part.data, dtype=like.dtype).view(like.shape)

"""Process groups of one generation: create, release, replace. Comes in: a place in the mesh and where the store is.

Groups are numbered in order of creation, which is the same on every rank and in every generation of a layout. Releasing
swaps every reference to group n for `Released(n)`, so that sockets close and nothing old stays alive; creating swaps
`Released(n)` for the new group n. The objects that hold the references stay where they are.
"""

import contextlib
import gc
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from torch.distributed import PrefixStore, ProcessGroup, TCPStore

from ftppo.plan.topology import Layout
from ftppo.worker.meeting import Rendezvous

ABORT_S = 10.0  # for all groups together to abort


@dataclass(frozen=True)
class Released:
    """Where group `number` was, and will be again."""

    number: int


class Groups:
    """This process's groups. `roots` are the objects whose references are kept right."""

    def __init__(self) -> None:
        self.live: list[ProcessGroup] = []
        self._backend = ""
        self._aborted = False
        self._store: TCPStore | None = None

    def open_store(self, timeout_s: float) -> int:
        """Start a store for a generation to meet at; returns its port. The port is chosen by the system, hence free."""
        self._store = TCPStore(
            "0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
        )
        return int(self._store.port)

    def close_store(self) -> None:
        """End the meeting that this process hosts, from any thread: who waits there for a peer wakes with an error."""
        self._store = None

    def create(
        self,
        layout: Layout,
        slot: int,
        meet: Rendezvous,
        backend: str,
        timeout_s: float,
        collective_s: float,
        roots: Any,
    ) -> None:
        """Join the world of `meet` as rank `slot` and hand the new groups to `roots`.

        `timeout_s` bounds the meeting, `collective_s` every collective afterwards: the last resort, longer than any
        deadline of the driver, which ends what hangs itself.
        """
        store = TCPStore(meet.host, meet.port, is_master=False, timeout=timedelta(seconds=timeout_s))
        prefixed = PrefixStore(f"generation-{meet.generation}", store)
        self._initialize(layout, slot, backend, prefixed, timedelta(seconds=collective_s))
        swap(roots, lambda held: self.live[held.number] if isinstance(held, Released) else None)

    def create_alone(self, layout: Layout, slot: int) -> None:
        """A world without peers, where models can be built ahead of time: right rank and sizes, no communication."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self._initialize(layout, slot, "fake", FakeStore(), timedelta(seconds=60))

    def abort(self) -> list[threading.Thread]:
        """Have NCCL end what is under way in all groups, from any thread: the working one may be waiting for it.

        Does not wait itself; the threads returned end with their aborts. What a collective leaves behind that was
        aborted means nothing, so who has waited for one asks `check` before it believes it. gloo has no such way.
        """
        if self._backend != "nccl":
            return []
        self._aborted = True
        threads = [threading.Thread(target=group.abort, name="abort", daemon=True) for group in list(self.live)]
        for thread in threads:
            thread.start()
        return threads

    def check(self) -> None:
        """Raise RuntimeError where the groups were aborted."""
        if self._aborted:
            raise RuntimeError("NCCL: the groups of this generation were aborted")

    def release(self, roots: Any) -> int:
        """Let go of every group; peers that wait for this rank wake up with an error. Returns how many stay alive."""
        until = time.monotonic() + ABORT_S
        for thread in self.abort():  # else NCCL would wait for what is under way, and so for peers that are gone
            thread.join(max(until - time.monotonic(), 0.0))
        numbers = {id(group): number for number, group in enumerate(self.live)}
        witnesses = [weakref.ref(group) for group in self.live]
        swap(roots, lambda held: Released(numbers[id(held)]) if id(held) in numbers else None)
        self.live.clear()
        with contextlib.suppress(Exception):  # a world that broke may refuse to be taken down in order
            parallel_state.destroy_model_parallel()
        for name, value in vars(parallel_state).items():
            if isinstance(value, ProcessGroup):
                setattr(parallel_state, name, None)
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        # A meeting that broke off leaves its number behind; the next one must begin with the same on all ranks.
        dist.distributed_c10d._world.group_count = 0
        self._store = None
        if any(witness() is not None for witness in witnesses):
            gc.collect()
        return sum(witness() is not None for witness in witnesses)

    def _initialize(self, layout: Layout, slot: int, backend: str, store: dist.Store, timeout: timedelta) -> None:
        assert not self.live, "release the groups of the last generation first"
        self._backend, self._aborted = backend, False
        dist.init_process_group(backend, store=store, rank=slot, world_size=layout.world, timeout=timeout)
        with _recording_new_groups(self.live):
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=layout.tp,
                pipeline_model_parallel_size=layout.pp,
                context_parallel_size=layout.cp,
                create_gloo_process_groups=False,
                distributed_timeout_minutes=timeout.total_seconds() / 60,  # type: ignore[arg-type]
            )
        world = dist.group.WORLD
        assert world is not None
        self.live.insert(0, world)


@contextlib.contextmanager
def _recording_new_groups(record: list[ProcessGroup]) -> Any:
    original = dist.new_group

    def new_group(*args: Any, **kwargs: Any) -> Any:
        group = original(*args, **kwargs)
        if isinstance(group, ProcessGroup):
            record.append(group)
        return group

    dist.new_group = torch_new_group = new_group
    try:
        yield
    finally:
        assert dist.new_group is torch_new_group
        dist.new_group = original


def swap(roots: Any, replacement: Callable[[Any], Any]) -> int:
    """Walk the objects reachable from `roots`; where `replacement(held)` is not None, put it. Returns how often."""
    seen: set[int] = set()
    pending: list[Any] = [roots]
    count = 0
    while pending:
        holder = pending.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for value, assign in _references(holder):
            new = replacement(value)
            if new is not None:
                assign(new)
                count += 1
            elif isinstance(value, tuple) and any(replacement(item) is not None for item in value):
                assign(tuple(item if replacement(item) is None else replacement(item) for item in value))
                count += 1
            elif not isinstance(value, _LEAVES):
                pending.append(value)
    return count


_LEAVES = (str, bytes, int, float, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType)


def _references(holder: Any) -> Iterable[tuple[Any, Callable[[Any], None]]]:
    """Each value that `holder` refers to, with a way to put another in its place."""
    if isinstance(holder, dict):
        return [(value, _item_setter(holder, key)) for key, value in list(holder.items())]
    if isinstance(holder, list):
        return [(value, _item_setter(holder, index)) for index, value in enumerate(holder)]
    if isinstance(holder, tuple | set | frozenset):
        return [(value, _refuse) for value in holder]
    if isinstance(holder, types.FunctionType):
        return [(cell.cell_contents, _cell_setter(cell)) for cell in holder.__closure__ or () if _filled(cell)]
    if isinstance(holder, types.MethodType):
        return [(holder.__self__, _refuse), (holder.__func__, _refuse)]
    found = [(value, _item_setter(vars(holder), name)) for name, value in list(getattr(holder, "__dict__", {}).items())]
    if is_dataclass(holder) and not isinstance(holder, type) and not hasattr(holder, "__dict__"):
        found += [(getattr(holder, field.name), _attribute_setter(holder, field.name)) for field in fields(holder)]
    if hasattr(holder, "func") and hasattr(holder, "keywords"):  # functools.partial
        found += [(holder.args, _refuse), (holder.keywords, _refuse), (holder.func, _refuse)]
    return found


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _item_setter(container: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: container.__setitem__(key, value)


def _attribute_setter(holder: Any, name: str) -> Callable[[Any], None]:
    return lambda value: object.__setattr__(holder, name, value)


def _cell_setter(cell: types.CellType) -> Callable[[Any], None]:
    return lambda value: setattr(cell, "cell_contents", value)


def _refuse(value: Any) -> None:
    raise AssertionError(f"{value} is held by an object that cannot be changed in place")

"""The Ray actor around an Engine. Comes in: calls stamped with a generation; goes out: results, or a typed error.

The working thread runs one call at a time. The `control` group answers meanwhile: a busy actor is not a dead one.
Imports of torch.distributed and Megatron-Core wait until `prepare`, so that an actor is there, and can be placed, at
once.
"""

import contextlib
import os
import signal
import traceback
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import psutil
import ray
import torch

from ftppo.config import Config, Fault
from ftppo.errors import FtppoError, PeerLost, StaleGeneration, WorkerError
from ftppo.plan.topology import Layout
from ftppo.types import Beacon
from ftppo.worker.meeting import Rendezvous


@dataclass(frozen=True)
class Stamp:
    """What every call of a generation carries besides its arguments."""

    generation: int
    wanted: bool  # whether the result is to be sent back
    faults: tuple[Fault, ...] = ()  # to be injected while this call works


@dataclass(frozen=True)
class Reply:
    """What a call gives back."""

    result: Any
    delivered: int | None  # the newest version of this slot's state that its buddy is known to hold
    leaving: bool  # whether this actor was told to go
    idle: bool  # whether nothing of a checkpoint is being written here


@dataclass(frozen=True)
class Whereabouts:
    """Where an actor runs."""

    node: str
    host: str  # address that other actors reach it under
    device: int  # number of its GPU on that node; on a CPU its process id
    pid: int
    started: float  # seconds since the epoch: with the id it names a process for good


@ray.remote(concurrency_groups={"control": 2}, max_restarts=0, max_task_retries=0)  # type: ignore[call-overload]
class TrainActor:
    """One rank of the mesh, or a standby."""

    def __init__(self) -> None:
        self.generation = -1
        self.broken = False  # whether the generation's groups are let go: what was asked for in it before is void
        self.engine: Any = None
        self.leaving = False
        signal.signal(signal.SIGTERM, self._asked_to_leave)

    @ray.method(concurrency_group="control")
    def whereabouts(self) -> Whereabouts:
        """Node, address and device."""
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        device = int(gpus[0]) if gpus else os.getpid()
        started = psutil.Process().create_time()
        return Whereabouts(context.get_node_id(), ray.util.get_node_ip_address(), device, os.getpid(), started)

    @ray.method(concurrency_group="control")
    def end_neighbour(self, place: Whereabouts) -> None:
        """End another actor's process on this node."""
        end_process(place)

    @ray.method(concurrency_group="control")
    def beacon(self) -> Beacon | None:
        """How far the working thread has come; None before `prepare`."""
        return self.engine.progress.read() if self.engine is not None else None

    def prepare(
        self, config: Config, kind: Literal["cpu", "cuda"], vocab_size: int, eos: int, token: str
    ) -> tuple[str, int]:
        """Import everything and take the device: all that can be done before a slot is known.

        Returns the address at which other actors find this one's snapshots; `token` lets the run's own in.
        """
        from ftppo.worker.device import make_device, set_nccl_environment
        from ftppo.worker.engine import Engine
        from ftppo.worker.memory import Memory

        send_tensors_as_arrays()
        set_nccl_environment()
        memory = Memory(token, ray.util.get_node_ip_address(), config.recovery.fence_s)
        self.engine = Engine(config, make_device(config, kind), vocab_size, eos, memory)
        return memory.address

    @ray.method(concurrency_group="control")
    def holdings(self) -> list[tuple[str, int, int]]:
        """The snapshots held here: (layout, slot, version)."""
        return [(tag.layout, tag.slot, tag.version) for tag in self.engine.memory.holdings.tags()]

    def build(self, layout: Layout, slot: int) -> None:
        """Make the models of `slot`, alone, unless they are there."""
        if (self.engine.layout, self.engine.slot) != (layout, slot):
            self.engine.build(layout, slot)

    def open_store(self, timeout_s: float) -> tuple[str, int]:
        """Host the meeting place of a generation: address and port."""
        return ray.util.get_node_ip_address(), self.engine.groups.open_store(timeout_s)

    def join(self, meet: Rendezvous, buddy: tuple[str, int] | None, timeout_s: float) -> None:
        """Enter a generation, once."""
        if meet.generation <= self.generation:
            raise StaleGeneration(meet.generation, self.generation)
        self.generation, self.broken = meet.generation, False
        try:
            self.engine.join(meet, buddy, timeout_s)
        except Exception as error:
            raise self._let_go(error) from None

    def release(self) -> int:
        """Let go of the generation. Returns how many of its groups stay alive."""
        self.broken = True
        return int(self.engine.release())

    def call(self, stamp: Stamp, method: str, *args: Any) -> Reply:
        """Run a method of the Engine in `stamp`'s generation. An error lets go of the groups, so that peers wake."""
        if stamp.generation != self.generation or self.broken:
            raise StaleGeneration(stamp.generation, self.generation)
        try:
            if stamp.faults:
                from ftppo.worker.inject import arm

                arm(self.engine.progress, stamp.faults, _report_fault)
            result = getattr(self.engine, method)(*args)
        except Exception as error:
            raise self._let_go(error) from None
        finally:
            self.engine.progress.on_move = _nothing
        engine, sent = self.engine, result if stamp.wanted else None
        return Reply(sent, engine.memory.delivered, self.leaving, engine.durable.idle)

    def _asked_to_leave(self, *_: Any) -> None:
        """SIGTERM: the machine is wanted back. The slot moves to a standby at the next step boundary."""
        self.leaving = True

    def _let_go(self, error: Exception) -> FtppoError:
        """Wake the peers, and say what happened in a form that crosses processes."""
        phase = self.engine.progress.phase
        if isinstance(error, FtppoError) and not isinstance(error, WorkerError):
            return error  # storage and checkpoints: no group is involved, and the state is whole
        kind = PeerLost if _in_communication(error) else WorkerError
        text = "".join(traceback.format_exception(error))
        self.broken = True
        found = kind(self.engine.slot, phase, f"{type(error).__name__}: {error}", text)
        traceback.clear_frames(error.__traceback__)
        self.engine.release()
        return found


def end_process(place: Whereabouts) -> None:
    """Kill the process at `place`, on this node, and its children; nothing happens where it is gone already."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(place.pid)
        if process.create_time() == place.started:
            for one in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


def send_tensors_as_arrays() -> None:
    """Have this process send tensors as numpy arrays: out of band, and free of what Megatron-Core does to pickling."""
    ray.util.register_serializer(torch.Tensor, serializer=torch.Tensor.numpy, deserializer=_tensor_of)


def _tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(array.copy())  # what Ray hands out is read-only


def _nothing(phase: str) -> None: ...


def _report_fault(kind: str, at: float) -> None:
    """Leave word of when a fault was injected: who kills itself cannot say so later."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(FAULT_TIME_KEY, f"{at:.6f}".encode(), overwrite=True, namespace=b"ftppo")


FAULT_TIME_KEY = b"injected-fault-time"


def _in_communication(error: BaseException) -> bool:
    """Whether it was raised while talking to other ranks: by place and words, as gloo has no exception of its own."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ("torch/distributed/", "megatron/core/pipeline_parallel/p2p_communication.py")
    there = bool(frames) and any(place in frames[-1].filename for place in places)
    words = ("gloo/transport", "NCCL", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, RuntimeError) and (there or any(word in str(error) for word in words))

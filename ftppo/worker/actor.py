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

from ftppo.clock import SystemClock
from ftppo.config import Config, Fault
from ftppo.errors import FtppoError, PeerLost, StaleGeneration, WorkerError
from ftppo.plan.topology import Layout
from ftppo.types import Beacon, StepResult, StepSpec, Work
from ftppo.worker.lease import Lease, Terms
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.peers import in_communication
from ftppo.worker.whereabouts import Whereabouts, end_process

ORPHANS_S, RESULTS_KEPT = 5.0, 256  # for other orphans to say that they are; of steps, as a rule an iteration's


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
    work: Work | None = None  # of an optimizer step


@dataclass(frozen=True)
class Account:
    """What an actor tells a driver that takes it over."""

    place: Whereabouts
    generation: int  # the last that it entered; -1: none
    layout: Layout  # whose slot it is built for
    slot: int
    built: bool  # whether its models are there
    busy: str  # the phase of what an earlier driver has asked for; "" where nothing is under way
    config: Config | None  # None until it is prepared, like the next two
    token: str | None
    snapshots: tuple[str, int] | None
    leaving: bool = False


@ray.remote(concurrency_groups={"control": 2, "trial": 1}, max_restarts=0, max_task_retries=0)  # type: ignore[call-overload]
class TrainActor:
    """One rank of the mesh, or a standby."""

    def __init__(self, terms: Terms | None = None) -> None:
        """Lent under `terms` it outlives its driver; without, Ray ends both together."""
        self.lease = Lease(terms, SystemClock(), _end_orphan) if terms is not None else None
        self.built = self.busy = False
        self.token: str | None = None
        self.keepsake: Any = None
        self.results: dict[int, StepResult] = {}  # of the last steps, by the version that they led to
        self.generation = -1
        self.broken = False  # whether the generation's groups are let go: what was asked for in it before is void
        self.engine: Any = None
        self.trial: Any = None
        self.leaving = False
        signal.signal(signal.SIGTERM, self._asked_to_leave)

    @ray.method(concurrency_group="control")
    def whereabouts(self) -> Whereabouts:
        """Node, address and device."""
        return self._whereabouts()

    def _whereabouts(self) -> Whereabouts:
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

    @ray.method(concurrency_group="control")
    def renew(self, driver: str) -> str:
        """Word of a driver that it is alive. Returns whose this actor is."""
        return driver if self.lease is None else self.lease.renew(driver)

    @ray.method(concurrency_group="control")
    def claim(self, driver: str) -> str:
        """A driver wants this actor. Returns whose it is now."""
        return driver if self.lease is None else self.lease.claim(driver)

    @ray.method(concurrency_group="control")
    def orphaned(self) -> bool:
        """Whether this actor is about to end for want of a driver."""
        return self.lease is not None and self.lease.orphaned

    @ray.method(concurrency_group="control")
    def account(self) -> Account:
        """All that a new driver must know of this actor."""
        engine = self.engine
        layout, slot = (engine.layout, engine.slot) if engine is not None else (Layout(), -1)
        config, address = (engine.config, engine.memory.address) if engine is not None else (None, None)
        at = engine.progress.read().phase if self.busy else ""
        place, leaving = self._whereabouts(), self.leaving
        return Account(place, self.generation, layout, slot, self.built, at, config, self.token, address, leaving)

    @ray.method(concurrency_group="control")
    def keep(self, keepsake: Any) -> None:
        """Keep what only the driver knows, for the one after it."""
        self.keepsake = keepsake

    @ray.method(concurrency_group="control")
    def kept(self) -> tuple[Any, dict[int, StepResult]]:
        """The keepsake, and the results of the last steps by version."""
        return self.keepsake, dict(self.results)

    def prepare(
        self, config: Config, kind: Literal["cpu", "cuda"], vocab_size: int, eos: int, token: str
    ) -> tuple[str, int]:
        """Import everything, take the device and test it: all that can be done before a slot is known.

        Returns the address at which other actors find this one's snapshots; `token` lets the run's own in.
        """
        import ftppo.worker.eager  # noqa: F401 - before what imports Megatron-Core
        from ftppo.worker.device import make_device, set_cuda_environment
        from ftppo.worker.diagnose import diagnose
        from ftppo.worker.engine import Engine
        from ftppo.worker.memory import Memory
        from ftppo.worker.trial import Trial

        send_tensors_as_arrays()
        set_cuda_environment()
        self.token = token
        memory = Memory(token, ray.util.get_node_ip_address(), config.recovery.fence_s)
        diagnose(device := make_device(config, kind))
        self.engine, self.trial = Engine(config, device, vocab_size, eos, memory), Trial()
        return memory.address

    @ray.method(concurrency_group="control")
    def holdings(self) -> list[tuple[str, int, int]]:
        """The snapshots held here: (layout, slot, version)."""
        return [(tag.layout, tag.slot, tag.version) for tag in self.engine.memory.holdings.tags()]

    def build(self, layout: Layout, slot: int, blank: bool) -> None:
        """Make the models of `slot`, alone, unless they are there; `blank` where their state comes from elsewhere."""
        if (self.engine.layout, self.engine.slot) != (layout, slot):
            self.built = False
            self.engine.build(layout, slot, blank)
        self.built = True

    @ray.method(concurrency_group="trial")
    def open_trial(self, number: int, timeout_s: float) -> Rendezvous:
        """Host the meeting place of a trial."""
        return Rendezvous(number, ray.util.get_node_ip_address(), self.trial.open_store(timeout_s))

    @ray.method(concurrency_group="trial")
    def try_together(self, meet: Rendezvous, rank: int, num: int, timeout_s: float) -> bool:
        """Whether an all-reduce with others that stand by comes out right. Raises where none comes about."""
        self.trial.begin()
        if self.generation >= 0 and not self.broken:  # since: who joins later finds a trial to abandon
            raise InterruptedError("holds a slot by now")
        return bool(self.trial.run(meet, rank, num, self.engine.device, timeout_s))

    def open_store(self, timeout_s: float) -> tuple[str, int]:
        """Host the meeting place of a generation: address and port."""
        return ray.util.get_node_ip_address(), self.engine.groups.open_store(timeout_s)

    @ray.method(concurrency_group="control")
    def close_store(self) -> None:
        """End the meeting: somebody will not come, and the others must not wait for him."""
        if self.engine is not None:
            self.engine.groups.close_store()

    def join(self, meet: Rendezvous, buddy: tuple[str, int] | None, timeout_s: float) -> None:
        """Enter a generation, once."""
        if meet.generation <= self.generation:
            raise StaleGeneration(meet.generation, self.generation)
        self.generation, self.broken = meet.generation, False
        self.trial.abandon()
        try:
            self.engine.join(meet, buddy, timeout_s)
        except Exception as error:
            raise self._let_go(error) from None

    @ray.method(concurrency_group="control")
    def abort(self, before: int) -> None:
        """All generations `before` this one are over: wake the working thread, so that `release` gets its turn."""
        if self.generation < before:
            self.broken = True
            if self.engine is not None:
                self.engine.abort()

    def release(self) -> int:
        """Let go of the generation. Returns how many of its groups stay alive."""
        self.broken = True
        return int(self.engine.release())

    def call(self, stamp: Stamp, method: str, *args: Any) -> Reply:
        """Run a method of the Engine in `stamp`'s generation. An error lets go of the groups, so that peers wake."""
        if stamp.generation != self.generation or self.broken:
            raise StaleGeneration(stamp.generation, self.generation)
        self.busy = True
        try:
            if stamp.faults:
                from ftppo.worker.inject import arm

                arm(self.engine.progress, stamp.faults, _report_fault)
            result = getattr(self.engine, method)(*args)
            self._remember(result, *args)
        except Exception as error:
            raise self._let_go(error) from None
        finally:
            self.engine.progress.on_move = _nothing
            self.engine.progress.enter("idle")  # who has done its part must not look like one that is stuck in it
            self.busy = False
        engine, sent = self.engine, result if stamp.wanted else None
        return Reply(sent, engine.memory.delivered, self.leaving, engine.durable.idle, engine.pace.take())

    def _remember(self, result: Any, spec: Any = None, *_: Any) -> None:
        if isinstance(result, StepResult) and isinstance(spec, StepSpec) and (spec.final or not result.skipped):
            self.results[spec.version] = result
            for version in sorted(self.results)[:-RESULTS_KEPT]:
                del self.results[version]

    def _asked_to_leave(self, *_: Any) -> None:
        """SIGTERM: the machine is wanted back. The slot moves to a standby at the next step boundary."""
        self.leaving = True

    def _let_go(self, error: Exception) -> FtppoError:
        """Wake the peers, and say what happened in a form that crosses processes."""
        phase = self.engine.progress.phase
        if isinstance(error, FtppoError) and not isinstance(error, WorkerError):
            return error  # storage and checkpoints: no group is involved, and the state is whole
        kind = PeerLost if in_communication(error) else WorkerError
        self.broken, text = True, "".join(traceback.format_exception(error))
        found = kind(self.engine.slot, phase, f"{type(error).__name__}: {error}", text)
        traceback.clear_frames(error.__traceback__)
        self.engine.release()
        return found


def _end_orphan() -> None:
    """No driver has been heard from for too long: end, and where all others do, give the run's bundles back."""
    with contextlib.suppress(Exception):  # another orphan may be faster
        own = ray.get_runtime_context().get_actor_name() or ""
        run, _, _ = own.partition("/")
        others = [name for name in ray.util.list_named_actors() if name.startswith(f"{run}/") and name != own]
        asked = [ray.get_actor(name).orphaned.remote() for name in others]
        if all(ray.get(asked, timeout=ORPHANS_S)):
            ray.util.remove_placement_group(ray.util.get_current_placement_group())
    os._exit(0)


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

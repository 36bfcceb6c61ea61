"""What a process on the GPU does when told, besides what those of `tests/process` do.

A thread that NCCL or the device holds up is woken as an actor's control call has to do it: from another thread, by an
abort of every group.
"""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from ftppo.checkpoint.exchange import Address
from ftppo.config import Config
from ftppo.plan.topology import Layout
from ftppo.worker.device import Device
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.trial import Trial
from tests.process import calls
from tests.process.calls import Context

STUCK_S = 3.0  # who has not moved for so long is held up
WAKE_S = 30.0  # from the abort to the end of what was held up
BUSY_CYCLES = 2 * 10**10  # of the device's clock: some 10 s
BUSY_S = 5.0  # the same on a CPU


@dataclass(frozen=True)
class Level:
    """What a process holds."""

    allocated: int  # bytes of tensors on the device
    used: int  # bytes of the device, by whomever
    threads: int
    files: int


@dataclass(frozen=True)
class Woken:
    """What became of a call that was held up and woken."""

    bereaved: calls.Bereaved
    seconds: float  # from the abort on


def share_gpu(context: Context, slot: int) -> None:
    """Let NCCL take the processes of all slots for those of different machines: it allows one rank a GPU and machine.

    NCCL from 2.30 on allows more if it is told to, earlier ones do not compare GPUs of different machines.
    """
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    os.environ["NCCL_HOSTID"] = f"slot-{slot}"


def level(context: Context, slot: int) -> Level:
    """What is held now, all work done and nothing cached."""
    allocated = used = 0
    gc.collect()
    if context["engine"].device.kind == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        allocated, used = torch.cuda.memory_allocated(), total - free
    process = psutil.Process()
    return Level(allocated, used, process.num_threads(), process.num_fds())


def wake(context: Context, slot: int, busy: bool, victim: int | None, *arguments: Any) -> Woken:
    """`calls.call` on a thread, which something holds up: the device, where `busy`; else a peer that does not come.

    Once it is stuck the process `victim` is killed, where there is one, and all groups are aborted.
    """
    engine, seen = context["engine"], list[calls.Bereaved]()

    def work() -> None:
        if busy:
            _keep_busy(engine.device)
        seen.append(calls.bereaved(context, slot, *arguments))

    worker = _stuck(work)
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    seconds = _woken(worker, engine.groups.abort)
    return Woken(seen[0], seconds)


def wake_trial(context: Context, slot: int) -> str:
    """A trial whose other standby does not come, given up by another thread; what it raised."""
    trial, seen = Trial(), list[str]()
    meet = Rendezvous(1, "127.0.0.1", trial.open_store(2 * WAKE_S))

    def work() -> None:
        try:
            trial.run(meet, 0, 2, context["engine"].device, 2 * WAKE_S)
        except Exception as error:
            seen.append(type(error).__name__)

    trial.begin()
    _woken(_stuck(work), trial.abandon)
    return seen[0]


def stand_by(context: Context, process: int, slot: int, config: Config, kind: calls.Kind) -> Address:
    """`calls.build`, in whatever process, for `slot`."""
    return calls.build(context, slot, config, kind=kind)


def promote(context: Context, process: int, slot: int, generation: int, version: int, source: Address) -> None:
    """Take `slot`, alone in its world, in the state that the actor at `source` has copied."""
    engine = context["engine"]
    assert engine.layout == Layout()
    port = engine.groups.open_store(calls.TIMEOUT_S)
    engine.join(Rendezvous(generation, "127.0.0.1", port), None, calls.TIMEOUT_S)
    engine.restore(version, {slot: source})
    engine.regain(version)


def as_slot[T](context: Context, process: int, slot: int, function: Callable[..., T], *args: Any) -> T:
    """`function`, of `tests/process`, for a process that holds another slot than its own number."""
    return function(context, slot, *args)


def again(context: Context, slot: int, version: int, times: int, *arguments: Any) -> list[str]:
    """The state after `calls.call`, each time from the own copy of `version`."""
    engine, found = context["engine"], list[str]()
    for _ in range(times):
        engine.restore(version, {})
        engine.regain(version)
        calls.call(context, slot, *arguments)
        found.append(engine.digest())
    return found


def _stuck(work: Callable[[], None]) -> threading.Thread:
    """`work` on a thread of its own, once it is held up."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(STUCK_S)
    assert worker.is_alive(), "nothing was held up"
    return worker


def _woken(worker: threading.Thread, way: Callable[[], None]) -> float:
    """How long the thread takes to end, once it is woken that `way`."""
    since = time.monotonic()
    way()
    worker.join(WAKE_S)
    assert not worker.is_alive(), f"still held up {WAKE_S:g} s after it should have been woken"
    return time.monotonic() - since


def _keep_busy(device: Device) -> None:
    """What comes next has to wait for the device."""
    if device.kind == "cuda":
        torch.cuda._sleep(BUSY_CYCLES)
    else:
        time.sleep(BUSY_S)

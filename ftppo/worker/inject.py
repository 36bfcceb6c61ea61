"""Injected faults, carried out. Comes in: faults for this actor's current call; they strike where work stands."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence

from ftppo.config import Fault
from ftppo.worker.beacon import Progress

FOREVER_S = 3600.0  # of a hang without an end


HARMLESS = ("nan", "slow")  # break no generation: nobody will ask when they struck


class InjectedFault(RuntimeError):
    """The exception that the kind `exception` raises."""


def arm(progress: Progress, faults: Sequence[Fault], report: Callable[[str, float], None]) -> None:
    """Have each of `faults` strike at the next move in its place. `report(kind, time)` comes just before."""
    waiting = list(faults)

    def strike(place: str) -> None:
        for fault in [fault for fault in waiting if place == fault.phase or place.startswith(f"{fault.phase}.")]:
            waiting.remove(fault)
            if fault.kind not in HARMLESS:
                report(fault.kind, time.time())
            if fault.kind == "nan":
                progress.poisoned = True
            elif fault.kind == "bitflip":
                progress.flipped = True
            else:
                _KINDS[fault.kind](fault)

    progress.on_move = strike


def _signal_self(number: signal.Signals) -> Callable[[Fault], None]:
    return lambda fault: os.kill(os.getpid(), number)


def _raise(fault: Fault) -> None:
    raise InjectedFault(f"injected in {fault.phase} of iteration {fault.iteration}")


def _kill_node(fault: Fault) -> None:
    os.kill(os.getppid(), signal.SIGKILL)  # an actor's parent is its node's raylet; the node's other actors follow it
    os.kill(os.getpid(), signal.SIGKILL)


def _no_memory(fault: Fault) -> None:
    raise MemoryError(f"injected in {fault.phase} of iteration {fault.iteration}")


def _segfault(fault: Fault) -> None:
    ctypes.string_at(0)


def _hold_interpreter(fault: Fault) -> None:
    # PyDLL keeps the interpreter's lock during the call: no thread of this process runs meanwhile.
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int((fault.seconds or FOREVER_S) * 1e6)))


_KINDS: dict[str, Callable[[Fault], None]] = {
    "sigkill": _signal_self(signal.SIGKILL),
    "kill_dp_group": _signal_self(signal.SIGKILL),
    "sigstop": _signal_self(signal.SIGSTOP),
    "sigterm": _signal_self(signal.SIGTERM),
    "segfault": _segfault,
    "exit": lambda fault: os._exit(13),
    "exception": _raise,
    "gil_hang": _hold_interpreter,
    "slow": lambda fault: time.sleep(fault.seconds),
    "oom": _no_memory,
    "kill_node": _kill_node,
}

"""Hands the configured faults to the calls they strike in. Comes in: a phase of an iteration; goes out: its faults."""

import dataclasses
import os
import signal
from typing import TypeGuard, get_args

from ftppo.config import Config, Fault, FaultPhase
from ftppo.driver.mesh import CallPhase
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.soak import schedule_of

INJECTED = "injected"  # the event of an injected fault


class Injection:
    """The faults of a run, each once. On resuming, those that the run has had already do not come again."""

    def __init__(self, config: Config, files: RunFiles, resume: bool) -> None:
        self.files, self.chaos = files, schedule_of(config)
        if resume:
            had = [reason.partition(":")[0] for reason in files.reasons(INJECTED)]
            self.chaos = dataclasses.replace(self.chaos, spent=frozenset(int(index) for index in had))

    def take(self, iteration: int, phase: CallPhase) -> tuple[Fault, ...]:
        """The faults due in a phase of this 0-based iteration. The driver's own end comes here."""
        if not _has_faults(phase):
            return ()
        faults, chaos = self.chaos.take(iteration, phase)
        for index in sorted(chaos.spent - self.chaos.spent):
            fault = self.chaos.faults[index]
            self.files.record(INJECTED, f"{index}: {fault.kind} in {phase}", slot=fault.slot)
        self.chaos = chaos
        if any(fault.kind == "kill_driver" for fault in faults):
            os.kill(os.getpid(), signal.SIGKILL)
        return faults

    def tell_missed(self) -> list[str]:
        """What to say of the faults whose place the run did not come by."""
        missed = sorted(set(range(len(self.chaos.faults))) - self.chaos.spent)
        return [f"chaos.faults[{index}]: the run was over before its place came" for index in missed]


def _has_faults(phase: CallPhase) -> TypeGuard[FaultPhase]:
    return phase in get_args(FaultPhase)

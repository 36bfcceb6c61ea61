"""Where an actor runs. Comes in: an actor's place; goes out: the end of its process."""

import contextlib
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Whereabouts:
    """Where an actor runs."""

    node: str
    host: str  # address that other actors reach it under
    device: int  # number of its GPU on that node; on a CPU its process id
    pid: int
    started: float  # seconds since the epoch: with the id it names a process for good


def end_process(place: Whereabouts) -> None:
    """Kill the process at `place`, on this node, and its children; nothing happens where it is gone already."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(place.pid)
        if process.create_time() == place.started:
            for one in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()

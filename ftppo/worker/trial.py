"""An all-reduce of two standbys whose sum is known. Comes in: where to meet; goes out: whether the sum was right.

In a group of its own, of which torch.distributed's world and Megatron-Core know nothing: who is to take a slot
meanwhile enters its generation beside it.
"""

import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore

from ftppo.worker.device import Device
from ftppo.worker.meeting import Rendezvous

SIZE = 2**16  # numbers that are summed
POLL_S = 0.01


class Trial:
    """This process's part. One at a time; `abandon` may be called from any other thread."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None
        self._group: Any = None
        self._wanted = False

    def open_store(self, timeout_s: float) -> int:
        """Start a store to meet at; returns its port."""
        self._store = TCPStore(
            "0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
        )
        return int(self._store.port)

    def begin(self) -> None:
        """A trial is to be run: from here on `abandon` ends it."""
        self._wanted = True

    def run(self, meet: Rendezvous, rank: int, num: int, device: Device, timeout_s: float) -> bool:
        """Meet the others and add up, after `begin`.

        Raises where one of them does not come, or nothing does, within `timeout_s`; InterruptedError once abandoned.
        """
        until = time.monotonic() + timeout_s
        try:
            self._check()
            limit = timedelta(seconds=timeout_s)
            store = PrefixStore(f"trial-{meet.generation}", TCPStore(meet.host, meet.port, timeout=limit))
            self._group = group = _make_group(store, rank, num, device, limit)
            numbers = _numbers(rank).to(device.torch)
            self._check()
            work = group.allreduce([numbers])
            while not work.is_completed():
                self._check()
                if time.monotonic() > until:
                    raise TimeoutError(f"an all-reduce of {num} took longer than {timeout_s:g} s")
                time.sleep(POLL_S)
            work.wait()
            expected = sum((_numbers(other) for other in range(num)), torch.zeros(SIZE))
            return torch.equal(numbers.cpu(), expected)
        finally:
            self.abandon()

    def _check(self) -> None:
        if not self._wanted:
            raise InterruptedError("given up: there is other work")

    def abandon(self) -> None:
        """Let go of whatever is under way."""
        self._wanted = False
        group, self._group, self._store = self._group, None, None
        if group is not None:
            group.abort()


def _make_group(store: PrefixStore, rank: int, num: int, device: Device, limit: timedelta) -> Any:
    if device.kind == "cpu":
        from torch.distributed import ProcessGroupGloo

        return ProcessGroupGloo(store, rank, num, limit)
    from torch.distributed import ProcessGroupNCCL

    torch.cuda.set_device(0)  # of this thread
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(store, rank, num, options)


def _numbers(rank: int) -> torch.Tensor:
    """Whole numbers whose sums are exact, others on each rank."""
    return ((torch.arange(SIZE) + 1) * (rank + 1) % 1009).float()

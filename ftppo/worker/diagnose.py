"""Whether a device can be trusted, asked before it is used. Comes in: a Device; goes out: nothing, or a DeviceFault.

A few milliseconds on a CPU, under a second on a GPU: what a broken device gets wrong at once, not what wears out.
"""

import contextlib
import socket

import torch

from ftppo.errors import DeviceFault
from ftppo.worker.device import Device

SIZE = 256  # of the matrices
TESTED_BYTES = {"cpu": 4 * 2**20, "cuda": 2**30}
PATTERNS = (0x55, 0xAA)  # every bit once 0 and once 1


def diagnose(device: Device) -> None:
    """Raise DeviceFault where arithmetic, memory or the device's own counters of errors say that it is broken."""
    if device.kind == "cuda":
        torch.cuda.set_device(0)
    where = f"{device.torch} on {socket.gethostname()}"
    if not _multiplies(device.torch):
        raise DeviceFault(f"{where}: a product of whole numbers came out wrong")
    if not _remembers(device.torch, TESTED_BYTES[device.kind]):
        raise DeviceFault(f"{where}: memory does not hold what was written")
    count = _uncorrected_errors(device)
    if count:
        raise DeviceFault(f"{where}: {count} memory errors that could not be corrected since it was started")


def _multiplies(device: torch.device) -> bool:
    """Whether a product of small whole numbers, exact in any floating-point format, is what whole numbers make."""
    a = (torch.arange(SIZE * SIZE) % 7).view(SIZE, SIZE)
    b = (torch.arange(SIZE * SIZE) % 5).view(SIZE, SIZE)
    found = torch.matmul(a.float().to(device), b.float().to(device)).cpu()
    return torch.equal(found.long(), a @ b)


def _remembers(device: torch.device, num_bytes: int) -> bool:
    block = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    for pattern in PATTERNS:
        block.fill_(pattern)
        if not bool((block == pattern).all()):
            return False
    return True


def _uncorrected_errors(device: Device) -> int:
    """The driver's count, where there is a GPU that counts and pynvml to ask."""
    if device.kind != "cuda":
        return 0
    with contextlib.suppress(Exception):  # no pynvml, or a GPU without ECC
        import pynvml  # type: ignore[import-not-found,unused-ignore]

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device.torch).uuid}")
        kind, since_start = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_start))
    return 0

"""Whether a device can be trusted, asked before it is used. Comes in: a Device; goes out: nothing, or a DeviceFault.

A few milliseconds on a CPU, under a second on a GPU: what a broken device gets wrong at once, not what wears out.
"""

import contextlib
import socket
from typing import Any

import pynvml
import torch

from ftppo.errors import DeviceFault
from ftppo.worker.device import Device

SIZE = 256  # of the matrices
TESTED_BYTES = {"cpu": 4 * 2**20, "cuda": 2**30}
COMPARED_BYTES = 2**24
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
    if device.kind == "cuda":
        torch.cuda.empty_cache()
    counted = _counted(device)
    if counted:
        raise DeviceFault(f"{where}: {counted}")


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
        # In pieces: to compare takes as much memory again, and the device may have others to serve.
        if not all(bool((piece == pattern).all()) for piece in block.split(COMPARED_BYTES)):
            return False
    return True


def _counted(device: Device) -> str | None:
    """What the driver of a GPU holds against it; None where it is sound, or does not count.

    NVML keeps no count of Xid errors; the lasting ones of memory (48, 63, 64, 94, 95) show in what it does count.
    """
    if device.kind != "cuda":
        return None
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device.torch).uuid}")
        return _uncorrected_errors(handle) or _rows_lost(handle)
    return None


def _uncorrected_errors(handle: Any) -> str | None:
    with contextlib.suppress(pynvml.NVMLError):  # without ECC
        kind, since_start = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        count = pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_start)
        return f"{count} memory errors that could not be corrected since it was started" if count else None
    return None


def _rows_lost(handle: Any) -> str | None:
    with contextlib.suppress(pynvml.NVMLError):  # a GPU that does not replace rows
        _, _, waits_for_reset, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return "a broken row of its memory could not be replaced by a spare one"
        return "a broken row of its memory is in use until the GPU is reset" if waits_for_reset else None
    return None

"""A device that counts or remembers wrongly is found out."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from ftppo.errors import DeviceFault
from ftppo.worker import diagnose as module
from ftppo.worker.device import Device
from ftppo.worker.diagnose import diagnose

CPU = Device("cpu", torch.float32)
GPU = Device("cuda", torch.bfloat16)


def test_a_sound_device_passes() -> None:
    diagnose(CPU)


def test_one_wrong_product_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.matmul

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = real(a, b)
        product[-1, -1] += 1
        return product

    monkeypatch.setattr(torch, "matmul", wrong)
    with pytest.raises(DeviceFault, match="product"):
        diagnose(CPU)


def test_a_bit_that_sticks_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.Tensor.fill_

    def stuck(tensor: torch.Tensor, value: Any) -> torch.Tensor:
        real(tensor, value)
        tensor[12345] |= 1
        return tensor

    monkeypatch.setattr(torch.Tensor, "fill_", stuck)
    with pytest.raises(DeviceFault, match="memory"):
        diagnose(CPU)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU as its driver tells of it: what it has counted, or that it does not count."""
    told = SimpleNamespace(errors=0, rows=[0, 0, 0, 0])

    def count(*_: Any) -> int:
        if told.errors is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(told.errors)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEccErrors", count)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", lambda handle: told.rows)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0-1"))
    for test in ("_multiplies", "_remembers"):
        monkeypatch.setattr(module, test, lambda *_: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return told


@pytest.mark.parametrize("errors", [0, None])
def test_a_gpu_of_which_nothing_bad_is_known_passes(gpu: SimpleNamespace, errors: int | None) -> None:
    gpu.errors = errors
    gpu.rows[:2] = 3, 1  # replaced, and out of use
    diagnose(GPU)


@pytest.mark.parametrize(
    ("errors", "rows", "words"),
    [
        (2, [0, 0, 0, 0], "2 memory errors that could not be corrected"),
        (None, [0, 1, 0, 1], "could not be replaced"),
        (0, [0, 1, 1, 0], "until the GPU is reset"),
    ],
)
def test_what_the_driver_holds_against_a_gpu_is_enough(
    gpu: SimpleNamespace, errors: int | None, rows: list[int], words: str
) -> None:
    gpu.errors, gpu.rows = errors, rows
    with pytest.raises(DeviceFault, match=words):
        diagnose(GPU)

"""A device that counts or remembers wrongly is found out."""

from typing import Any

import pytest
import torch

from ftppo.errors import DeviceFault
from ftppo.worker import diagnose as module
from ftppo.worker.device import Device
from ftppo.worker.diagnose import diagnose

CPU = Device("cpu", torch.float32)


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


def test_errors_that_the_device_has_counted_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_uncorrected_errors", lambda device: 2)
    with pytest.raises(DeviceFault, match="2 memory errors"):
        diagnose(CPU)

"""Rotary position embeddings (RoFormer, arXiv:2104.09864). Comes in: queries and keys; goes out: the same, turned.

The halves convention: channel i and channel i + head_size / 2 are a pair, turned by position times frequency i.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ftppo.config_model import Model, RopeScaling


def inverse_frequencies(model: Model) -> Tensor:
    """[head_size / 2] float32: radians a token, base^(-2i / head_size), scaled as the model asks."""
    exponents = torch.arange(0, model.head_size, 2, dtype=torch.float32) / model.head_size
    frequencies = 1.0 / model.rope_base**exponents
    scaling = model.rope_scaling
    if scaling is None:
        return frequencies
    return frequencies / scaling.factor if scaling.kind == "linear" else _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow turns are slowed by `factor`, fast ones stay, between them it goes over (Llama 3.1's reference code)."""
    turns = scaling.original_length * frequencies / (2 * math.pi)  # in a sequence of the first training
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


class Rotary:
    """Cosines and sines of one model's angles. Its layers share it, so that they are computed once."""

    def __init__(self, frequencies: Tensor) -> None:
        self._frequencies = frequencies
        self._key: Any = None
        self._angles = (frequencies, frequencies)

    def angles(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) of positions 0 to `length`, [length, head_size / 2], with the device and dtype of `like`."""
        key = (length, like.device, like.dtype)
        if key != self._key:
            positions = torch.arange(length, dtype=torch.float32, device=like.device)
            turned = torch.outer(positions, self._frequencies.to(like.device))
            self._key, self._angles = key, (turned.cos().to(like.dtype), turned.sin().to(like.dtype))
        return self._angles


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of x [..., head_size]; cos and sin [..., head_size / 2] broadcast against its halves."""
    return _Rotate.apply(x, cos, sin) if x.requires_grad else _turned(x, cos, sin)


class _Rotate(torch.autograd.Function):
    """The gradient of a turn is the turn back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (first, second), (low, high) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(first, cos, out=low).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=high).addcmul_(first, sin)
    return out

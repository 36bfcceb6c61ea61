"""Frequencies of rotary position embeddings. Comes in: a Model; goes out: radians a token, one a pair of channels."""

import math

import torch
from torch import Tensor

from ftppo.config_model import Model, RopeScaling


def inverse_frequencies(model: Model) -> Tensor:
    """[head_size / 2] float32: base^(-2i / head_size) (RoFormer, arXiv:2104.09864), scaled as the model asks."""
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

"""Silent corruption, made visible. Comes in: modules; goes out: a checksum of their weights."""

from collections.abc import Iterable

import torch

from ftppo.worker.beacon import Progress

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def fingerprint(modules: Iterable[torch.nn.Module]) -> int:
    """The sum of all weights' bits, read as whole numbers, modulo 2^64: any one bit that flips changes it.

    One pass over memory on the device, and one number to fetch.
    """
    sums = [
        parameter.detach().view(_WORDS[parameter.element_size()]).sum(dtype=torch.int64)
        for module in modules
        for parameter in module.parameters()
    ]
    return int(torch.stack(sums).sum()) if sums else 0


def flip_if_asked(progress: Progress, module: torch.nn.Module) -> None:
    """Do what this is to find, where an injected fault wants it."""
    if progress.flipped:
        progress.flipped = False
        flip_a_bit(module)


@torch.no_grad()
def flip_a_bit(module: torch.nn.Module) -> None:
    """One bit of one weight, the lowest of its mantissa, turns over."""
    weights = next(module.parameters()).detach()
    words = weights.view(_WORDS[weights.element_size()])
    words.view(-1)[0] ^= 1

"""The learning rate as a pure function of the step: nothing to save, nothing to restore.

Comes in: the step, the peak and the train section; goes out: a rate.
"""

import math

from ftppo import config


def learning_rate(step: int, peak: float, num_steps: int, train: config.Train) -> float:
    """Rate of the 0-based `step` out of `num_steps`.

    It rises linearly over `train.lr_warmup_steps`, reaching `peak` at the last of them, then stays ("constant") or
    falls to `peak * train.min_lr_ratio` at `num_steps` ("linear", "cosine") and remains there.
    """
    warmup = train.lr_warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min((step - warmup) / max(num_steps - warmup, 1), 1.0)
    match train.schedule:
        case "constant":
            return peak
        case "linear":
            height = 1 - progress
        case "cosine":
            height = (1 + math.cos(math.pi * progress)) / 2
    return peak * (train.min_lr_ratio + (1 - train.min_lr_ratio) * height)

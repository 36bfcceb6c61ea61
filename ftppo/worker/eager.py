"""Brings Megatron-Core in, its functions as they are written. Import it before anything of Megatron-Core.

As it is imported, Megatron-Core hands its fused functions to torch.compile, which loads torch's compilers: a third of
all that an actor does before it is there, and memory that it keeps. ftppo calls none of those functions.
"""

from collections.abc import Callable
from typing import Any

import torch


def _as_written(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """In place of torch.compile, as a decorator with or without options."""
    return function if function is not None else lambda later: later


_compile = torch.compile
torch.compile = _as_written  # type: ignore[assignment]
try:
    import megatron.core  # noqa: F401
finally:
    torch.compile = _compile

"""Has calls that change files fail. Comes in: what is to fail and how often; goes out: how often it did."""

import os
from collections.abc import Callable
from typing import Any

import pytest


def fail(patch: pytest.MonkeyPatch, name: str, number: int, times: int = 1, owner: Any = os) -> list[int]:
    """Make `owner`.<name> fail with errno `number` the next `times` times; the list gets one entry a failure."""
    original: Callable[..., object] = getattr(owner, name)
    failures: list[int] = []

    def failing(*args: object, **kwargs: object) -> object:
        if len(failures) < times:
            failures.append(number)
            raise OSError(number, os.strerror(number))
        return original(*args, **kwargs)

    patch.setattr(owner, name, failing)
    return failures

"""What a refused configuration is told. Comes in: something to try; goes out: the remedy."""

from collections.abc import Callable

import pytest

from ftppo.errors import ConfigError


def remedy_of(attempt: Callable[[], object], key: str) -> str:
    """The remedy that `attempt` is refused with, by the name of `key`."""
    with pytest.raises(ConfigError) as caught:
        attempt()
    assert caught.value.key == key
    return caught.value.remedy

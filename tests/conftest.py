"""What all tests share: those marked gpu are skipped where there is no CUDA device, and no process is left behind."""

import signal
from collections.abc import Iterator, Sequence

import pytest

from tests.sandbox import strays


def pytest_configure() -> None:
    """Who cancels the tests by SIGTERM has them clean up, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is imported only if such a test was collected."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """At the end no process is alive that a sandbox was to hold, and none of their folders is there."""
    yield
    assert strays() == []

"""What all tests share: those marked gpu are skipped where there is no CUDA device, and no process is left behind."""

import signal
from collections.abc import Iterator, Sequence
from types import FrameType

import psutil
import pytest

from tests.sandbox import ROOT, strays

TESTS = ROOT / "tests"
FAULTS = TESTS / "faults"


def pytest_configure(config: pytest.Config) -> None:
    """Who cancels the tests by SIGTERM has them clean up, as Ctrl-C does."""
    hands_out = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    signal.signal(signal.SIGTERM, _end_workers if hands_out else signal.default_int_handler)


def _end_workers(number: int, frame: FrameType | None) -> None:
    for worker in psutil.Process().children():
        worker.terminate()
    signal.default_int_handler(number, frame)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Keep together what shares costly fixtures, and skip what needs a GPU where there is none."""
    for item in items:
        # Where several processes run the tests, one of them runs all faults: what hangs and what is slow is told apart
        # by time, so not too much is to run at once.
        group = FAULTS if FAULTS in item.path.parents else item.path
        item.add_marker(pytest.mark.xdist_group(str(group.relative_to(TESTS))))
    _skip_without_gpu(items)


def _skip_without_gpu(items: Sequence[pytest.Item]) -> None:
    """torch is imported only if such a test was collected."""
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

"""What all tests share: those marked gpu are skipped where there is no CUDA device, and no process is left behind."""

import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.sandbox import strays

FAULTS = "tests/faults/"
APART = frozenset(
    f"{FAULTS}test_{name}.py"
    for name in ("node_loss", "data_cursor", "interrupt", "pretrained", "reward_model", "rewards", "shrink", "trials")
)


def pytest_configure(config: pytest.Config) -> None:
    """Who cancels the tests by SIGTERM has them clean up, as Ctrl-C does."""
    hands_out = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    signal.signal(signal.SIGTERM, _end_workers if hands_out else signal.default_int_handler)


def _end_workers(number: int, frame: FrameType | None) -> None:
    for worker in psutil.Process().children():
        worker.terminate()
    signal.default_int_handler(number, frame)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where several processes run the tests, each is given a file at a time, and one of them most faults."""
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one file share costly fixtures; those of faults share runs, and tell hangs from slowness by time.

    Some of these do neither, and are files like others.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return FAULTS if file.startswith(FAULTS) and file not in APART else file


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is imported only if such a test was collected."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason=f"{item.name} needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """At the end no process is alive that a sandbox was to hold, and none of their folders is there."""
    yield
    assert strays() == []

"""Processes that share one GPU."""

import multiprocessing as mp
from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.calls import Kind
from tests.process.mesh import Mesh

DEADLINE_S = 240.0  # a fresh process imports everything, and then CUDA and NCCL make ready


class Fresh(Mesh):
    """Each process begins with nothing, as CUDA wants: one that is forked cannot use what its parent has touched."""

    starter: Any = mp.get_context("spawn")


@pytest.fixture(scope="session")
def kind() -> Kind:
    """What all of this runs on. The same bodies work with "cpu", for who writes them without a GPU."""
    return "cuda"


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Processes, as many as are asked for, and gone after the test: what is measured is the device's own."""
    processes = Fresh(DEADLINE_S)
    yield processes
    processes.close()

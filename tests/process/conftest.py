"""One mesh of processes for all tests here, and what each layout makes of the one small training problem."""

from collections.abc import Iterator
from functools import cache

import pytest

from ftppo.plan.topology import Layout
from tests.process import case
from tests.process.mesh import Mesh
from tests.process.outcome import Observe, Outcome, run_case


@pytest.fixture(scope="session")
def mesh() -> Iterator[Mesh]:
    """Processes, as many as are asked for."""
    processes = Mesh()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def observe(mesh: Mesh) -> Observe:
    """observe(layout): the Outcome, found once. All layouts train on the batch that layout (1, 1, 1, 1) has scored."""

    @cache
    def observed(layout: Layout) -> Outcome:
        given = None if layout == case.ONE else observed(case.ONE).batch
        return run_case(mesh, case.config(layout), given)

    return observed

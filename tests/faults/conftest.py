"""A sandbox for each test, and the runs that nothing disturbs, each made once."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.faults.nodes import cluster_environment
from tests.faults.program import Outcome, run_program
from tests.sandbox import Sandbox

# What the runs that are compared train with. Everything else may differ: faults, standbys, saves, snapshots.
RECIPES = {
    "dp2": ("experiment=smoke", "parallel=dp2", "train.iterations=6", "train.epochs=2"),
    "dp2 long": ("experiment=smoke", "parallel=dp2", "train.iterations=24", "train.epochs=2"),
    "dp2tp2": ("experiment=smoke", "parallel=dp2tp2", "train.iterations=15", "train.epochs=2"),
    "dp2tp2 long": ("experiment=smoke", "parallel=dp2tp2", "train.iterations=22", "train.epochs=2"),
    "grpo": (
        "experiment=smoke",
        "algo=grpo",
        "algo.kl_coef=0.04",
        "algo.dynamic_rounds=2",
        "train.micro_tokens=96",
        "train.samples=4",
        "train.iterations=5",
        "task.reward=tests.faults.rewards.lower",
    ),
}

type Undisturbed = Callable[[str], Outcome]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """Ends with the test, and fails it for what it leaves."""
    with Sandbox() as own:
        yield own


@pytest.fixture
def environment(sandbox: Sandbox) -> dict[str, str]:
    """For all that takes part in a Ray cluster that is not the run's own."""
    return cluster_environment(sandbox)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """undisturbed(recipe): the run of that recipe without faults, made once."""

    @cache
    def made(recipe: str) -> Outcome:
        with Sandbox() as own:
            done = run_program(own, tmp_path_factory.mktemp("undisturbed"), *RECIPES[recipe])
        assert done.status == 0, done.output
        return done

    return made

"""Faults drawn at random: the same for the same seeds, and each in a place that the run comes by."""

import itertools
from collections import Counter
from typing import Any

import pytest

from ftppo.config import Config, Fault, load_config
from ftppo.plan.retention import due
from ftppo.plan.soak import HANGS, draw_faults, schedule_of

ITERATIONS, EVERY = 250, 3


def configured(run_seed: int = 0, snapshot_every: int = 1, **soak: Any) -> Config:
    return load_config(
        {
            "seed": run_seed,
            "train": {"iterations": ITERATIONS, "prompts": 32, "mini_batch": 32, "micro_batch": 8},
            "parallel": {"dp": 2, "tp": 2},
            "cluster": {"standby": 4},
            "checkpoint": {"every_iterations": EVERY},
            "snapshot": {"every_steps": snapshot_every},
            "recovery": {"max_recoveries": 1000},
            "chaos": {"soak": {"num_faults": 100, **soak}},
        }
    )


def test_equal_seeds_draw_equal_faults_and_each_seed_counts() -> None:
    assert draw_faults(configured()) == draw_faults(configured())
    drawn = [draw_faults(configured(one, seed=other)) for one in (0, 1) for other in (0, 1)]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))


def test_a_run_without_a_soak_has_the_faults_that_are_written_down_and_no_others() -> None:
    written = ({"iteration": 1, "kind": "sigkill"}, {"iteration": 1, "kind": "nan", "slot": 3})
    assert schedule_of(Config()).faults == ()
    config = configured()
    both = config.model_copy(update={"chaos": config.chaos.model_copy(update={"faults": tuple(map(_fault, written))})})
    assert schedule_of(both).faults == (*map(_fault, written), *draw_faults(config))
    assert len(schedule_of(both).faults) == 102


def _fault(raw: dict[str, Any]) -> Fault:
    return Fault.model_validate(raw)


def test_every_kind_comes_about_equally_often_but_for_those_that_hang() -> None:
    config = configured(hang_share=0.06)
    counts = Counter(str(fault.kind) for fault in draw_faults(config))
    assert set(counts) == set(config.chaos.soak.kinds)
    assert sum(counts[kind] for kind in HANGS) == 6 and counts["sigstop"] == counts["gil_hang"] == 3
    others = [number for kind, number in counts.items() if kind not in HANGS]
    assert max(others) - min(others) <= 1


def test_where_all_kinds_hang_or_none_does_the_share_does_not_matter() -> None:
    assert {fault.kind for fault in draw_faults(configured(kinds=["gil_hang"], hang_share=0.1))} == {"gil_hang"}
    assert {fault.kind for fault in draw_faults(configured(kinds=["exit"], hang_share=1.0))} == {"exit"}


@pytest.mark.parametrize("seed", range(5))
def test_faults_pass_the_check_and_strike_where_the_run_comes_by(seed: int) -> None:
    config = configured(seed)
    faults = draw_faults(config)
    load_config(config.model_dump() | {"chaos": {"faults": [fault.model_dump() for fault in faults]}})
    for fault in faults:
        assert 2 <= fault.iteration < ITERATIONS
        assert fault.phase != "save" or due(fault.iteration + 1, EVERY, ITERATIONS)
        assert fault.kind != "nan" or fault.phase.startswith("update")
    assert {fault.slot for fault in faults} == set(range(4))
    assert {"rollout", "score", "save", "update.reduce", "snapshot"} <= {fault.phase for fault in faults}


@pytest.mark.parametrize("snapshot_every", [0, 2])
def test_a_step_that_may_have_no_snapshot_has_no_fault_in_one(snapshot_every: int) -> None:
    assert "snapshot" not in {fault.phase for fault in draw_faults(configured(snapshot_every=snapshot_every))}


@pytest.mark.parametrize(
    ("num", "gap", "first", "least"), [(100, 1, 2, 1), (50, 4, 10, 4), (50, 5, 4, 5), (100, 0, 2, 0)]
)
def test_faults_keep_their_distance(num: int, gap: int, first: int, least: int) -> None:
    """In the third case there is exactly as much room as they need."""
    for seed in range(20):
        config = configured(seed=seed, num_faults=num, min_gap=gap, first_iteration=first)
        iterations = [fault.iteration for fault in draw_faults(config)]
        assert len(iterations) == num and first <= iterations[0] and iterations[-1] < ITERATIONS
        assert min(after - before for before, after in itertools.pairwise(iterations)) >= least


def test_faults_spread_over_the_whole_run() -> None:
    iterations = [fault.iteration for fault in draw_faults(configured())]
    quarters = Counter(4 * iteration // ITERATIONS for iteration in iterations)
    assert min(quarters[quarter] for quarter in range(4)) > 10

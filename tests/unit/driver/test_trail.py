"""Where the run stood at each version: the newest mark counts, and going back forgets what came after."""

from typing import Any

import pytest

from ftppo.driver.iteration import Iteration
from ftppo.driver.trail import KEPT, Trail
from ftppo.types import DriverState


def iteration(state: DriverState, results: list[Any]) -> Iteration:
    return Iteration(shop=None, state=state, results=results)  # type: ignore[arg-type]


def test_an_iteration_comes_back_as_far_as_it_was() -> None:
    trail, state = Trail(), DriverState(iteration=2, step=10)
    one = iteration(state, [])
    for version in range(10, 14):
        trail.mark(version, state, one)
        one.results.append(f"result {version}")  # type: ignore[arg-type]
    assert trail.back_to(12)[0] is state
    _, back = trail.back_to(12)
    assert back is not None and back.state is state
    assert back.results == ["result 10", "result 11"]
    assert one.results == [f"result {version}" for version in range(10, 14)]
    back.results.append("another")  # type: ignore[arg-type]
    _, again = trail.back_to(12)
    assert again is not None and again.results == ["result 10", "result 11"]


def test_between_iterations_there_is_none() -> None:
    trail, before, after = Trail(), DriverState(step=4), DriverState(iteration=1, step=8)
    trail.mark(4, before, iteration(before, []))
    trail.mark(8, after, None)
    assert trail.back_to(8) == (after, None)


def test_the_newest_mark_of_a_version_counts() -> None:
    """The end of an iteration and the beginning of the next stand at the same weights."""
    trail, done = Trail(), DriverState(iteration=1, step=8)
    trail.mark(8, DriverState(step=0), iteration(DriverState(), ["all of it"]))
    trail.mark(8, done, None)
    trail.mark(8, done, iteration(done, []))
    state, back = trail.back_to(8)
    assert state is done and back is not None and back.results == []


def test_what_came_after_did_not_happen() -> None:
    trail = Trail()
    for version in range(5):
        trail.mark(version, DriverState(step=version), None)
    trail.back_to(2)
    assert trail.back_to(1)[0].step == 1
    for version in (2, 3, 4):
        with pytest.raises(KeyError):
            trail.back_to(version)


def test_a_long_run_keeps_the_last_places_only() -> None:
    trail = Trail()
    for version in range(3 * KEPT):
        trail.mark(version, DriverState(step=version), None)
    with pytest.raises(KeyError):
        trail.back_to(2 * KEPT - 1)
    assert trail.back_to(2 * KEPT)[0].step == 2 * KEPT

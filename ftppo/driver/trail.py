"""Where the run stood at each of the last versions. Comes in: marks; goes out: the place to go on from."""

import dataclasses

from ftppo.driver.iteration import Iteration
from ftppo.types import DriverState

KEPT = 64  # more than the snapshots' interval will ever make a recovery go back


class Trail:
    """The last places of a run, by the version of the weights. The newest mark of a version counts."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[DriverState, Iteration | None, int]] = {}

    def mark(self, version: int, state: DriverState, iteration: Iteration | None) -> None:
        """The weights are at `version`: in `iteration`, or between two at `state`."""
        self._marks[version] = (state, iteration, len(iteration.results) if iteration else 0)
        for old in sorted(self._marks)[:-KEPT]:
            del self._marks[old]

    def back_to(self, version: int) -> tuple[DriverState, Iteration | None]:
        """State and iteration to go on from at `version`, the iteration as it was then."""
        state, iteration, num_done = self._marks[version]
        self._marks = {known: mark for known, mark in self._marks.items() if known <= version}
        if iteration is not None:
            iteration = dataclasses.replace(iteration, results=iteration.results[:num_done])
        return state, iteration

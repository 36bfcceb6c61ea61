"""When to save, what to keep. Comes in: numbers of iterations, published checkpoints; goes out: whether, and which."""

from collections.abc import Sequence

Published = tuple[int, int]  # (step, iterations finished)

LEFTOVER_S = 24 * 3600.0  # a failed attempt older than that is nobody's any more


def due(iteration: int, every: int, last: int) -> bool:
    """Whether to save once `iteration` iterations are finished, of `last`: each `every` (0: never), and at the end."""
    assert every >= 0, f"every {every}"
    return iteration == last or (iteration > 0 and every > 0 and iteration % every == 0)


def keep(
    published: Sequence[Published], keep_last: int, keep_every_iterations: int
) -> tuple[list[Published], list[Published]]:
    """Which published checkpoints stay and which go, both oldest first. The newest always stays.

    The `keep_last` newest stay, and those of each `keep_every_iterations`-th iteration (0: none besides the last).
    """
    assert keep_last >= 1, f"keep_last {keep_last}"
    ordered = sorted(set(published))
    recent = set(ordered[-keep_last:])
    milestones = {one for one in ordered if keep_every_iterations and one[1] and one[1] % keep_every_iterations == 0}
    stay = recent | milestones
    return [one for one in ordered if one in stay], [one for one in ordered if one not in stay]

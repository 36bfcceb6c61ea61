"""When to save, and what stays."""

import pytest

from ftppo.plan.retention import due, keep


def test_due_at_each_interval_and_at_the_end() -> None:
    assert [iteration for iteration in range(11) if due(iteration, every=4, last=10)] == [4, 8, 10]
    assert [iteration for iteration in range(11) if due(iteration, every=0, last=10)] == [10]
    assert [iteration for iteration in range(9) if due(iteration, every=4, last=8)] == [4, 8]


PUBLISHED = [(10 * iteration, iteration) for iteration in range(8)]


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "stay"),
    [(1, 0, [7]), (2, 0, [6, 7]), (1, 3, [3, 6, 7]), (2, 2, [2, 4, 6, 7]), (20, 0, list(range(8)))],
)
def test_the_newest_and_the_milestones_stay(keep_last: int, keep_every: int, stay: list[int]) -> None:
    shuffled = PUBLISHED[4:] + PUBLISHED[:4]
    kept, deleted = keep(shuffled, keep_last, keep_every)
    assert [iteration for _, iteration in kept] == stay
    assert sorted(kept + deleted) == PUBLISHED and deleted == sorted(deleted)


def test_nothing_published_is_nothing_to_do() -> None:
    assert keep([], 1, 0) == ([], [])
    with pytest.raises(AssertionError):
        keep(PUBLISHED, 0, 0)

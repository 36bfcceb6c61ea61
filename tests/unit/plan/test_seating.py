"""Rows of the cache: none stays free while a prompt waits, the rows in use have no gap, nobody is lost on the way."""

import random

import pytest

from ftppo.plan.seating import Change, Seats


def test_the_longest_prompts_enter_first_and_equal_ones_in_their_order() -> None:
    seats = Seats([2, 5, 3, 5, 1], num_rows=3)
    assert seats.turn() == Change((0, 1, 2), {})
    assert seats.prompts == [1, 3, 2]


def test_no_more_rows_than_prompts() -> None:
    seats = Seats([1, 1], num_rows=64)
    assert seats.num_rows == 2 and seats.turn() == Change((0, 1), {})
    assert Seats([], num_rows=64).turn() == Change((), {})


def test_who_waits_takes_the_row_of_who_has_ended() -> None:
    seats = Seats([9, 8, 7, 6, 5, 4], num_rows=4)
    seats.turn()
    assert seats.turn([2, 1]) == Change((1, 2), {})
    assert seats.prompts == [0, 4, 5, 3]


def test_where_nobody_waits_the_last_rows_close_the_gaps() -> None:
    seats = Seats([9, 8, 7, 6, 5], num_rows=5)
    seats.turn()
    assert seats.turn([1, 2]) == Change((), {3: 1, 4: 2})
    assert seats.prompts == [0, 3, 4]
    assert seats.turn([2]) == Change((), {})
    assert seats.turn([0]) == Change((), {1: 0})
    assert seats.turn([0]) == Change((), {}) and seats.prompts == []


def test_one_waits_and_three_rows_come_free() -> None:
    seats = Seats([9, 8, 7, 6, 5], num_rows=4)
    seats.turn()
    assert seats.turn([0, 1, 3]) == Change((0,), {2: 1})
    assert seats.prompts == [4, 2]


@pytest.mark.parametrize("seed", range(20))
def test_all_are_seated_once_and_keep_what_the_cache_holds_of_them(seed: int) -> None:
    draw = random.Random(seed)
    num, num_rows = draw.randint(1, 40), draw.randint(1, 12)
    seats = Seats([draw.randint(1, 9) for _ in range(num)], num_rows)
    cache: dict[int, int] = {}  # prompt whose keys and values are in a row
    seen: list[int] = []
    ended: list[int] = []
    while True:
        change = seats.turn(ended)
        waiting = num - len(seen) - len(change.entered)
        assert len(seats.prompts) == num_rows or not waiting, "a row is free and a prompt waits"
        cache |= {target: cache[source] for source, target in change.moved.items()}
        cache |= {row: seats.prompts[row] for row in change.entered}
        seen += [seats.prompts[row] for row in change.entered]
        assert [cache[row] for row in range(len(seats.prompts))] == seats.prompts
        assert not set(change.moved) & set(change.moved.values()), "rows move at once, none after another"
        if not seats.prompts:
            break
        ended = [row for row in range(len(seats.prompts)) if draw.random() < 0.3]
    assert sorted(seen) == list(range(num))

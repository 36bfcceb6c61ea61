"""Micro-batches: every row in one of them, within the budget, as little padding as lengths allow, as many as others."""

import random

import pytest

from ftppo.plan.packing import Pack, by_length, dealt, even


def lognormal(num: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths as answers have them: many short, few long."""
    draw = random.Random(seed)
    return [min(longest, max(1, round(draw.lognormvariate(4.0, 0.8)))) for _ in range(num)]


def rows(packs: list[Pack]) -> list[int]:
    return [row for pack in packs for row in pack.rows]


def test_the_longest_come_first_and_share_a_width() -> None:
    assert by_length([3, 23, 15, 24, 16], budget=48, unit=8) == [Pack((3, 1), 24), Pack((4, 2), 16), Pack((0,), 8)]
    assert by_length([3, 23, 15, 24, 16], budget=32, unit=8) == [
        Pack((3,), 24), Pack((1,), 24), Pack((4, 2), 16), Pack((0,), 8)
    ]  # fmt: skip


def test_what_would_be_mostly_padding_has_a_pack_of_its_own_unless_that_were_tiny() -> None:
    assert by_length([40, 10, 10], budget=160, unit=1) == [Pack((0,), 40), Pack((1, 2), 10)]
    assert by_length([40, 10, 10], budget=1000, unit=1) == [Pack((0, 1, 2), 40)]


@pytest.mark.parametrize("unit", [1, 2, 8])
def test_every_row_is_in_one_pack_within_the_budget(unit: int) -> None:
    lengths = lognormal(200, 512)
    packs = by_length(lengths, 1024, unit)
    assert sorted(rows(packs)) == list(range(200))
    for pack in packs:
        longest = max(lengths[row] for row in pack.rows)
        assert pack.width % unit == 0 and longest <= pack.width < longest + unit
        assert len(pack.rows) * pack.width <= 1024


def test_padding_is_below_a_tenth_on_lognormal_lengths() -> None:
    lengths = lognormal(512, 1024)
    padded = sum(len(pack.rows) * pack.width for pack in by_length(lengths, 4096, 4))
    assert 1 - sum(lengths) / padded < 0.1
    assert 1 - sum(lengths) / (512 * 1024) > 0.9  # as they are, padded to the longest possible


def test_a_row_beyond_the_budget_has_a_pack_of_its_own() -> None:
    assert by_length([100, 1, 100], 10, 1) == [Pack((0,), 100), Pack((2,), 100), Pack((1,), 1)]


@pytest.mark.parametrize("at_least", [0, 1, 3, 5, 99])
def test_there_are_as_many_packs_as_asked_for_and_as_there_are_rows_for(at_least: int) -> None:
    lengths = [4, 4, 4, 4, 2]
    packs = by_length(lengths, 16, 1, at_least)
    assert len(packs) == max(2, min(at_least, 5)) and sorted(rows(packs)) == [0, 1, 2, 3, 4]
    assert all(pack.width == max(lengths[row] for row in pack.rows) for pack in packs)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_dealt_parts_have_alike_shares_of_long_and_short(parts: int) -> None:
    lengths = lognormal(48, 512)
    order = dealt(lengths, parts)
    assert sorted(order) == list(range(48))
    size = 48 // parts
    shares = [[lengths[row] for row in order[start : start + size]] for start in range(0, 48, size)]
    in_turn = [length for turn in zip(*shares, strict=True) for length in turn]
    assert in_turn == sorted(lengths, reverse=True)


def test_even_packs_are_runs_of_the_largest_size_that_divides() -> None:
    assert even(6, 4, 32) == [Pack((0, 1, 2), 32), Pack((3, 4, 5), 32)]
    assert even(4, 8, 32) == [Pack((0, 1, 2, 3), 32)]
    assert even(5, 2, 32) == [Pack((row,), 32) for row in range(5)]

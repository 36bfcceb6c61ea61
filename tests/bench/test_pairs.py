"""Ratios say which side is the faster one, round by round."""

from tests.bench.pairs import Pairs, table


def test_a_ratio_above_one_means_that_ours_is_faster() -> None:
    pairs = Pairs("case", num_tokens=100)
    for ours_s, other_s in ((1.0, 2.0), (10.0, 15.0), (2.0, 2.0)):
        pairs.add(ours_s, other_s)
    assert pairs.ratios == [2.0, 1.5, 1.0]
    assert pairs.row() == ["case", "50", "50", "1.50", "1.00 - 2.00"]  # the medians of each side, of the ratios


def test_a_table_names_both_sides_and_lines_up() -> None:
    short, long = Pairs("one", 1, [(1.0, 1.0)]), Pairs("a longer name", 100_000, [(1.0, 2.0)])
    title, head, *rows = table("title", "other", [short, long]).splitlines()
    assert title == "title" and "ftppo tok/s" in head and "other tok/s" in head
    assert len({line.index(cell) + len(cell) for line, cell in zip(rows, ("1.00", "2.00"), strict=True)}) == 1

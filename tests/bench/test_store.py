"""The benchmark of the stores runs, against each server, and has a row for each."""

import pytest

from tests.bench import store
from tests.bench.pairs import Pairs

MIB = 2**20


def test_a_row_has_rates_ratio_and_the_highest_memory() -> None:
    case = store.Case(Pairs("case", 100, [(1.0, 2.0)]), [3 * MIB, 5 * MIB, 4 * MIB])
    assert case.row() == ["case", "100", "50", "2.00", "2.00 - 2.00", "5", "32"]


@pytest.mark.slow
def test_every_store_is_measured() -> None:
    title, head, *rows = store.compare(1, size_bytes=32 * MIB).splitlines()
    assert "32 MiB" in title and head.split()[-2:] == ["ring", "MiB"]
    assert [row.strip().split("  ")[0] for row in rows] == [name for name, _, _ in store.CASES]

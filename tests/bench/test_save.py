"""The benchmark of saves runs on one rank and on two, and its shares are those of the other side, round by round."""

import pytest

from ftppo.config import Model
from ftppo.plan.topology import Layout
from tests.bench import save

TINY = Model(layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, dtype="bf16")


def test_a_row_has_medians_and_shares() -> None:
    found = save.Case("case", 2**20, [(0.1, 1.0, 2.0), (0.2, 3.0, 10.0), (0.4, 2.0, 4.0)])
    assert found.row() == ["case", "1", "0.200", "2.000", "4.000", "5%", "50%"]


@pytest.mark.slow
def test_both_sides_save_what_is_there() -> None:
    layouts = {"1 rank": Layout(), "2 ranks": Layout(dp=2)}
    title, _, *rows = save.compare(1, {"tiny": TINY}, layouts).splitlines()
    assert title == "save: to a folder"
    assert [row.strip().split("  ")[0] for row in rows] == ["tiny, 1 rank", "tiny, 2 ranks"]

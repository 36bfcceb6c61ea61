"""The benchmark of saves runs on one rank and on two, and its shares are those of the other side, round by round."""

import pytest

from ftppo.config import Model, Parallel
from ftppo.driver.record import CheckpointRecord
from tests.bench import save

TINY = Model(layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, dtype="bf16")


def test_a_row_has_medians_and_shares() -> None:
    case = save.Case("case")
    for stall_s, total_s, other_s in ((0.1, 1.0, 2.0), (0.2, 3.0, 10.0), (0.4, 2.0, 4.0)):
        case.ours.append(CheckpointRecord(1, "uri", 2**20, stall_s, total_s, 0))
        case.other_s.append(other_s)
    assert case.row() == ["case", "1", "0.200", "2.000", "4.000", "5%", "50%"]


@pytest.mark.slow
def test_both_sides_save_what_is_there() -> None:
    layouts = {"1 rank": Parallel(), "2 ranks": Parallel(dp=2)}
    title, _, *rows = save.compare(1, {"tiny": TINY}, layouts).splitlines()
    assert title == "save: to a folder"
    assert [row.strip().split("  ")[0] for row in rows] == ["tiny, 1 rank", "tiny, 2 ranks"]

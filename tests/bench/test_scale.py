"""Every piece of bookkeeping that is measured runs, and has its row."""

from ftppo.plan.topology import Layout
from tests.bench import scale


def test_every_piece_runs_and_has_a_row() -> None:
    title, head, *rows = scale.compare(1, small=Layout(dp=2, tp=4, pp=2), large=Layout(dp=13, tp=4, pp=2)).splitlines()
    assert "104 slots" in title
    assert head.split()[-1] == "growth"
    assert [row.strip().split("  ")[0] for row in rows] == list(scale.WORK)
    assert all(float(row.split()[-1]) > 0 for row in rows)

"""Geometry of the charts: percent from the left, percent from the top."""

import pytest

from ftppo.driver.charts import Axis, Series, bar_chart, line_chart, nice_ticks


def test_ticks_are_round_and_on_the_axis() -> None:
    assert nice_ticks(Axis(0.0, 1.0)) == [0.0, 0.5, 1.0]
    assert nice_ticks(Axis(-3.0, 97.0), most=6) == [0.0, 20.0, 40.0, 60.0, 80.0]
    for low, high in ((1e-9, 3e-9), (-7e8, 4e9), (0.999, 1.001)):
        axis = Axis(low, high)
        ticks = nice_ticks(axis)
        assert 2 <= len(ticks) <= 5
        assert 0 <= axis.at(ticks[0]) < axis.at(ticks[-1]) <= 100


def test_a_line_runs_from_the_left_edge_to_the_right_and_breaks_where_a_value_is_missing() -> None:
    chart = line_chart("k", "t", [Series("a", 1, [(5, 0.0), (6, 1.0), (7, None), (8, 0.5), (9, 1.0)])])
    assert chart is not None
    (path,) = chart.paths
    first, second = path.data.split(" M")
    assert first.startswith("M0.0 ") and second.endswith(f"L100.0 {first.split()[-1]}")
    low, high = float(first.split()[1]), float(first.split()[-1])
    assert 100 > low > high > 0  # the larger value is nearer to the top
    assert [tick.text for tick in chart.x_ticks] == ["5", "6", "7", "8", "9"]
    assert [hit.text for hit in chart.hits] == [
        f"iteration {x}\na {y}" for x, y in ((5, 0), (6, "1.00"), (8, "0.500"), (9, "1.00"))
    ]


def test_one_point_and_a_constant_stand_in_the_middle() -> None:
    chart = line_chart("k", "t", [Series("a", 1, [(3, 2.0)])], marks=[(3, "R1")])
    assert chart is not None
    assert chart.dots == [(1, 50.0, 50.0)]
    assert chart.marks[0].at == 50.0
    assert len(chart.hits) == 1 and chart.hits[0].width == 100.0


def test_band_and_faint_lines_are_inside_the_plot() -> None:
    series = Series("a", 1, [(0, 0.0), (1, 1.0)], band=[2.0, 3.0], faint=[[(0, 9.0), (1, None)]])
    chart = line_chart("k", "t", [series])
    assert chart is not None
    assert [path.style for path in chart.paths] == ["band", "faint", "line"]
    numbers = [float(part.strip("MLZ")) for path in chart.paths for part in path.data.split() if part.strip("MLZ")]
    assert all(0 <= value <= 100 for value in numbers)


def test_thousands_of_points_keep_their_peaks_and_stay_small() -> None:
    points = [(x, 100.0 if x == 4321 else 0.0) for x in range(10_000)]
    chart = line_chart("k", "t", [Series("a", 1, points)])
    assert chart is not None
    assert chart.paths[0].data.count("L") <= 700
    assert min(float(pair.split()[1]) for pair in chart.paths[0].data[1:].split(" L")) == pytest.approx(
        100 * 0.08 / 1.16, abs=0.1
    )
    assert len(chart.hits) <= 150 and not chart.dots


def test_bars_stand_on_each_other_and_on_the_ground() -> None:
    series = [Series("x", 1, [(0, 1.0), (1, None)]), Series("y", 2, [(0, 3.0), (1, 2.0)])]
    chart = bar_chart("k", "t", series, "s")
    assert chart is not None
    below, above, missing, _ = chart.boxes
    assert below.y + below.height == pytest.approx(100, abs=0.02)
    assert above.y + above.height == pytest.approx(below.y, abs=0.02)
    assert above.height == pytest.approx(3 * below.height, abs=0.05)
    assert missing.height == 0.0
    assert "x 1.00 s" in chart.hits[0].text and "together 4.00 s" in chart.hits[0].text


def test_too_many_bars_are_averaged() -> None:
    chart = bar_chart("k", "t", [Series("x", 1, [(x, float(x // 500)) for x in range(1000)])], "s")
    assert chart is not None
    assert len(chart.boxes) <= 80
    heights = [box.height for box in chart.boxes]
    assert heights[0] == 0.0 and heights[-1] == pytest.approx(100 / 1.05, abs=0.01)
    assert chart.hits[0].text.startswith("iteration 0–12\n")


def test_nothing_known_is_no_chart() -> None:
    assert line_chart("k", "t", [Series("a", 1, [(0, None)])]) is None
    assert bar_chart("k", "t", [Series("a", 1, [(0, None)])], "s") is None
    assert bar_chart("k", "t", [Series("a", 1, [])], "s") is None

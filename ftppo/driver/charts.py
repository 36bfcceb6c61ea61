"""Geometry of the report's charts. Comes in: numbers by iteration, some missing; goes out: positions in percent of the
plot (x from its left, y from its top), which report.html.tmpl draws. No drawing here, no HTML.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from ftppo.driver.text import number

Point = tuple[float, float | None]  # (iteration, value), None: not known
_MOST_POINTS = 600  # of one line: more cannot be told apart
_MOST_HITS = 150  # columns that answer to the pointer
_MOST_DOTS = 60


@dataclass(frozen=True)
class Series:
    """One line: its points by iteration, the width of a band around them, and earlier attempts drawn faint."""

    name: str
    colour: int  # 1-based, of the style sheet's
    points: Sequence[Point]
    band: Sequence[float | None] = ()  # half its height, point by point
    faint: Sequence[Sequence[Point]] = ()

    @property
    def latest(self) -> str:
        """The newest known value, as text."""
        return number(next((value for _, value in reversed(self.points) if value is not None), None))


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Path:
    """An SVG path in a 100 x 100 box. `style` is "line", "faint" or "band"."""

    colour: int
    style: str
    data: str


@dataclass(frozen=True)
class Box:
    """A rectangle, with the text that tells what it is."""

    x: float
    width: float
    y: float = 0.0
    height: float = 100.0
    colour: int = 0
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """All that the template needs of one chart."""

    key: str
    title: str
    description: str
    series: Sequence[Series]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    paths: list[Path] = field(default_factory=list)
    dots: list[tuple[int, float, float]] = field(default_factory=list)  # colour, x, y
    boxes: list[Box] = field(default_factory=list)
    hits: list[Box] = field(default_factory=list)
    marks: list[Tick] = field(default_factory=list)


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to percent."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Percent from the low end; the middle where the axis has no length."""
        return round(100 * (value - self.low) / (self.high - self.low), 2) if self.high > self.low else 50.0


def nice_ticks(axis: Axis, most: int = 5) -> list[float]:
    """At most `most` multiples of a round step (1, 2 or 5 times a power of ten) on the axis, which has some length."""
    power = 10.0 ** math.floor(math.log10((axis.high - axis.low) / most))
    for step in (factor * power for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
        if last - first < most:
            return [index * step for index in range(first, last + 1)]
    raise AssertionError(axis)


def _padded(low: float, high: float) -> Axis:
    """An axis that holds [low, high] with some air; a constant lies in its middle."""
    air = (high - low) * 0.08 or abs(high) / 4 or 1.0
    return Axis(low - air, high + air)


def line_chart(key: str, title: str, series: Sequence[Series], marks: Iterable[tuple[float, str]] = ()) -> Chart | None:
    """Lines over iterations; None where nothing is known. `marks` are iterations at which something happened, named."""
    values = [value for one in series for value in _extent(one)]
    if not values:
        return None
    xs = sorted({x for one in series for x, value in one.points if value is not None})
    x_axis, y_axis = Axis(xs[0], xs[-1]), _padded(min(values), max(values))
    paths, dots = [], []
    for one in series:
        if one.band:
            paths.append(Path(one.colour, "band", _area(one, x_axis, y_axis)))
        paths += [Path(one.colour, "faint", _line(points, x_axis, y_axis)) for points in one.faint]
        paths.append(Path(one.colour, "line", _line(one.points, x_axis, y_axis)))
        known = _known(one.points)
        if len(known) <= _MOST_DOTS:
            dots += [(one.colour, x_axis.at(x), 100 - y_axis.at(y)) for x, y in known]
    newest = ", ".join(f"{one.name} {one.latest}" for one in series)
    return Chart(
        key=key,
        title=title,
        description=f"By iteration, from {xs[0]:.0f} to {xs[-1]:.0f}. Newest: {newest}.",
        series=series,
        x_ticks=_x_ticks(x_axis),
        y_ticks=_y_ticks(y_axis),
        paths=paths,
        dots=dots,
        hits=_hits(series, xs, x_axis),
        marks=[Tick(min(100.0, max(0.0, x_axis.at(x))), name) for x, name in marks],
    )


def bar_chart(key: str, title: str, series: Sequence[Series], unit: str) -> Chart | None:
    """Stacked bars by iteration; neighbours are averaged where there are too many. None where nothing is known."""
    columns = _columns(series)
    highest = max((sum(heights) for _, heights in columns), default=0.0)
    if highest <= 0:
        return None
    y_axis = Axis(0.0, 1.05 * highest)
    width = 100 / len(columns)
    boxes, hits, x_ticks = [], [], []
    label_every = math.ceil(len(columns) / 8)
    for place, (name, heights) in enumerate(columns):
        top = 100.0
        for one, height in zip(series, heights, strict=True):
            share = y_axis.at(height)
            top -= share
            boxes.append(Box(round((place + 0.1) * width, 2), round(0.8 * width, 2), round(top, 2), share, one.colour))
        parts = [f"{one.name} {number(height)} {unit}" for one, height in zip(series, heights, strict=True)]
        text = "\n".join([f"iteration {name}", *parts, f"together {number(sum(heights))} {unit}"])
        hits.append(Box(round(place * width, 2), round(width, 2), text=text))
        if place % label_every == 0:
            x_ticks.append(Tick(round((place + 0.5) * width, 2), name.split("–")[0]))
    names = ", ".join(one.name for one in series)
    return Chart(
        key=key,
        title=title,
        description=f"Stacked by iteration, in {unit}: {names}. Highest: {number(highest)}.",
        series=series,
        x_ticks=x_ticks,
        y_ticks=_y_ticks(y_axis),
        boxes=boxes,
        hits=hits,
    )


def _known(points: Sequence[Point]) -> list[tuple[float, float]]:
    return [(x, value) for x, value in points if value is not None]


def _extent(one: Series) -> list[float]:
    """All values that the plot must hold."""
    values = [value for points in (one.points, *one.faint) for _, value in _known(points)]
    for (_, value), half in zip(one.points, one.band, strict=False):
        if value is not None and half is not None:
            values += [value - half, value + half]
    return values


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """`points`, or of each group of neighbours the lowest and the highest, so that no peak is lost."""
    if len(points) <= _MOST_POINTS:
        return points
    group = math.ceil(2 * len(points) / _MOST_POINTS)
    kept: set[Point] = {points[0], points[-1]}
    for start in range(0, len(points), group):
        known = _known(points[start : start + group])
        kept |= {min(known, key=lambda point: point[1]), max(known, key=lambda point: point[1])} if known else set()
    return sorted(kept, key=lambda point: point[0])


def _line(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> str:
    """Path data; a missing value breaks the line."""
    parts = []
    for known, stretch in groupby(_thinned(points), key=lambda point: point[1] is not None):
        if known:
            corners = [f"{x_axis.at(x)} {100 - y_axis.at(value):.2f}" for x, value in _known(list(stretch))]
            parts.append("M" + " L".join(corners))
    return " ".join(parts)


def _area(one: Series, x_axis: Axis, y_axis: Axis) -> str:
    """Path data of the band: along its upper edge, back along the lower one."""
    pairs = zip(one.points, one.band, strict=True)
    edge = [(x, value, half) for (x, value), half in pairs if value is not None and half is not None]
    edge = edge[:: math.ceil(len(edge) / _MOST_POINTS) or 1]
    upper = [f"{x_axis.at(x)} {100 - y_axis.at(value + half):.2f}" for x, value, half in edge]
    lower = [f"{x_axis.at(x)} {100 - y_axis.at(value - half):.2f}" for x, value, half in reversed(edge)]
    return "M" + " L".join(upper + lower) + " Z" if edge else ""


def _y_ticks(axis: Axis) -> list[Tick]:
    """Labels with just the decimals that tell one tick from the next."""
    ticks = nice_ticks(axis)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else axis.high - axis.low
    plain = step >= 1e-4 and max(map(abs, ticks)) < 1e6
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    texts = [f"{tick + 0.0:.{decimals}f}" if plain else f"{tick:.3g}" for tick in ticks]
    return [Tick(100 - axis.at(tick), text) for tick, text in zip(ticks, texts, strict=True)]


def _x_ticks(axis: Axis) -> list[Tick]:
    """At whole iterations only."""
    ticks = nice_ticks(axis, 7) if axis.high > axis.low else [axis.low]
    return [Tick(axis.at(tick), f"{tick:.0f}") for tick in ticks if abs(tick - round(tick)) < 1e-6]


def _hits(series: Sequence[Series], xs: list[float], axis: Axis) -> list[Box]:
    """One column for each iteration (or each n-th), from half-way to its left neighbour to half-way to the right."""
    values = [dict(one.points) for one in series]
    shown = xs[:: math.ceil(len(xs) / _MOST_HITS)]
    edges = [0.0, *((axis.at(a) + axis.at(b)) / 2 for a, b in pairwise(shown)), 100.0]
    boxes = []
    for place, x in enumerate(shown):
        parts = [f"{one.name} {number(by_x.get(x))}" for one, by_x in zip(series, values, strict=True)]
        left, right = edges[place], edges[place + 1]
        boxes.append(Box(round(left, 2), round(right - left, 2), text="\n".join([f"iteration {x:.0f}", *parts])))
    return boxes


def _columns(series: Sequence[Series], most: int = 80) -> list[tuple[str, list[float]]]:
    """Name and heights of each bar; a missing height is none."""
    xs = [x for x, _ in series[0].points]
    group = math.ceil(len(xs) / most) or 1
    columns = []
    for start in range(0, len(xs), group):
        members = xs[start : start + group]
        name = f"{members[0]:.0f}" + (f"–{members[-1]:.0f}" if len(members) > 1 else "")
        sums = [sum(value or 0.0 for _, value in one.points[start : start + group]) for one in series]
        columns.append((name, [total / len(members) for total in sums]))
    return columns

"""The report of a run. Comes in: a run's folder, finished or not; goes out: report.html in it, one file that needs no
other: no script, no font, no picture from elsewhere. What it looks like is in report.html.tmpl.
"""

from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ftppo.checkpoint.tables import size
from ftppo.driver.charts import Chart, Point, Series, bar_chart, line_chart
from ftppo.driver.history import RunHistory, read_history
from ftppo.driver.jsonfiles import write_atomic
from ftppo.driver.record import PHASES, IterationMetrics
from ftppo.driver.runfiles import REPORT
from ftppo.driver.text import count, duration, number, recovery_title, spans

_TEMPLATE = "report.html.tmpl"
_MOST_EVENTS = 500
_MOST_SAMPLES, _MOST_LETTERS = 12, 600

# Key, title, and the fields drawn together with their names.
_SMALL_CHARTS = (
    ("kl", "KL to the reference (nats a token)", (("kl", "KL"),)),
    ("policy-loss", "Policy loss", (("policy_loss", "policy"),)),
    ("value-loss", "Value loss", (("value_loss", "value"),)),
    ("grad", "Gradient norm", (("policy_grad_norm", "policy"), ("critic_grad_norm", "critic"))),
    ("entropy", "Entropy (nats a token)", (("entropy", "entropy"),)),
    ("clip", "Clipped fraction", (("clip_fraction", "clipped"),)),
    ("variance", "Explained variance", (("explained_variance", "explained"),)),
    ("differing", "Prompts whose answers differ in worth (share)", (("differing", "differing"),)),
    ("length", "Response length (tokens)", (("response_length", "tokens"),)),
    ("rate", "Tokens a second", (("tokens_per_s", "tokens/s"),)),
    ("padding", "Padding in the update (share)", (("padding", "padding"),)),
    ("mfu", "Model flops utilisation of the update (share)", (("mfu", "utilisation"),)),
    ("kl-coef", "KL coefficient", (("kl_coef", "coefficient"),)),
    ("lr", "Learning rate", (("lr", "rate"),)),
)


def write_report(folder: Path) -> Path:
    """Write report.html into `folder` from what the run has written there so far; the path of it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "duration": duration, "size": size}
    environment.globals |= {"spans": spans, "count": count, "recovery_title": recovery_title}
    history = read_history(folder)
    text = environment.get_template(_TEMPLATE).render(
        run=history,
        summary=history.summary,
        started=_date(history.start),
        tiles=_tiles(history),
        reward=_reward_chart(history),
        phases=_phase_chart(history),
        evaluation=_eval_chart(history),
        samples=_samples(history),
        charts=_small_charts(history),
        events=history.events[-_MOST_EVENTS:],
    )
    path = folder / REPORT
    write_atomic(path, text)
    return path


def _date(time_s: float | None) -> str:
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _tiles(history: RunHistory) -> list[tuple[str, str, str]]:
    """Name, value and remark of each number at the top."""
    iterations, recoveries = history.iterations, [record for record, _ in history.recoveries]
    newest = iterations[-1] if iterations else None
    lost = sum(record.seconds.total for record in recoveries)
    rates = [one.tokens_per_s for one in iterations if one.tokens_per_s is not None]
    tiles = [
        (
            "Reward",
            number(newest.reward_mean if newest else None),
            f"from {number(iterations[0].reward_mean)}" if iterations else "",
        ),
        ("Iterations", f"{len(iterations)}", count(newest.step if newest else 0, "step")),
        ("Recoveries", f"{len(recoveries)}", f"{duration(lost)} in all" if recoveries else "nothing was lost"),
        ("Checkpoints", f"{len(history.checkpoints)}", ""),
        ("Tokens a second", number(median(rates) if rates else None), "median"),
        ("Time", duration(history.seconds), "first record to last"),
    ]
    if history.checkpoints:
        last = history.checkpoints[-1]
        tiles[3] = ("Checkpoints", tiles[3][1], f"newest {size(last.bytes)}")
    return tiles


def _points(iterations: list[IterationMetrics], field: str) -> list[Point]:
    return [(one.iteration, getattr(one, field)) for one in iterations]


def _marks(history: RunHistory) -> list[tuple[float, str]]:
    """Where recoveries fell; several in one iteration share a mark."""
    names: dict[int, list[str]] = {}
    for place, (_, iteration) in enumerate(history.recoveries, start=1):
        if iteration is not None:
            names.setdefault(iteration, []).append(f"R{place}")
    return [(iteration, " ".join(parts)) for iteration, parts in names.items()]


def _reward_chart(history: RunHistory) -> Chart | None:
    series = Series(
        "reward",
        1,
        _points(history.iterations, "reward_mean"),
        band=[one.reward_std for one in history.iterations],
        faint=[_points(attempts, "reward_mean") for attempts in history.superseded],
    )
    return line_chart("reward", "Mean reward ± standard deviation", [series], _marks(history))


def _eval_chart(history: RunHistory) -> Chart | None:
    """Greedy reward, and pass@1 and the last pass@k where answers were drawn."""
    found = history.evaluations
    drawn = sorted({k for one in found for k in one.pass_at})
    series = [Series("greedy", 1, [(one.iteration, one.reward_mean) for one in found])]
    for colour, k in enumerate(dict.fromkeys([*drawn[:1], *drawn[-1:]]), start=2):
        series.append(Series(f"pass@{k}", colour, [(one.iteration, one.pass_at.get(k)) for one in found]))
    return line_chart(
        "eval", "Mean reward of greedy answers" + (", and pass@k" if drawn else ""), series, _marks(history)
    )


def _samples(history: RunHistory) -> list[tuple[str, str, str]]:
    """Prompt, answer and reward of the first greedy answers of the last evaluation."""
    greedy = [row for row in history.samples if row["decoding"] == "greedy"][:_MOST_SAMPLES]
    return [(row["prompt"][:_MOST_LETTERS], row["answer"][:_MOST_LETTERS], number(row["reward"])) for row in greedy]


def _phase_chart(history: RunHistory) -> Chart | None:
    series = [
        Series(phase, colour, _points(history.iterations, f"{phase}_s")) for colour, phase in enumerate(PHASES, start=1)
    ]
    return bar_chart("phases", "Seconds by phase", series, "s")


def _small_charts(history: RunHistory) -> list[Chart]:
    """The charts of whatever was measured."""
    charts = []
    for key, title, lines in _SMALL_CHARTS:
        series = [
            Series(
                name,
                colour,
                _points(history.iterations, field),
                faint=[_points(attempts, field) for attempts in history.superseded],
            )
            for colour, (field, name) in enumerate(lines, start=1)
        ]
        charts.append(line_chart(key, title, series, _marks(history)))
    return [chart for chart in charts if chart is not None]

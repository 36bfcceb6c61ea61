"""Answers found by a pattern and matched: as text, as numbers, by regular expressions, as mathematics."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftppo.errors import TaskError
from ftppo.tasks.base import Task
from ftppo.tasks.dataset import DatasetTask
from tests.unit.tasks.making import make_tasks, write_jsonl

type Make = Callable[..., Task]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """make(answer, **task): a task of one prompt with this answer."""
    made: list[DatasetTask] = []

    def build(answer: Any, **task: Any) -> Task:
        path = write_jsonl(tmp_path / "a.jsonl", {"prompt": "q", "answer": answer})
        tasks = make_tasks(judge={"processes": 1, "timeout_s": 5.0}, path=path, **task)
        assert isinstance(tasks.train, DatasetTask)
        made.append(tasks.train)
        return tasks.train

    yield build
    for task in made:
        task.scorer.close()


def scores(task: Task, *answers: str) -> list[float]:
    return task.scores([(task.prompt(0), answer) for answer in answers])


@pytest.mark.parametrize(
    ("match", "answer", "given", "score"),
    [
        ("exact", "Yes", " Yes\n", 1.0),
        ("exact", "Yes", "yes", 0.0),
        ("exact", "4", "4.0", 0.0),
        ("numeric", "1,000", "1000.0", 1.0),
        ("numeric", 4, " 4.00 ", 1.0),
        ("numeric", 0.1, "1e-1", 1.0),
        ("numeric", 4, "5", 0.0),
        ("numeric", 4, "four", 0.0),
        ("numeric", 4, "", 0.0),
        ("numeric", 4, "nan", 0.0),
        ("numeric", 4, "sNaN", 0.0),
        ("numeric", 4, "1e999999999", 0.0),
    ],
)
def test_exact_and_numeric(make: Make, match: str, answer: Any, given: str, score: float) -> None:
    assert scores(make(answer, match=match), given) == [score]


def test_the_last_place_that_the_pattern_finds_is_judged(make: Make) -> None:
    task = make(4, match="numeric", response_pattern=r"answer: *(\S+)")
    assert scores(task, "answer: 3, no, answer:4.0", "answer: 4, no, answer: 3", "4") == [1.0, 0.0, 0.0]
    whole = make("7", response_pattern="[0-9]")
    assert scores(whole, "it is 7.", "7 or 8") == [1.0, 0.0]


def test_a_regular_expression_must_match_the_whole_answer(make: Make) -> None:
    task = make("(?i)paris( \\(France\\))?", match="regex")
    assert scores(task, " Paris\n", "PARIS (France)", "not Paris", "") == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(TaskError, match=r'line 1: "answer" is to be a regular expression, as task\.match=regex'):
        make("(", match="regex")


def test_a_pattern_that_takes_for_ever_costs_its_own_answer(make: Make) -> None:
    task = make("(a+)+", match="regex")
    assert scores(task, "aa", "a" * 40 + "b", "b") == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("expected", "equal", "other"),
    [
        ("\\frac{1}{2}", ["so it is $\\frac{2}{4}$", "0.5", "\\boxed{1/2}", "\\frac12"], ["\\boxed{2}", "1", "?"]),
        ("$x^2 + 2x + 1$", ["\\boxed{(x+1)^2}", "$(1+x)(1+x)$"], ["\\boxed{(x-1)^2}"]),
        ("4", ["First 5. Then \\boxed{4}", "The answer is 4."], ["4 and then \\boxed{5}", ""]),
        ("(1, 2)", ["$(1,2)$"], ["$(2,1)$"]),
        ("\\sqrt{8}", ["$2\\sqrt{2}$"], ["$2\\sqrt{3}$"]),
    ],
)
def test_mathematics(make: Make, expected: str, equal: list[str], other: list[str]) -> None:
    task = make(expected, match="math")
    assert scores(task, *equal) == [1.0] * len(equal)
    assert scores(task, *other) == [0.0] * len(other)


def test_mathematics_behind_a_pattern(make: Make) -> None:
    task = make("3/4", match="math", response_pattern="<answer>(.*)</answer>")
    assert scores(task, "1/2 <answer>\\frac{6}{8}</answer>", "3/4") == [1.0, 0.0]

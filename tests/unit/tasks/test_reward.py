"""A user's reward function: found by its dotted path, called with answer and entry, and held to returning a number."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.base import Task
from ftppo.tasks.dataset import DatasetTask
from ftppo.tasks.reward import RewardedTask
from tests.unit.tasks.making import make_tasks, write_jsonl

MODULE = """
import numpy as np
def length(answer, entry):
    return len(answer) / len(entry["answer"])
def short(answer, entry):
    if len(answer) > 2:
        raise KeyError("level")
    return {"a": 1, "b": True, "c": np.float32(0.5), "d": -2.0, "e": None, "f": 10**400}[answer]
broken = 3
"""

type Make = Callable[..., Task]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """make(function, **judge): a task of one prompt with that reward."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "user_reward_for_test.py").write_text(MODULE)
    (tmp_path / "user_reward_that_raises.py").write_text("1 / 0")
    path = write_jsonl(tmp_path / "prompts.jsonl", {"prompt": "q", "answer": "four"})
    made: list[Task] = []

    def build(function: str = "length", module: str = "user_reward_for_test", **judge: Any) -> Task:
        reward = f"{module}.{function}" if module else function
        made.append(make_tasks(judge={"processes": 1} | judge, path=path, reward=reward).train)
        return made[-1]

    yield build
    for task in made:
        assert isinstance(task, DatasetTask)
        task.scorer.close()


def scores(task: Task, *answers: str) -> list[float]:
    return task.scores([(task.prompt(3), answer) for answer in answers])


def test_the_function_takes_the_place_of_the_tasks_score(make: Make) -> None:
    task = make("length")
    prompt = task.prompt(3)
    assert (prompt.text, task.answer(prompt)) == ("q", "four")
    assert scores(task, "no", "four", "") == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("function", "module", "says"),
    [
        ("length", "", "dotted path"),
        ("lenght", "user_reward_for_test", "did you mean length"),
        ("broken", "user_reward_for_test", "no function broken"),
        ("length", "no_such_module_here", "cannot be imported.*PYTHONPATH"),
        ("length", "user_reward_that_raises", "ZeroDivisionError"),
    ],
)
def test_a_function_that_is_not_there(make: Make, function: str, module: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        make(function, module)
    assert (caught.value.key, caught.value.value) == ("task.reward", f"{module}.{function}".lstrip("."))


def test_any_finite_number_counts(make: Make) -> None:
    found = scores(make("short"), *"abcd")
    assert found == [1.0, 1.0, 0.5, -2.0] and {type(score) for score in found} == {float}


def test_what_has_no_score_counts_nothing_and_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert scores(make("short"), "e", "a", "long") == [0.0, 1.0, 0.0]
    (record,) = caplog.records
    assert "2 of 3 answers have no score and count 0" in record.getMessage()
    assert "user_reward_for_test.short on the answer 'e' to prompt 3 returned a NoneType" in record.getMessage()


def test_or_it_ends_the_run(make: Make) -> None:
    with pytest.raises(TaskError, match=r"short on the answer 'long' to prompt 3 raised KeyError: 'level'"):
        scores(make("short", on_error="fail"), "a", "long", "e")


def test_a_function_that_has_never_worked_ends_the_run(make: Make) -> None:
    task = make("short")
    with pytest.raises(TaskError, match="raised KeyError"):
        scores(task, "long", "e")
    assert scores(task, "a") == [1.0]
    assert scores(task, "long", "e") == [0.0, 0.0], "it has worked before"


def test_reasoning_gym_can_be_judged_by_another_function(make: Make, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"kind": "reasoning_gym", "name": "spell_backward", "reward": "user_reward_for_test.length"}
    tasks = make_tasks(judge={"processes": 1}, **keys)
    assert isinstance(tasks.train, RewardedTask) and tasks.held_out is not None
    prompt = tasks.held_out.prompt(0)
    assert tasks.held_out.scores([(prompt, tasks.held_out.answer(prompt))]) == [1.0]
    tasks.close()


@pytest.mark.parametrize(("name", "endless"), [("countdown", "9**9**9**9"), ("n_queens", "9**9**9**9")])
def test_an_expression_without_end_costs_its_own_answer(name: str, endless: str) -> None:
    tasks = make_tasks(judge={"processes": 1, "timeout_s": 2.0}, kind="reasoning_gym", name=name)
    assert isinstance(tasks.train, RewardedTask)
    prompt = tasks.train.prompt(0)
    right = prompt.entry["metadata"]["valid_answers"][0] if name == "n_queens" else tasks.train.answer(prompt)
    assert scores(tasks.train, "no expression", endless)[1] == 0.0
    assert tasks.train.scores([(prompt, right)]) == [1.0]
    tasks.close()

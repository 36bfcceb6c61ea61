"""A user's reward function: found by its dotted path, called with answer and entry, and held to returning a number."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.reward import load_reward
from tests.unit.tasks.making import make_tasks

MODULE = """
def length(answer, entry):
    return len(answer) / len(entry["answer"])
broken = 3
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "user_reward_for_test"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "user_reward_that_raises.py").write_text("1 / 0")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "q", "answer": "four"}')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return name


def test_the_function_takes_the_place_of_the_tasks_score(user_module: str, tmp_path: Path) -> None:
    task = make_tasks(path=str(tmp_path / "prompts.jsonl"), reward=f"{user_module}.length").train
    prompt = task.prompt(3)
    assert (prompt.text, task.answer(prompt)) == ("q", "four")
    assert task.scores([(prompt, "no")]) == [0.5]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("length", "dotted path"),
        ("user_reward_for_test.lenght", "did you mean length"),
        ("user_reward_for_test.broken", "no function broken"),
        ("no_such_module_here.length", "cannot be imported.*PYTHONPATH"),
        ("user_reward_that_raises.length", "ZeroDivisionError"),
    ],
)
def test_a_function_that_is_not_there(user_module: str, path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_reward(path)
    assert (caught.value.key, caught.value.value) == ("task.reward", path)


def _score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, returned: Any) -> float:
    def reward(answer: str, entry: dict[str, Any]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    monkeypatch.setattr(f"{module}.length", reward)
    task = make_tasks(path=str(tmp_path / "prompts.jsonl"), reward=f"{module}.length").train
    return task.scores([(task.prompt(0), "x")])[0]


@pytest.mark.parametrize("returned", [1, True, 0.25, np.float32(0.5), -2.0])
def test_any_finite_number_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user_module: str, returned: Any
) -> None:
    score = _score(monkeypatch, tmp_path, user_module, returned)
    assert type(score) is float and score == float(returned)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        (None, "NoneType, not a number"),
        ("1.0", "str, not a number"),
        (KeyError("level"), "raised KeyError: 'level'"),
    ],
)
def test_anything_else_is_an_error_that_names_function_and_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user_module: str, returned: Any, says: str
) -> None:
    with pytest.raises(TaskError, match=says) as caught:
        _score(monkeypatch, tmp_path, user_module, returned)
    assert f"{user_module}.length on the answer 'x' to prompt 0" in str(caught.value)

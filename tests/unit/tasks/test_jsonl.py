"""Prompts from JSON lines: order, matching, and errors that name the file and the line."""

from pathlib import Path
from typing import Literal

import pytest

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.jsonl import JsonlTask

Match = Literal["exact", "numeric"]


def _write(folder: Path, *lines: str) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


def _numbered(folder: Path, count: int) -> str:
    return _write(folder, *(f'{{"prompt": "p{i}", "answer": "a{i}"}}' for i in range(count)))


def test_every_epoch_is_all_lines_in_an_order_of_its_own(tmp_path: Path) -> None:
    path = _numbered(tmp_path, 20)
    task = JsonlTask(path, "exact", "{question}", seed=1)
    epochs = [[task.prompt(20 * epoch + i).text for i in range(20)] for epoch in range(3)]
    assert all(sorted(epoch) == sorted(f"p{i}" for i in range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = JsonlTask(path, "exact", "{question}", seed=1)
    assert [again.prompt(40 + i).text for i in range(20)] == epochs[2]
    assert [JsonlTask(path, "exact", "{question}", seed=2).prompt(i).text for i in range(20)] != epochs[0]


def test_fields_of_the_line_fill_the_template(tmp_path: Path) -> None:
    path = _write(tmp_path, "", '{"prompt": "2+2", "answer": 4, "level": {"name": "easy"}}', "  ")
    task = JsonlTask(path, "exact", "{level[name]}: {prompt} {question}", seed=0)
    prompt = task.prompt(7)
    assert (prompt.text, prompt.index) == ("easy: 2+2 2+2", 7)
    assert task.answer(prompt) == "4"
    with pytest.raises(ConfigError, match="there are: answer, level, prompt, question"):
        JsonlTask(path, "exact", "{nothing}", seed=0)


@pytest.mark.parametrize(
    ("match", "answer", "given", "score"),
    [
        ("exact", '"Yes"', " Yes\n", 1.0),
        ("exact", '"Yes"', "yes", 0.0),
        ("exact", '"4"', "4.0", 0.0),
        ("numeric", '"1,000"', "1000.0", 1.0),
        ("numeric", "4", " 4.00 ", 1.0),
        ("numeric", "0.1", "1e-1", 1.0),
        ("numeric", "4", "5", 0.0),
        ("numeric", "4", "four", 0.0),
        ("numeric", "4", "", 0.0),
        ("numeric", "4", "nan", 0.0),
        ("numeric", "4", "sNaN", 0.0),
        ("numeric", "4", "1e999999999", 0.0),
    ],
)
def test_matching(tmp_path: Path, match: Match, answer: str, given: str, score: float) -> None:
    task = JsonlTask(_write(tmp_path, f'{{"prompt": "q", "answer": {answer}}}'), match, "{question}", seed=0)
    assert task.score(task.prompt(0), given) == score


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "not list"),
        ('{"answer": "a"}', '"prompt"'),
        ('{"prompt": 3, "answer": "a"}', '"prompt"'),
        ('{"prompt": "p"}', '"answer"'),
        ('{"prompt": "p", "answer": true}', '"answer"'),
        ('{"prompt": "p", "answer": "four"}', "numeric"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = _write(tmp_path, '{"prompt": "p", "answer": "1"}', "", line)
    with pytest.raises(TaskError, match=says) as caught:
        JsonlTask(path, "numeric", "{question}", seed=0)
    assert f"{path}, line 3" in str(caught.value)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9", "answer": "1"}')
    with pytest.raises(TaskError, match="line 1"):
        JsonlTask(str(path), "exact", "{question}", seed=0)


def test_no_file_no_path_and_no_lines(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "missing.jsonl"), str(tmp_path)):
        with pytest.raises(ConfigError) as caught:
            JsonlTask(path, "exact", "{question}", seed=0)
        assert caught.value.key == "task.path"
    with pytest.raises(TaskError, match="no prompts"):
        JsonlTask(_write(tmp_path, ""), "exact", "{question}", seed=0)

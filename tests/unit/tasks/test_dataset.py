"""Prompts from files: order, mixing, holding out, lengths, and errors that name the file and the line."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.base import Task
from ftppo.tasks.dataset import BLOCK, Mixture
from tests.unit.tasks.making import make_tasks, numbered, write_jsonl


def texts(task: Task, start: int, end: int) -> list[str]:
    return [task.prompt(index).text for index in range(start, end)]


def test_every_epoch_is_all_rows_in_an_order_of_its_own(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.jsonl", 20)
    task = make_tasks(1, path=path).train
    epochs = [texts(task, 20 * epoch, 20 * epoch + 20) for epoch in range(3)]
    assert all(sorted(epoch) == sorted(f"p{i}" for i in range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert texts(make_tasks(1, path=path).train, 40, 60) == epochs[2], "asked for in whatever order"
    assert texts(make_tasks(2, path=path).train, 0, 20) != epochs[0]
    plain = make_tasks(1, path=path, shuffle=False).train
    assert texts(plain, 18, 23) == ["p18", "p19", "p0", "p1", "p2"]


def test_fields_of_the_row_fill_the_template(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", "", {"prompt": "2+2", "answer": 4, "level": {"name": "easy"}}, "  ")
    task = make_tasks(path=path, template="{level[name]}: {prompt} {question}").train
    prompt = task.prompt(7)
    assert (prompt.text, prompt.index, task.answer(prompt)) == ("easy: 2+2 2+2", 7, "4")
    with pytest.raises(ConfigError, match="there are: answer, level, prompt, question"):
        make_tasks(path=path, template="{nothing}")


def test_columns_have_the_names_that_they_are_given(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"problem": "2+2", "solution": "we add\n#### 4"})
    columns: dict[str, Any] = {"prompt_column": "problem", "answer_column": "solution", "answer_pattern": "#### (.+)"}
    task = make_tasks(path=path, match="numeric", **columns).train
    prompt = task.prompt(0)
    assert (prompt.text, task.answer(prompt)) == ("2+2", "4")
    assert task.scores([(prompt, "4.0"), (prompt, "5")]) == [1.0, 0.0]
    with pytest.raises(
        TaskError, match=r'line 1: there is no "prompt", only problem, solution: see task.prompt_column'
    ):
        make_tasks(path=path)
    with pytest.raises(TaskError, match=r"line 1: task\.answer_pattern='=\(\.\)' finds nothing"):
        make_tasks(path=path, **columns | {"answer_pattern": "=(.)"})


def test_prompts_that_are_too_long_or_empty_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * length, "answer": "a"} for length in (0, 1, 5, 6, 300)]
    path = write_jsonl(tmp_path / "a.jsonl", *rows)
    tasks = make_tasks(path=path, max_prompt=5)
    assert sorted(texts(tasks.train, 0, 4)) == ["x", "x", "xxxxx", "xxxxx"]
    (note,) = tasks.notes
    assert note == f"{path}: 3 of 5 prompts are left out, empty or above rollout.max_prompt=5 tokens"
    assert make_tasks(path=path, max_prompt=300).notes[0].startswith(f"{path}: 1 of 5")
    long = write_jsonl(tmp_path / "b.jsonl", rows[4])
    with pytest.raises(TaskError, match=r"none of its 1 prompts has 1 to rollout.max_prompt=5 tokens: raise it"):
        make_tasks(path=long, max_prompt=5)


def test_what_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.jsonl", 40)
    tasks = make_tasks(3, path=path, held_out=0.25)
    assert tasks.held_out is not None
    train, held = set(texts(tasks.train, 0, 90)), set(texts(tasks.held_out, 0, 30))
    assert (len(train), len(held)) == (30, 10) and not train & held
    assert make_tasks(3, path=path).held_out is None
    shorter = make_tasks(3, path=path, held_out=0.25, max_prompt=2)  # p0 to p9 alone
    assert shorter.held_out is not None
    left = set(texts(shorter.held_out, 0, 30))
    assert left == {text for text in held if len(text) == 2}, "what is held out does not hang on the length"
    one = numbered(tmp_path / "one.jsonl", 1)
    with pytest.raises(TaskError, match=r"task\.held_out=0\.5 leaves nothing to train on"):
        make_tasks(path=one, held_out=0.5)


def test_datasets_are_mixed_by_their_weights(tmp_path: Path) -> None:
    paths = [numbered(tmp_path / f"{name}.jsonl", 7, name) for name in "ab"]
    task = make_tasks(5, datasets=[{"path": paths[0], "weight": 3}, {"path": paths[1]}]).train
    stream = texts(task, 0, 3 * BLOCK)
    assert Counter(text[0] for text in stream) == {"a": 2250, "b": 750}
    assert 20 < sum(text[0] == "b" for text in stream[:140]) < 50, "within a block, too"
    ours = [text for text in stream if text[0] == "b"]
    assert all(len(set(ours[epoch * 7 : epoch * 7 + 7])) == 7 for epoch in range(100)), "each its own epochs"
    assert texts(task, 1990, 2010) == stream[1990:2010]
    assert texts(make_tasks(5, datasets=[{"path": path} for path in paths]).train, 0, 140) != stream[:140]


@pytest.mark.parametrize("weights", [[1, 1, 1], [0.2, 0.3, 0.5], [1, 1e-9], [700, 300], [3.5]])
def test_the_place_in_each_dataset_counts_up_by_one(weights: list[float]) -> None:
    mixture = Mixture(weights, seed=1)
    reached = [0] * len(weights)
    for index in range(2500):
        part, place = mixture.at(index)
        assert place == reached[part]
        reached[part] += 1
    total = sum(weights)
    for weight, count in zip(weights, reached, strict=True):
        assert count / 2500 == pytest.approx(weight / total, abs=0.03)
        assert count > 0, "a small weight is not none"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "not list"),
        ('{"answer": "a"}', '"prompt"'),
        ('{"prompt": 3, "answer": "1"}', '"prompt"'),
        ('{"prompt": "p"}', '"answer"'),
        ('{"prompt": "p", "answer": true}', '"answer"'),
        ('{"prompt": "p", "answer": [1]}', '"answer"'),
        ('{"prompt": "p", "answer": "four"}', "numeric"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", '{"prompt": "p", "answer": "1"}', "", line)
    with pytest.raises(TaskError, match=says) as caught:
        make_tasks(path=path, match="numeric")
    assert f"{path}, line 3" in str(caught.value)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9", "answer": "1"}')
    with pytest.raises(TaskError, match="line 1"):
        make_tasks(path=str(path))


def test_no_file_no_rows_and_no_answers(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="no such file") as caught:
            make_tasks(path=str(path))
        assert caught.value.key == "task.path"
    with pytest.raises(TaskError, match="no prompts"):
        make_tasks(path=write_jsonl(tmp_path / "empty.jsonl", ""))
    asked = write_jsonl(tmp_path / "asked.jsonl", {"prompt": "p"})
    task = make_tasks(path=asked, answer_column=None).train
    with pytest.raises(TaskError, match="warmup_steps=0"):
        task.answer(task.prompt(0))


def test_other_files_can_be_evaluated_on(tmp_path: Path) -> None:
    paths = [numbered(tmp_path / f"{name}.jsonl", 5, name) for name in "ab"]
    tasks = make_tasks(path=paths[0], evaluate={"path": paths[1]})
    assert tasks.held_out is not None and tasks.num_held_out == 5
    assert sorted(texts(tasks.held_out, 0, 5)) == [f"b{i}" for i in range(5)]
    assert texts(tasks.train, 0, 9) == texts(make_tasks(path=paths[0]).train, 0, 9), "training does not change"


def test_prompts_of_reasoning_gym_that_training_never_comes_to() -> None:
    words = {"min_word_len": 3, "max_word_len": 9}
    tasks = make_tasks(kind="reasoning_gym", name="spell_backward", args=words, template="{word}")
    assert tasks.held_out is not None and tasks.num_held_out is None
    assert tasks.held_out.prompt(7) == tasks.train.prompt(2**30 + 7)
    assert texts(tasks.held_out, 0, 20) != texts(tasks.train, 0, 20)


def test_the_digest_tells_other_rows(tmp_path: Path) -> None:
    first, more, again = (numbered(tmp_path / name, count) for name, count in (("a", 5), ("b", 6), ("c", 5)))
    held = make_tasks(path=first, max_prompt=5, held_out=0.2, evaluate={"every_iterations": 1})
    assert held.digest == make_tasks(path=again).digest != make_tasks(path=more).digest
    make_tasks(path=again, digest=held.digest)
    with pytest.raises(ConfigError, match=r"rows of task\.path, or task\.datasets, are others") as caught:
        make_tasks(path=more, digest=held.digest)
    assert caught.value.key == "task.digest"

"""Evaluation: when it is due, what it asks of the mesh, what it writes, and what a fault leaves: nothing."""

import dataclasses
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ftppo.config import Config, Reward
from ftppo.driver.display import PlainDisplay
from ftppo.driver.evaluation import Evaluation, pass_at
from ftppo.driver.history import read_history
from ftppo.driver.jsonfiles import read_lines
from ftppo.driver.mesh import GenerationBroken
from ftppo.driver.report import write_report
from ftppo.driver.runfiles import SAMPLES, RunFiles
from ftppo.tasks.base import Later
from ftppo.tasks.build import Tasks
from ftppo.types import DriverState
from tests.unit.driver.workbench import STATE, TOKENIZER, TRAIN, Counting, FakeMesh, give_mesh, value_of, workshop

FIRST = 300  # prompt from which on they are held out


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RunFiles]:
    shop, _ = workshop()
    with RunFiles(tmp_path / "run", shop.clock, resume=False) as opened:
        yield opened


def evaluating(
    files: RunFiles, tmp_path: Path, num_held_out: int | None = None, **knobs: Any
) -> tuple[Evaluation, FakeMesh]:
    """An evaluation every two iterations, on a mesh of (2, 1, 1, 2)."""
    shop, _ = workshop()
    groups = {"eval": {"every_iterations": 2, "prompts": 3} | knobs, "parallel": {"dp": 2, "cp": 2}}
    shop.config = Config.model_validate(shop.config.model_dump() | groups)
    task = Counting()
    stream = (tmp_path / "shown").open("w")
    tasks = Tasks(task, Later(task, FIRST), num_held_out)
    return Evaluation(shop, tasks, files, PlainDisplay(shop.clock, stream)), give_mesh(shop)


def at(iteration: int) -> DriverState:
    return dataclasses.replace(STATE, iteration=iteration)


def test_it_is_due_before_the_first_iteration_every_n_and_after_the_last(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path)
    assert [number for number in range(TRAIN.iterations + 1) if evaluation.due(at(number))] == [0, 2, 4, 5]
    never, _ = evaluating(files, tmp_path, every_iterations=0)
    assert not any(never.due(at(number)) for number in range(TRAIN.iterations + 1))


def test_each_is_made_once_resumed_or_not(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path)
    evaluation.run(at(2))
    assert not evaluation.due(at(2)) and evaluation.due(at(4))
    resumed, _ = evaluating(files, tmp_path)
    assert not resumed.due(at(2)) and resumed.due(at(0))


def test_greedy_and_drawn_answers_to_the_held_out_prompts(files: RunFiles, tmp_path: Path) -> None:
    evaluation, mesh = evaluating(files, tmp_path, samples=2, temperature=0.7)
    evaluation.run(at(2))
    greedy, drawn = (call.rows for call in mesh.calls)
    assert {(call.method, call.phase) for call in mesh.calls} == {("rollout", "eval")}
    assert {(rows.purpose, rows.iteration) for rows in (greedy, drawn)} == {("eval", 2)}
    assert (greedy.temperature, drawn.temperature) == (0.0, 0.7)
    asked = [TOKENIZER.decode(row[:length]) for row, length in zip(drawn.tokens, drawn.lengths, strict=True)]
    wanted = [f"p{FIRST + number // 2}" for number in range(6)]
    assert asked == [*wanted, *wanted[:2]], "as many as the mesh divides; what is too many does not count"
    assert drawn.sample.tolist()[:6] == list(range(2 * FIRST, 2 * FIRST + 6)) and len(greedy.lengths) == 4

    (metrics,) = files.evaluations()
    assert (metrics.iteration, metrics.step, metrics.num_prompts) == (2, STATE.step, 3)
    samples = read_lines(files.folder / SAMPLES)
    assert [row["decoding"] for row in samples] == ["greedy"] * 3 + ["sample"] * 6
    assert [row["prompt"] for row in samples] == ["p300", "p301", "p302", *wanted]
    assert metrics.reward_mean == pytest.approx(sum(row["reward"] for row in samples[:3]) / 3)
    assert metrics.reward_mean > FIRST
    assert metrics.sample_reward_mean == pytest.approx(sum(row["reward"] for row in samples[3:]) / 6)
    assert metrics.pass_at == {1: 1.0, 2: 1.0}


def test_a_reward_model_judges_too(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path)
    evaluation.run(at(0))
    shop = evaluation.shop
    shop.config = shop.config.model_copy(update={"reward": Reward(path="/classifier", coef=10.0)})
    mesh = give_mesh(shop)
    evaluation.run(at(2))
    rollout, judged = mesh.calls
    assert (judged.method, judged.phase, len(judged.rows.tokens)) == ("reward", "eval", len(rollout.rows.lengths))
    rewards = [row["reward"] for row in read_lines(files.folder / SAMPLES)]
    model = value_of(judged.rows).tolist()[:3]
    assert rewards[3:] == pytest.approx([task + 10.0 * one for task, one in zip(rewards[:3], model, strict=True)])


def test_no_prompt_is_asked_twice(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path, num_held_out=2)
    evaluation.run(at(0))
    assert files.evaluations()[0].num_prompts == 2


def test_what_is_right_is_for_the_configuration_to_say(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path, samples=4, pass_reward=FIRST + 1.02)
    evaluation.run(at(0))
    right = [row["reward"] >= FIRST + 1.02 for row in read_lines(files.folder / SAMPLES) if row["decoding"] == "sample"]
    num = [sum(right[start : start + 4]) for start in (0, 4, 8)]
    assert 0 < sum(num) < 12
    expected = {k: sum(pass_at(k, 4, one) for one in num) / 3 for k in (1, 2, 4)}
    assert files.evaluations()[0].pass_at == pytest.approx(expected)


def test_a_fault_leaves_nothing_written_and_it_is_made_again(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path, samples=2)
    broken = give_mesh(evaluation.shop, breaks_at=1)
    with pytest.raises(GenerationBroken):
        evaluation.run(at(2))
    assert len(broken.calls) == 1 and not (files.folder / SAMPLES).exists() and files.evaluations() == ()
    assert evaluation.due(at(2))
    again = give_mesh(evaluation.shop)
    evaluation.run(at(2))
    assert len(again.calls) == 2 and len(files.evaluations()) == 1


@pytest.mark.parametrize("num", [1, 2, 5])
def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_right_one(num: int) -> None:
    for right in range(num + 1):
        for k in range(1, num + 1):
            choices = list(combinations([True] * right + [False] * (num - right), k))
            assert pass_at(k, num, right) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_the_report_shows_the_curve_and_the_newest_answers(files: RunFiles, tmp_path: Path) -> None:
    evaluation, _ = evaluating(files, tmp_path, samples=4)
    for iteration in (0, 2):
        evaluation.run(at(iteration))
    history = read_history(files.folder)
    assert [one.iteration for one in history.evaluations] == [0, 2]
    assert {row["iteration"] for row in history.samples} == {2} and len(history.samples) == 3 + 12
    text = write_report(files.folder).read_text()
    section = text[text.index('id="h-evaluation"') : text.index('id="h-events"') if 'id="h-events"' in text else None]
    assert "pass@1" in section and "pass@4" in section and "after 2 iterations" in section
    assert section.count("<td>p30") == 3 and "<td>p302</td>" in section

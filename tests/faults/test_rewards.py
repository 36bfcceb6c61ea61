"""A run whose reward function hangs, crashes and raises now and then: it trains on, and leaves no process behind."""

import json
from pathlib import Path

import pytest

from tests.faults.program import Outcome, Program, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODULE = """
import os, subprocess, time

async def careless(answer, entry):
    number = int(entry["answer"])
    if number == 3:
        subprocess.Popen(["sleep", "3000"])
        time.sleep(3000)
    if number == 5:
        os.abort()
    if number == 7:
        raise ValueError(answer)
    return len(answer) / 100
"""


@pytest.fixture
def knobs(tmp_path: Path) -> list[str]:
    """Overrides of a run that is judged by that function, on prompts of a file."""
    (tmp_path / "careless_rewards.py").write_text(MODULE)
    rows = [json.dumps({"prompt": f"{number}", "answer": number}) for number in range(16)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    task = ["task=jsonl", f"task.path={tmp_path}/prompts.jsonl", "task.reward=careless_rewards.careless"]
    return ["experiment=smoke", *task, "task.held_out=0.25", "eval.every_iterations=1", "judge.timeout_s=1"]


def environment(sandbox: Sandbox, tmp_path: Path) -> dict[str, str]:
    return sandbox.environment() | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}


def test_what_has_no_score_costs_no_run(sandbox: Sandbox, tmp_path: Path, knobs: list[str]) -> None:
    with Program(sandbox, tmp_path, *knobs, environment=environment(sandbox, tmp_path)) as program:
        done: Outcome = program.wait()
    assert done.status == 0, done.output
    assert "* answers without score: " in done.output
    assert any("took longer than judge.timeout_s=1" in reason for reason in done.reasons("answers_without_score"))
    assert len(done.rows("iteration")) == 2 and len(done.rows("eval")) == 3
    assert all(row["reward_mean"] > 0 for row in done.rows("iteration"))


def test_a_function_that_is_not_there_is_refused_before_anything_starts(
    sandbox: Sandbox, tmp_path: Path, knobs: list[str]
) -> None:
    done = run_program(sandbox, tmp_path, *knobs)  # without PYTHONPATH
    assert done.status == 2
    assert "task.reward='careless_rewards.careless': module careless_rewards cannot be imported" in done.output

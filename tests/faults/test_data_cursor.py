"""The place in the data: a run that ends and goes on, in another layout, meets every prompt that it would have met."""

import json
from collections import Counter
from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.program import Program, faults
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPTS = 8  # of an iteration
MODULE = """
def noted(answer, entry):
    with open(entry["log"], "a") as log:
        print(entry["prompt"], file=log)
    return len(answer) / 100
"""


def write(folder: Path) -> list[str]:
    """Two datasets in `folder`, with a prompt too long for the run, and the overrides that mix them."""
    folder.mkdir()
    (folder / "noting_rewards.py").write_text(MODULE)
    for name, count in (("a", 11), ("b", 5)):
        prompts = [*(f"{name}{number}" for number in range(count)), "x" * 100]
        rows = [{"prompt": prompt, "answer": "1", "log": str(folder / "log")} for prompt in prompts]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mixed = f"task.datasets=[{{path: {folder}/a.jsonl, weight: 2}}, {{path: {folder}/b.jsonl}}]"
    return ["experiment=smoke", "task=jsonl", "task.path=null", mixed, "task.reward=noting_rewards.noted"]


def run(sandbox: Sandbox, folder: Path, *overrides: str, status: int = 0) -> str:
    """What the program printed."""
    environment = sandbox.environment() | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with Program(sandbox, folder, *overrides, environment=environment) as program:
        done = program.wait()
    assert done.status == status, done.output
    return done.output


def iterations(folder: Path) -> list[Counter[str]]:
    """The prompts of each iteration; within one they are judged side by side, in any order."""
    lines = (folder / "log").read_text().split()
    return [Counter(lines[start : start + PROMPTS]) for start in range(0, len(lines), PROMPTS)]


def test_prompts_go_on_where_they_were(sandbox: Sandbox, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(sandbox, whole, *write(whole), "train.iterations=6")
    knobs = write(parts)
    run(sandbox, parts, *knobs, "train.iterations=3")
    kill = Fault(iteration=4, phase="update", slot=1, kind="sigkill")
    run(sandbox, parts, *knobs, "train.iterations=6", "parallel=tp2", "cluster.standby=1", faults([kill]))
    assert iterations(parts) == iterations(whole)
    met = sum(iterations(whole), Counter())
    assert met.total() == 6 * PROMPTS and len(met) == 16, "all but those that are too long"

    with (parts / "a.jsonl").open("a") as rows:
        rows.write('\n{"prompt": "new", "answer": "1"}')
    assert "is of another configuration" in run(sandbox, parts, *knobs, "train.iterations=7", status=2)

"""A real pretrained model learns to add with GRPO, through a lost rank as without, and is as good in transformers.

Takes a quarter of an hour, and so runs only where asked for: `bash run.sh test -m long`; skipped where the model is not
installed: see tests/smollm.py.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ftppo.config import Fault
from ftppo.driver.jsonfiles import read_lines
from ftppo.export import main
from tests import smollm
from tests.faults.program import Outcome, Program, faults
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2400)]

ITERATIONS, ANSWER = 20, 4  # tokens of an answer
RAISED = 0.25  # share of the held-out sums, at least, that become right
KILL = Fault(iteration=10, phase="update.backward", slot=1, kind="sigkill")
DEADLINE_S = 1000.0


def write_sums(folder: Path) -> tuple[Path, Path]:
    """Sums of two digits each, with two others solved in front; sixteen of them held out."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    random.Random(0).shuffle(pairs)
    rows = [json.dumps({"prompt": f"2+3=5, 4+4=8, {a}+{b}=", "answer": str(a + b)}) for a, b in pairs]
    train, held_out = folder / "train.jsonl", folder / "held_out.jsonl"
    held_out.write_text("\n".join(rows[:16]))
    train.write_text("\n".join(rows[16:]))
    return train, held_out


def share_right(model: Any, tokenizer: Any, held_out: Path) -> float:
    """As transformers answers, greedily."""
    rows, right = [json.loads(line) for line in held_out.read_text().splitlines()], 0
    for row in rows:
        given = torch.tensor([tokenizer(row["prompt"]).input_ids])
        knobs = {"do_sample": False, "max_new_tokens": ANSWER, "repetition_penalty": 1.0}
        with torch.no_grad():
            whole = model.generate(given, attention_mask=torch.ones_like(given), **knobs)
        said = re.match(r"\s*(\d+)", tokenizer.decode(whole[0, given.shape[1] :], skip_special_tokens=True))
        right += said is not None and said[1] == row["answer"]
    return right / len(rows)


def share_greedy(done: Outcome, iteration: int) -> float:
    """As the run itself has found it after so many iterations."""
    worth = [row["reward"] for row in read_lines(done.folder / "samples.jsonl") if row["iteration"] == iteration]
    return float(sum(worth) / len(worth))


def test_it_learns_through_a_lost_rank_and_is_as_good_in_transformers(sandbox: Sandbox, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = smollm.make(tmp_path / "model")
    train, held_out = write_sums(tmp_path)
    before = share_right(model, tokenizer, held_out)
    del model
    knobs = [f"model.path={tmp_path / 'model'}", "model.dtype=fp32", "parallel=dp2", "cluster.standby=1", "algo=grpo"]
    knobs += ["task=jsonl", f"task.path={train}", "task.match=numeric", r'task.response_pattern="^\s*(\d+)"']
    knobs += ["rollout.max_prompt=20", f"rollout.max_response={ANSWER}", f"train.iterations={ITERATIONS}"]
    knobs += ["train.prompts=4", "train.samples=8", "train.mini_batch=32", "train.micro_batch=16"]
    knobs += ["train.policy_lr=1e-5", f"checkpoint.every_iterations={ITERATIONS}", f"eval.path={held_out}"]
    knobs += [f"eval.every_iterations={ITERATIONS}", "eval.prompts=16"]
    done = {}
    for name, planned in (("calm", []), ("struck", [KILL])):
        with Program(sandbox, tmp_path, *knobs, faults(planned), name=name) as program:
            done[name] = program.wait(DEADLINE_S)
        assert done[name].status == 0, done[name].output
    calm, struck = done["calm"], done["struck"]
    (recovery,) = struck.summary.recoveries
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((1,), "peer", 0)
    assert struck.summary.state_digest == calm.summary.state_digest
    assert share_greedy(calm, 0) == before
    after = share_greedy(calm, ITERATIONS)
    assert after >= before + RAISED

    assert main([str(struck.folder), str(tmp_path / "out")]) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert share_right(exported, AutoTokenizer.from_pretrained(tmp_path / "out"), held_out) == after

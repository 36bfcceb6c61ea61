"""Drawing answers: Engine.rollout against `generate` of transformers. Comes in: rounds; goes out: a table.

Both sides in turn in one process with one thread: float32, random weights of a llama of the same shape, the same
prompts (all of full length), sampling at temperature 1 from all tokens, a key/value cache, and no end token, so that
every answer has full length. ftppo also returns each token's log-probability and seeds its draws sample by sample.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ftppo.config import Config, Model, Rollout
from ftppo.types import RolloutRequest
from tests.bench.pairs import Pairs, table
from tests.process import calls
from tests.process.mesh import Mesh
from tests.process.world import World

WARM_UP = 1  # rounds that do not count

TINY = Model(layers=2, hidden=128, ffn=256, heads=4, kv_heads=2)  # the demo's
SMALL = Model(layers=4, hidden=256, ffn=704, heads=8, kv_heads=4)


@dataclass(frozen=True)
class Case:
    """What is drawn: `num` answers of `response` tokens to prompts of `prompt` tokens."""

    name: str
    model: Model
    num: int
    prompt: int
    response: int

    @property
    def title(self) -> str:
        return f"{self.name}, {self.num} x ({self.prompt} + {self.response})"


CASES = (
    Case("hidden 128, 2 layers", TINY, 256, 4, 4),
    Case("hidden 128, 2 layers", TINY, 64, 32, 64),
    Case("hidden 128, 2 layers", TINY, 256, 32, 64),
    Case("hidden 256, 4 layers", SMALL, 64, 32, 64),
)


def compare(rounds: int) -> str:
    """A table with a row for each case, both sides measured in turn `rounds` times."""
    mesh = Mesh()
    try:
        pairs = [_case(mesh, case, rounds) for case in CASES]
    finally:
        mesh.close()
    return table("rollout: tokens drawn", "transformers", pairs)


def _case(mesh: Mesh, case: Case, rounds: int) -> Pairs:
    sizes = Rollout(max_prompt=case.prompt, max_response=case.response, batch=case.num)
    config = Config(model=case.model, rollout=sizes)
    pairs = Pairs(case.title, case.num * case.response)
    with World(mesh, config):
        mesh.run([0], set_up, case)
        for number in range(rounds + WARM_UP):
            [(ours_s, other_s)] = mesh.run([0], measure, number)
            if number >= WARM_UP:
                pairs.add(ours_s, other_s)
    return pairs


def set_up(context: calls.Context, slot: int, case: Case) -> None:
    """Beside the Engine a model of transformers; prompts for both."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = case.model
    shape = LlamaConfig(
        vocab_size=calls.VOCAB,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        rms_norm_eps=model.norm_eps,
        max_position_embeddings=case.prompt + case.response,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=calls.PAD,
    )
    context["engine"].eos = -1  # a token that is never drawn
    context["llama"] = LlamaForCausalLM(shape).eval()
    context["prompts"] = torch.randint(1, calls.VOCAB, (case.num, case.prompt))
    context["response"] = case.response


def measure(context: calls.Context, slot: int, number: int) -> tuple[float, float]:
    """Seconds of both sides for the same prompts."""
    started = time.perf_counter()
    _check(_ours(context, number), context)
    middle = time.perf_counter()
    _check(_other(context), context)
    return middle - started, time.perf_counter() - middle


def _ours(context: calls.Context, number: int) -> Tensor:
    prompts = context["prompts"]
    num, width = prompts.shape
    request = RolloutRequest(number, prompts, torch.full((num,), width), torch.arange(num))
    return context["engine"].rollout(request).tokens


def _other(context: calls.Context) -> Tensor:
    prompts = context["prompts"]
    with torch.no_grad():
        drawn = context["llama"].generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=context["response"],
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cache=True,
        )
    return drawn[:, prompts.shape[1] :]


def _check(tokens: Tensor, context: calls.Context) -> None:
    assert tokens.shape == (len(context["prompts"]), context["response"])

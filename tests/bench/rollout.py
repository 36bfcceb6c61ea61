"""Drawing answers: Engine.rollout against `generate` of transformers. Comes in: rounds; goes out: a table.

Both sides in turn in one process with one thread: float32, random weights of a llama of the same shape, the same
prompts, sampling at temperature 1 from all tokens, a key/value cache, and answers of the same lengths. Tokens count up
to the end of their answer on both sides. ftppo also returns each token's log-probability and seeds its draws sample by
sample.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ftppo.config import Config, Model, Rollout
from ftppo.types import RolloutRequest
from ftppo.worker import rollout
from ftppo.worker.draw import uniforms
from tests.bench.pairs import Pairs, table
from tests.process import calls
from tests.process.mesh import Mesh
from tests.process.world import World

WARM_UP = 1  # rounds that do not count
LAST = calls.VOCAB - 1  # the token that ends an answer of mixed length
SPREAD = 0.8  # of the logarithm of a length

TINY = Model(layers=2, hidden=128, ffn=256, heads=4, kv_heads=2)  # the demo's
SMALL = Model(layers=4, hidden=256, ffn=704, heads=8, kv_heads=4)


@dataclass(frozen=True)
class Case:
    """What is drawn: `num` answers of `response` tokens to prompts of `prompt` tokens, `batch` at a time.

    Where they are `mixed`, these are the longest: lengths are then log-normal, as those of real prompts and answers.
    """

    name: str
    model: Model
    num: int
    prompt: int
    response: int
    mixed: bool = False
    batch: int | None = None  # all

    @property
    def title(self) -> str:
        lengths = f"up to {self.prompt} + {self.response}" if self.mixed else f"{self.prompt} + {self.response}"
        return f"{self.name}, {self.num} x ({lengths})" + (f", {self.batch} at a time" if self.batch else "")


CASES = (
    Case("hidden 128, 2 layers", TINY, 256, 4, 4),
    Case("hidden 128, 2 layers", TINY, 64, 32, 64),
    Case("hidden 128, 2 layers", TINY, 256, 32, 64),
    Case("hidden 256, 4 layers", SMALL, 64, 32, 64),
    Case("hidden 256, 4 layers", SMALL, 32, 128, 128, mixed=True),
    Case("hidden 256, 4 layers", SMALL, 128, 128, 128, mixed=True, batch=32),
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
    sizes = Rollout(max_prompt=case.prompt, max_response=case.response, batch=case.batch or case.num)
    config = Config(model=case.model, rollout=sizes)
    with World(mesh, config):
        pairs = Pairs(case.title, mesh.run([0], set_up, case)[0])
        for number in range(rounds + WARM_UP):
            [(ours_s, other_s)] = mesh.run([0], measure, number)
            if number >= WARM_UP:
                pairs.add(ours_s, other_s)
    return pairs


def set_up(context: calls.Context, slot: int, case: Case) -> int:
    """Beside the Engine a model of transformers; prompts for both. Returns how many tokens are to be drawn."""
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
    draw = torch.Generator().manual_seed(0)
    lengths, ends = (_lengths(case, longest, draw) for longest in (case.prompt, case.response))
    tokens = torch.randint(1, calls.VOCAB - 1, (case.num, case.prompt), generator=draw)
    context["llama"] = LlamaForCausalLM(shape).eval()
    context["case"], context["ends"] = case, ends
    context["request"] = RolloutRequest(0, tokens, lengths, torch.arange(case.num))
    context["engine"].eos = LAST if case.mixed else -1  # a token that is never drawn
    rollout.uniforms = _ending(ends) if case.mixed else uniforms
    return int(ends.sum())


def _lengths(case: Case, longest: int, draw: torch.Generator) -> Tensor:
    """[num] int64, up to `longest`: half of the mixed ones are below a quarter of it."""
    if not case.mixed:
        return torch.full((case.num,), longest)
    drawn = torch.empty(case.num).log_normal_(math.log(longest / 4), SPREAD, generator=draw)
    return drawn.round().long().clamp(1, longest)


def _ending(ends: Tensor) -> Callable[..., Tensor]:
    """Random numbers by which answer i ends with the token LAST after `ends[i]` tokens, and not before.

    A number of 1 draws the last token of all, one up to 1/2 another.
    """

    def numbers(request: RolloutRequest, num: int, seed: int) -> Tensor:
        drawn = uniforms(request, num, seed) / 2
        return drawn.masked_fill_(torch.arange(num) == ends[request.sample, None] - 1, 1.0)

    return numbers


def measure(context: calls.Context, slot: int, number: int) -> tuple[float, float]:
    """Seconds of both sides for the same prompts."""
    started = time.perf_counter()
    _ours(context, number)
    middle = time.perf_counter()
    _other(context)
    return middle - started, time.perf_counter() - middle


def _ours(context: calls.Context, number: int) -> None:
    result = context["engine"].rollout(replace(context["request"], iteration=number))
    assert torch.equal(result.lengths, context["ends"])


def _other(context: calls.Context) -> None:
    """The same with `generate`, batch after batch; it pads on the left and goes on until the last answer has ended."""
    from transformers import StoppingCriteriaList

    case, request = context["case"], context["request"]
    for rows in torch.arange(case.num).split(case.batch or case.num):
        part, ends = request.rows(rows), context["ends"][rows]
        width = int(part.lengths.max())
        seen = torch.arange(width) >= width - part.lengths[:, None]
        prompts = torch.full((len(rows), width), calls.PAD)
        prompts[seen] = part.tokens[torch.arange(case.prompt) < part.lengths[:, None]]
        # Left out where all answers are equally long: it is a comparison more at each step.
        stopping = StoppingCriteriaList([_at(width + ends)] if case.mixed else [])
        with torch.no_grad():
            drawn = context["llama"].generate(
                prompts,
                attention_mask=seen.long(),
                max_new_tokens=case.response,
                stopping_criteria=stopping,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                use_cache=True,
            )
        assert drawn.shape == (len(rows), width + int(ends.max()))


def _at(lengths: Tensor) -> Callable[..., Tensor]:
    """A criterion of transformers that ends sequence i at `lengths[i]` tokens, padding included."""
    return lambda tokens, scores, **_: tokens.shape[1] >= lengths

"""Many prompts of mixed length through few rows of the cache: the same answers as one at a time, in every layout."""

from collections.abc import Callable

import pytest
import torch

from ftppo.plan.topology import Layout
from ftppo.rng import generator
from ftppo.types import RolloutRequest, RolloutResult
from tests.process import calls, case
from tests.process.case import LAYOUTS, ONE, PROMPT
from tests.process.mesh import Mesh
from tests.process.world import World

NUM, ROWS = 30, 4
NEVER = -1  # no token
CHOSEN = {"one": ONE} | {name: LAYOUTS[name] for name in ("tp2", "pp2", "dp2", "tp2pp2")}

type Answers = Callable[[Layout, int], RolloutResult]


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "drawn"])
def answers(request: pytest.FixtureRequest, mesh: Mesh) -> Answers:
    """answers(layout, batch), greedy or drawn; the token that ends one is frequent, so that they end at any length."""
    endless = found(mesh, ONE, NUM, request.param, NEVER)
    end = int(endless.tokens.flatten().mode().values)
    return lambda layout, batch: found(mesh, layout, batch, request.param, end)


@pytest.fixture(scope="module")
def one_by_one(answers: Answers) -> RolloutResult:
    """What a rank finds that has room for one sequence."""
    return answers(ONE, 1)


@pytest.mark.parametrize("layout", CHOSEN.values(), ids=CHOSEN.keys())
def test_an_answer_is_the_same_whoever_shares_the_cache(
    answers: Answers, one_by_one: RolloutResult, layout: Layout
) -> None:
    shared = answers(layout, ROWS)
    assert torch.equal(shared.tokens, one_by_one.tokens) and torch.equal(shared.lengths, one_by_one.lengths)
    assert torch.allclose(shared.logprobs, one_by_one.logprobs, rtol=0, atol=1e-4)
    assert len(shared.lengths.unique()) > 4


def test_the_same_request_gives_the_same_bits(answers: Answers) -> None:
    first, again = answers(ONE, ROWS), answers(ONE, ROWS)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.logprobs, again.logprobs)


def found(mesh: Mesh, layout: Layout, batch: int, temperature: float, end: int) -> RolloutResult:
    """The answers of a mesh with `batch` rows a rank, where the token `end` ends them."""
    settings = {"temperature": temperature, "batch": batch}
    rollout = case.config(layout).rollout.model_copy(update=settings)
    with World(mesh, case.config(layout, rollout=rollout)) as world:
        mesh.run(world.slots, ending_with, end)
        return world.rollout(prompts())


def ending_with(context: calls.Context, slot: int, token: int) -> None:
    context["engine"].eos = token


def prompts() -> RolloutRequest:
    """Prompts of 1 to PROMPT tokens."""
    draw = generator("continuous")
    lengths = torch.randint(1, PROMPT + 1, (NUM,), generator=draw)
    tokens = torch.randint(4, calls.VOCAB, (NUM, PROMPT), generator=draw)
    tokens = tokens.where(torch.arange(PROMPT) < lengths[:, None], calls.PAD)
    return RolloutRequest(0, tokens, lengths, torch.arange(NUM))

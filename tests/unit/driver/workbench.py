"""Where an iteration is tested: a mesh that answers at once and remembers what it was asked, and a shop around it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch

from ftppo.clock import FakeClock
from ftppo.config import Algo, Config, Reward, Rollout, Train
from ftppo.driver.iteration import Iteration, Workshop
from ftppo.driver.mesh import GenerationBroken
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.tasks.base import Asked
from ftppo.tasks.tokenizer import ByteTokenizer
from ftppo.types import (
    Batch,
    DriverState,
    Prompt,
    Rewards,
    RolloutRequest,
    RolloutResult,
    Scores,
    Sequences,
    StepResult,
    StepSpec,
)

TRAIN = Train(iterations=5, prompts=4, samples=2, epochs=3, mini_batch=4, micro_batch=2, warmup_batch=3)
ROLLOUT = Rollout(max_prompt=6, max_response=4)
NUM_ROWS, NUM_STEPS = 8, 6
STATE = DriverState(iteration=2, step=17, cursor=40, kl_coef=0.5, warmup_done=5, begun=True, first_reward=0.1)
TOKENIZER = ByteTokenizer()
ROLLOUT_S, SCORE_S, STEP_S = 3.0, 2.0, 0.5  # what the fake mesh takes
STEP = StepResult(1.0, 2.0, 3.0, 4.0, 0.5, 0.25, 6.0, 7.0)


class Counting:
    """Prompts that differ, and rewards that hang on the prompt and the answer."""

    def prompt(self, index: int) -> Prompt:
        return Prompt(index, f"p{index}", {})

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        return [prompt.index + len(answer) / 100 for prompt, answer in asked]

    def answer(self, prompt: Prompt) -> str:
        return f"{prompt.index % 10}"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call that the mesh has carried out."""

    method: str
    phase: str
    spec: StepSpec | None
    rows: Any


class FakeMesh:
    """Answers like a mesh would. `breaks_at`: the call, counted from 0, that breaks before anything is done.

    What is started waits for its turn: a step behind one that was skipped is refused.
    """

    def __init__(self, clock: FakeClock, breaks_at: int | None = None, results: Sequence[StepResult] = ()) -> None:
        self.clock, self.breaks_at, self.results = clock, breaks_at, list(results)
        self.calls: list[Call] = []
        self.checked_after: list[int] = []  # calls done when the boundary was reached
        self.leaves_after: int | None = None  # this many calls somebody leaves
        self.waiting: list[Call] = []
        self.most_waiting = 0
        self.version: int | None = None
        self.roster = Roster(0, Layout(), ("a0",))

    def call(self, method: str, *shared: Any, rows: Any = None, via: str, phase: str) -> Any:
        return self.finish(self.start(method, *shared, rows=rows, via=via, phase=phase))

    def start(self, method: str, *shared: Any, rows: Any = None, via: str, phase: str) -> Call:
        self.waiting.append(Call(method, phase, shared[0] if shared else None, rows))
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        return self.waiting[-1]

    def finish(self, call: Call) -> Any:
        assert call is self.waiting.pop(0), "calls end in the order in which they were started"
        if len(self.calls) == self.breaks_at:
            raise self.broken()
        if call.method == "ppo_step" and call.spec is not None:
            if self.version is not None and call.spec.version != self.version + 1:
                return dataclasses.replace(STEP, skipped=True)
            result = self._ppo_step(call.rows)
            self.version = call.spec.version - (result.skipped and not call.spec.final)
        else:
            result = getattr(self, f"_{call.method}")(call.rows)
        self.calls.append(call)
        return result

    @property
    def leaving(self) -> bool:
        return self.leaves_after is not None and len(self.calls) >= self.leaves_after

    def boundary(self) -> None:
        assert not self.waiting
        self.checked_after.append(len(self.calls))
        raise self.broken()

    def broken(self) -> GenerationBroken:
        return GenerationBroken([], "update", self.roster)

    def updates(self) -> list[Call]:
        return [call for call in self.calls if call.method == "ppo_step"]

    def _rollout(self, request: RolloutRequest) -> RolloutResult:
        self.clock.advance(ROLLOUT_S)
        num = len(request.sample)
        tokens = request.sample[:, None] % 200 + torch.arange(4)  # tells the samples apart
        return RolloutResult(tokens, 1 + request.sample % 4, torch.full((num, 4), -1.0))

    def _reward(self, sequences: Sequences) -> Rewards:
        self.clock.advance(SCORE_S)
        return Rewards(value_of(sequences))

    def _score(self, sequences: Sequences) -> Scores:
        self.clock.advance(SCORE_S)
        mask = sequences.response
        return Scores(-1.0 * mask, -1.25 * mask, 0.1 * mask)

    def _ppo_step(self, batch: Batch) -> StepResult:
        self.clock.advance(STEP_S)
        return self.results.pop(0) if self.results else STEP

    _warmup_step = _ppo_step


def value_of(sequences: Sequences) -> torch.Tensor:
    """What the mesh's reward model says: [n] float32."""
    return (sequences.tokens * sequences.response).sum(dim=1) / 100


def workshop(
    seed: int = 3, train: Train = TRAIN, algo: Algo | None = None, reward: Reward | None = None
) -> tuple[Workshop, list[tuple[StepSpec, Any]]]:
    config = Config(seed=seed, train=train, rollout=ROLLOUT, algo=algo or Algo(), reward=reward or Reward())
    steps: list[tuple[StepSpec, Any]] = []
    clock = FakeClock()
    shop = Workshop(
        config,
        Counting(),
        TOKENIZER,
        clock,
        on_phase=lambda phase, detail: None,
        on_step=lambda *step: steps.append(step),
        on_batch=lambda iteration: None,
        boundary_due=lambda _: cast(FakeMesh, shop.mesh).leaving,
        at_boundary=lambda: cast(FakeMesh, shop.mesh).boundary(),
    )
    return shop, steps


def give_mesh(shop: Workshop, breaks_at: int | None = None, results: Sequence[StepResult] = ()) -> FakeMesh:
    """The shop works with this mesh from now on."""
    assert isinstance(shop.clock, FakeClock)
    mesh = FakeMesh(shop.clock, breaks_at, results)
    shop.mesh = cast(Any, mesh)
    return mesh


def run(state: DriverState = STATE, seed: int = 3, **changed: Any) -> tuple[FakeMesh, Iteration, DriverState]:
    """A whole iteration, unbroken."""
    shop, _ = workshop(seed=seed, **changed)
    mesh = give_mesh(shop)
    iteration = Iteration(shop, state)
    return mesh, iteration, iteration.run()


def rows_of(calls: Sequence[Call]) -> list[list[tuple[int, ...]]]:
    """The rows of each mini-batch, in order."""
    return [[tuple(row) for row in call.rows.tokens.tolist()] for call in calls]


def same(one: Sequence[Call], other: Sequence[Call]) -> bool:
    """Whether the same steps were made on the same numbers."""
    if [call.spec for call in one] != [call.spec for call in other]:
        return False
    pairs = [(vars(a.rows), vars(b.rows)) for a, b in zip(one, other, strict=True)]
    return all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for a, b in pairs for name in a)

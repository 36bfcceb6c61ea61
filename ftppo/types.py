"""Data that crosses a layer, one named type each. Tensors are on the CPU here; shapes are in brackets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One question. `index` is its place in the task's endless stream; equal indices are equal prompts.

    Example: Prompt(index=7, text="2+3=", entry={"question": "2+3=", "answer": "5"})
    """

    index: int
    text: str
    entry: dict[str, Any]


@dataclass(frozen=True)
class RolloutRequest:
    """Prompts for one actor or for all. `sample[i]` names the draw: random numbers hang on it and on nothing else.

    Example: tokens [2, 5] right-padded, lengths [2] = [5, 3], sample [2] = [40, 41]
    """

    iteration: int
    tokens: Tensor  # [n, prompt_len] int64, right-padded
    lengths: Tensor  # [n] int64, prompt tokens that count
    sample: Tensor  # [n] int64, global index of the draw
    purpose: str = "rollout"  # what the draws are for: each has random numbers of its own
    temperature: float | None = None  # instead of rollout.temperature

    def rows(self, index: Tensor) -> "RolloutRequest":
        """The requests at `index` [m] int64, in that order."""
        return replace(self, tokens=self.tokens[index], lengths=self.lengths[index], sample=self.sample[index])


@dataclass(frozen=True)
class RolloutResult:
    """Answers to a RolloutRequest, row by row. The end token, where it came, is the last token that counts."""

    tokens: Tensor  # [n, max_response] int64, right-padded
    lengths: Tensor  # [n] int64, response tokens that count (>= 1)
    logprobs: Tensor  # [n, max_response] float32, log-probability of each token when drawn; 0 past the length


@dataclass(frozen=True)
class Sequences:
    """Prompt and response together, right-padded to the length that the model runs at.

    `response[i, t]` is 1 where `tokens[i, t]` was generated. Per-token quantities elsewhere are aligned with `tokens`:
    the log-probability, value, advantage at t belong to tokens[i, t], predicted from the position before it.
    """

    tokens: Tensor  # [n, seq] int64
    response: Tensor  # [n, seq] float32, 0 or 1

    def rows(self, index: Tensor) -> "Sequences":
        """The sequences at `index` [m] int64, in that order."""
        return Sequences(self.tokens[index], self.response[index])


@dataclass(frozen=True)
class Answers:
    """Sequences and what they are worth; the answers to one prompt side by side."""

    sequences: Sequences  # n of them
    drawn: Tensor  # [n, seq] float32, log-probability of each token when it was drawn; 0 where response is 0
    rewards: Tensor  # [n] float32

    def rows(self, index: Tensor) -> "Answers":
        """The answers at `index` [m] int64, in that order."""
        return Answers(self.sequences.rows(index), self.drawn[index], self.rewards[index])

    @classmethod
    def join(cls, parts: Sequence["Answers"]) -> "Answers":
        """All of them, one after the other."""
        sequences = Sequences(
            torch.cat([one.sequences.tokens for one in parts]), torch.cat([one.sequences.response for one in parts])
        )
        return cls(sequences, torch.cat([one.drawn for one in parts]), torch.cat([one.rewards for one in parts]))


@dataclass(frozen=True)
class Scores:
    """What the models say about Sequences; 0 where response is 0."""

    logprobs: Tensor  # [n, seq] float32, under the policy that drew them
    ref_logprobs: Tensor  # [n, seq] float32, under the frozen reference; equal to logprobs where there is none
    values: Tensor  # [n, seq] float32, the critic's value of the state before tokens[i, t]; 0 where there is none


@dataclass(frozen=True)
class Rewards:
    """What a reward model finds answers worth."""

    values: Tensor  # [n] float32


@dataclass(frozen=True)
class Batch:
    """All an update needs, for the whole iteration, a mini-batch or a DP chunk of it.

    `num_tokens` and `num_sequences` count the response tokens and the rows of the whole mini-batch over all DP ranks:
    losses are divided by one or the other.
    """

    tokens: Tensor  # [n, seq] int64
    response: Tensor  # [n, seq] float32 mask
    logprobs: Tensor  # [n, seq] float32
    ref_logprobs: Tensor  # [n, seq] float32
    values: Tensor  # [n, seq] float32
    advantages: Tensor  # [n, seq] float32
    returns: Tensor  # [n, seq] float32, what a critic should have said; 0 where there is none
    num_tokens: float
    num_sequences: int
    num_micro: int = 0  # micro-batches of each DP rank, where they are cut by length

    def rows(self, index: Tensor) -> "Batch":
        """The rows at `index` [m] int64; the counts become theirs."""
        picked = {name: getattr(self, name)[index] for name in _BATCH_TENSORS}
        return Batch(**picked, num_tokens=float(picked["response"].sum()), num_sequences=len(index))

    def split(self, parts: int) -> list["Batch"]:
        """Runs of rows, one a part, as equal as can be; each keeps the whole's counts."""
        sizes = _sizes(len(self.tokens), parts)
        chunks = {name: getattr(self, name).split(sizes) for name in _BATCH_TENSORS}
        return [replace(self, **{name: chunks[name][part] for name in _BATCH_TENSORS}) for part in range(parts)]


def lengths_of(response: Tensor) -> list[int]:
    """Tokens of each sequence up to the last of its response [n, seq]: what is behind is padding."""
    return (response.shape[1] - response.flip(1).argmax(dim=1)).tolist()


def _sizes(num_rows: int, parts: int) -> list[int]:
    """How many rows each part gets: equal numbers or, where there are none, multiples of what cuts well."""
    unit = num_rows // parts if num_rows % parts == 0 else math.gcd(num_rows, 8)
    while num_rows // unit < parts:
        unit //= 2
    units, more = divmod(num_rows // unit, parts)
    return [(units + (part < more)) * unit for part in range(parts)]


_BATCH_TENSORS = ("tokens", "response", "logprobs", "ref_logprobs", "values", "advantages", "returns")


@dataclass(frozen=True)
class StepSpec:
    """What every rank must know of one optimizer step besides its batch."""

    step: int  # 0-based number of the step in the run, warm-up steps included
    iteration: int
    kind: str  # "ppo" | "warmup"
    policy_lr: float
    critic_lr: float
    kl_coef: float  # used where the KL penalty is in the loss
    version: int = 0  # of the weights after the step
    final: bool = False  # whether it counts as done even where no rank moves


@dataclass(frozen=True)
class StepResult:
    """Scalars of one step, equal on every rank that returns them. What is of a critic is None where none learned."""

    policy_loss: float
    value_loss: float | None
    entropy: float
    approx_kl: float
    clip_fraction: float
    value_clip_fraction: float | None
    policy_grad_norm: float
    critic_grad_norm: float | None
    skipped: bool = False  # a gradient was not finite, or the step was not the next one: no rank moved


@dataclass(frozen=True)
class Work:
    """What a rank did in a step before replicas first wait for each other. Those of one replica wait within it."""

    seconds: float
    tokens: int  # that it ran over, padding included: what replicas may have unequal shares of

    @property
    def pace(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens


@dataclass(frozen=True)
class Written:
    """What a rank has written of a checkpoint."""

    record: bytes  # a ShardRecord as JSON, for who publishes: the driver hands it on as it is
    stalled_s: float  # training waited so long for the copy that was written


@dataclass(frozen=True)
class Beacon:
    """How far an actor has come; read on the control group while it computes."""

    generation: int
    slot: int  # -1: standing by
    phase: str  # "idle" | "build" | "rollout" | "score" | "update" | "save" | "load"
    step: int
    micro: int
    time: float  # seconds since the epoch of the last move


@dataclass(frozen=True)
class DriverState:
    """Where the run stands: all that the driver must not forget. Moves only when a step commits."""

    iteration: int = 0  # iterations finished
    step: int = 0  # optimizer steps committed
    cursor: int = 0  # prompts taken from the task's stream
    kl_coef: float = 0.0
    warmup_done: int = 0  # supervised steps committed (counted in `step` too)
    begun: bool = False  # whether the passage from warm-up to PPO is behind
    first_reward: float | None = None
    last_reward: float | None = None

    @property
    def version(self) -> int:
        """How often the weights have changed: by the steps, and by the passage from warm-up to PPO."""
        return self.step + self.begun

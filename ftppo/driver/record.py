"""What a run says of itself, one named type for each record. Comes in: numbers measured by the driver; goes out:
values that runfiles.py writes and that display.py and report.py show. A number that is not known is None.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

PHASES = ("rollout", "score", "update", "save")
RECOVERY_PHASES = ("detect", "fence", "promote", "groups", "state", "first_step")


@dataclass(frozen=True)
class Stamp:
    """Where the run stands; put on every line of events.jsonl and metrics.jsonl."""

    generation: int = 0
    iteration: int = 0  # 0-based
    step: int = 0  # optimizer steps committed


@dataclass(frozen=True)
class IterationMetrics:
    """Scalars of one finished iteration."""

    iteration: int  # 0-based
    step: int  # optimizer steps committed at its end
    reward_mean: float | None = None
    reward_std: float | None = None
    differing: float | None = None  # 0..1, share of prompts whose answers differ in worth; None: one answer each
    kl: float | None = None  # nats a token, policy to reference
    rollout_kl: float | None = None  # nats a token, policy as it drew to the same as it scores
    kl_coef: float | None = None
    policy_loss: float | None = None
    value_loss: float | None = None
    entropy: float | None = None  # nats a token
    clip_fraction: float | None = None  # 0..1
    policy_grad_norm: float | None = None
    critic_grad_norm: float | None = None
    response_length: float | None = None  # tokens, mean
    tokens_per_s: float | None = None  # drawn, by all actors, over the whole iteration
    padding: float | None = None  # 0..1, share of what the update's micro-batches hold
    update_tflops: float | None = None  # 10^12 operations of the models a second and slot, in the update
    mfu: float | None = None  # 0..1, those of cluster.peak_tflops; None where that is not known
    explained_variance: float | None = None
    lr: float | None = None
    rollout_s: float | None = None
    score_s: float | None = None
    update_s: float | None = None
    save_s: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all phases together; a phase that is not known counts as none."""
        return sum(getattr(self, f"{phase}_s") or 0.0 for phase in PHASES)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The record of one line of metrics.jsonl; what the line lacks is None, what it has besides is left out."""
        known: dict[str, Any] = {one.name: row.get(one.name) for one in fields(cls)}
        return cls(**known)


@dataclass(frozen=True)
class EvalMetrics:
    """Scalars of one evaluation, on prompts that training never sees."""

    iteration: int  # iterations finished before it
    step: int  # optimizer steps committed before it
    num_prompts: int
    reward_mean: float  # of the greedy answers
    response_length: float  # of those, tokens, mean
    sample_reward_mean: float | None  # of the drawn answers; None where none are drawn
    pass_at: dict[int, float]  # by k; in a file as "pass@1", ...
    eval_s: float

    def to_row(self) -> dict[str, Any]:
        """The line of metrics.jsonl."""
        row = asdict(self)
        return {key: row[key] for key in row if key != "pass_at"} | {
            f"pass@{k}": one for k, one in self.pass_at.items()
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The inverse of `to_row`."""
        passed = {int(key.removeprefix("pass@")): row[key] for key in row if key.startswith("pass@")}
        return cls(**{one.name: row[one.name] for one in fields(cls) if one.name != "pass_at"}, pass_at=passed)


@dataclass(frozen=True)
class EvalSample:
    """A line of samples.jsonl: one answer of an evaluation."""

    iteration: int  # as of EvalMetrics
    step: int
    decoding: str  # "greedy" | "sample"
    prompt: str
    answer: str
    reward: float


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh."""

    dp: int
    tp: int
    pp: int
    cp: int

    def __str__(self) -> str:
        return f"dp {self.dp} · tp {self.tp} · pp {self.pp} · cp {self.cp}"


@dataclass(frozen=True)
class RecoverySeconds:
    """Parts of a recovery. `total` runs from the fault until the interrupted step has been run again."""

    detect: float = 0.0
    fence: float = 0.0
    promote: float = 0.0
    groups: float = 0.0
    state: float = 0.0
    first_step: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class RecoveryRecord:
    """One recovery, as it stands in summary.json."""

    generation: int  # the one it led to
    cause: str
    slots: tuple[int, ...]
    phase: Literal["rollout", "score", "update", "save", "idle"]
    plan: Literal["substitute", "shrink", "grow", "restart"]
    source: Literal["peer", "checkpoint", "initial"]
    lost_steps: int  # committed steps that had to be run again
    seconds: RecoverySeconds

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The record of one entry of summary.json or line of metrics.jsonl."""
        known = {one.name: row[one.name] for one in fields(cls)}
        seconds = RecoverySeconds(**{key: value or 0.0 for key, value in row["seconds"].items()})
        return cls(**known | {"slots": tuple(row["slots"]), "seconds": seconds})


@dataclass(frozen=True)
class CheckpointRecord:
    """One published checkpoint, as it stands in summary.json."""

    step: int
    uri: str
    bytes: int
    stall_s: float  # training stood still
    total_s: float  # from the request until the manifest was there
    retries: int

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The record of one entry of summary.json or line of metrics.jsonl."""
        return cls(**{one.name: row[one.name] for one in fields(cls)})


@dataclass(frozen=True)
class Reward:
    """Mean over the samples of the first and of the last iteration; None before there is one."""

    first: float | None
    last: float | None


@dataclass(frozen=True)
class Summary:
    """summary.json: field by field, in its order."""

    run: str
    status: Literal["finished", "failed"]
    reason: str | None
    iterations: int
    steps: int
    layout: Layout
    standby: int
    state_digest: str | None  # hex SHA-256 over all parameters and optimizer state; None where none could be taken
    reward: Reward
    recoveries: tuple[RecoveryRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()

    def to_row(self) -> dict[str, Any]:
        """Plain containers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The inverse of `to_row`."""
        return cls(
            **row
            | {
                "layout": Layout(**row["layout"]),
                "reward": Reward(**row["reward"]),
                "recoveries": tuple(map(RecoveryRecord.from_row, row["recoveries"])),
                "checkpoints": tuple(map(CheckpointRecord.from_row, row["checkpoints"])),
            }
        )

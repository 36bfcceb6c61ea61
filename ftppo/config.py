"""The whole configuration, typed and frozen. Comes in: a plain dict; goes out: a Config, or a ConfigError.

Every model refuses unknown keys. What concerns several keys at once is checked in config_check; config_errors explains.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError

from ftppo.classifier import classifier_of
from ftppo.config_algo import Algo
from ftppo.config_check import check
from ftppo.config_errors import explain
from ftppo.config_model import Model, Section
from ftppo.config_task import Eval, Judge, Reward, Task
from ftppo.pretrained import with_shape

# "update" strikes at the first of its parts.
FaultPhase = Literal[
    "rollout", "score", "save", "snapshot", "update", "update.forward", "update.backward", "update.reduce",
    "update.optimizer", "update.gather", "eval",
]  # fmt: skip


def _nan_is_a_word(kind: Any) -> Any:
    """YAML and Hydra read the name of this kind as a number."""
    return "nan" if isinstance(kind, float) and math.isnan(kind) else kind


FaultKind = Annotated[
    Literal[
        "sigkill", "sigstop", "exit", "segfault", "exception", "gil_hang", "nan", "slow", "oom",
        "kill_dp_group", "kill_node", "kill_driver", "sigterm", "bitflip",
    ],
    BeforeValidator(_nan_is_a_word),
]  # fmt: skip


class Run(Section):
    """Name and place of a run."""

    name: str = "default"
    dir: str = "runs"
    resume: Literal["auto", "never", "must"] = "auto"
    progress: Literal["auto", "rich", "plain"] = "auto"
    ray_logs: bool = False  # pass Ray's own messages through


class Train(Section):
    """How long, and how fast the weights move."""

    iterations: int = Field(10, ge=1)
    prompts: int = Field(64, ge=1)  # prompts an iteration
    samples: int = Field(1, ge=1)  # answers a prompt
    epochs: int = Field(1, ge=1)
    mini_batch: int = Field(64, ge=1)  # sequences an optimizer step, over all DP ranks
    micro_batch: int = Field(8, ge=1)  # sequences a forward pass, on one rank: the most, where fewer divide better
    micro_tokens: int | None = Field(None, ge=1)  # given: instead, as many sequences as make this many tokens, padded
    policy_lr: float = Field(1e-4, gt=0)
    critic_lr: float = Field(1e-4, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_steps: int = Field(0, ge=0)
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    clip_grad: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    adam_eps: float = Field(1e-8, gt=0)
    warmup_steps: int = Field(0, ge=0)  # supervised steps on the task's answers before PPO
    warmup_lr: float = Field(1e-3, gt=0)
    warmup_batch: int = Field(64, ge=1)  # sequences a supervised step


class Parallel(Section):
    """The layout (dp, tp, pp, cp). The world size is their product; `world_size`, where given, must agree."""

    dp: int = Field(1, ge=1)
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    cp: int = Field(1, ge=1)
    # With tp > 1, whether TP ranks share out norms and residuals too, which saves memory. null: on cuda; over gloo its
    # messages, twice as many, cost more than what they save.
    sequence_parallel: bool | None = None
    world_size: int | None = Field(None, ge=1)

    @property
    def num_slots(self) -> int:
        """Ranks of the mesh."""
        return self.dp * self.tp * self.pp * self.cp


class Cluster(Section):
    """What the actors run on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    standby: int = Field(0, ge=0)
    address: str | None = (
        None  # null: the cluster of RAY_ADDRESS where set, else one of our own; "local": always our own
    )
    cpus_per_actor: float = Field(0.1, gt=0)
    threads_per_actor: int = Field(1, ge=1)
    gpus_per_actor: float = Field(1.0, gt=0)
    peak_tflops: float | None = Field(None, gt=0)  # of an actor's device, by its data sheet: what the metric mfu is of
    start_s: float = Field(180.0, gt=0)  # deadline for actors to come up


class Rollout(Section):
    """How answers are drawn."""

    max_prompt: int = Field(32, ge=1)  # tokens
    max_response: int = Field(16, ge=1)  # tokens, end token included
    temperature: float = Field(1.0, ge=0)  # 0: the most likely token
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)  # 0: all
    batch: int = Field(64, ge=1)  # sequences generated at once on one rank


class Checkpoint(Section):
    """Where durable state goes and how it gets there.

    `fallback`: where the newest checkpoint is damaged, go on from the next older one, and say so. On, because who
    leaves a run alone wants it to go on, and some iterations more are what it costs; off, it ends with the error.
    """

    url: str | None = None  # folder, s3://bucket/prefix, gs://bucket/prefix; null: <run.dir>/<run.name>/checkpoints
    every_iterations: int = Field(5, ge=0)  # 0: only at the end
    keep_last: int = Field(2, ge=1)
    keep_every_iterations: int = Field(0, ge=0)  # 0: none besides the last
    asynchronous: bool = False
    fallback: bool = True  # go on from an older checkpoint where the newest is damaged
    ring_buffers: int = Field(4, ge=1)  # buffers of a writer in memory at once
    part_bytes: int = Field(8 * 2**20, ge=1024)  # bytes a buffer
    retries: int = Field(5, ge=0)  # resends of one buffer
    retry_first_s: float = Field(0.2, ge=0)
    retry_cap_s: float = Field(10.0, ge=0)
    retry_deadline_s: float = Field(120.0, gt=0)  # of one object
    save_s: float = Field(600.0, gt=0)  # deadline of a whole save or load
    endpoint: str | None = None  # another S3 or GCS server than the cloud's own
    checksums: Literal["when_supported", "when_required"] = "when_supported"  # S3: some stores refuse the first


class Snapshot(Section):
    """Copies of each slot's state in host memory."""

    every_steps: int = Field(1, ge=0)  # 0: none


class Recovery(Section):
    """Deadlines, and what to do when there are not enough standbys."""

    when_short: Literal["fail", "wait", "shrink"] = "fail"
    hang_s: float = Field(120.0, gt=0)  # longest wait for any step of the work
    fence_s: float = Field(20.0, gt=0)  # survivors let go of their groups
    groups_s: float = Field(60.0, gt=0)  # new groups stand
    standby_s: float = Field(180.0, gt=0)  # standbys that are warming up are waited for, then not counted on
    orphan_s: float = Field(300.0, gt=0)  # actors of a cluster that is not the run's own outlive their driver so long
    max_recoveries: int = Field(20, ge=0)
    max_per_hour: int = Field(0, ge=0)  # of these for one kind of fault; 0: as many as come
    compare_every_steps: int = Field(20, ge=0)  # weights of replicas by checksum, for bits that flipped; 0: never
    straggler_ratio: float = Field(1.5, ge=0)  # a replica that takes so many times as long as the others; 0: never told
    straggler_steps: int = Field(20, ge=1)  # steps that this is judged over, by their medians
    replace_stragglers: bool = False  # by warm standbys, between two steps


class Fault(Section):
    """One injected fault: when `slot` is in `phase` of `iteration` (0-based), for `seconds` where the kind lasts."""

    iteration: int = Field(ge=0)
    phase: FaultPhase = "update"
    slot: int = Field(0, ge=0)
    kind: FaultKind
    seconds: float = Field(0.0, ge=0)


class Soak(Section):
    """Faults drawn at random over a run, by seeds; see plan/soak.py."""

    num_faults: int = Field(0, ge=0)
    seed: int = Field(0, ge=0)  # other faults for the same training; `seed` counts too
    first_iteration: int = Field(2, ge=0)  # none strikes before
    min_gap: int = Field(1, ge=0)  # iterations from one fault to the next; 0: several may strike in one
    kinds: tuple[FaultKind, ...] = Field(
        ("sigkill", "exit", "segfault", "exception", "oom", "nan", "slow", "sigterm", "kill_dp_group",
         "sigstop", "gil_hang"), min_length=1,
    )  # fmt: skip
    hang_share: float = Field(0.05, ge=0, le=1)  # of the faults that hang until they are ended, recovery.hang_s each
    slow_s: float = Field(0.5, gt=0)  # how long `slow` lasts


class Chaos(Section):
    """Faults to inject inside the real program."""

    faults: tuple[Fault, ...] = ()
    soak: Soak = Soak()


class Config(Section):
    """Everything a run needs to know."""

    seed: int = Field(0, ge=0)
    run: Run = Run()
    train: Train = Train()
    parallel: Parallel = Parallel()
    cluster: Cluster = Cluster()
    model: Model = Model()
    task: Task = Task()
    judge: Judge = Judge()
    reward: Reward = Reward()
    eval: Eval = Eval()
    algo: Algo = Algo()
    rollout: Rollout = Rollout()
    checkpoint: Checkpoint = Checkpoint()
    snapshot: Snapshot = Snapshot()
    recovery: Recovery = Recovery()
    chaos: Chaos = Chaos()

    @property
    def length_unit(self) -> int:
        """What the length of every sequence is a multiple of, so that TP and CP ranks have equal parts of it."""
        sizes = self.parallel
        unit = sizes.tp * sizes.cp  # sequence parallelism: each tensor rank holds an equal part
        if sizes.cp > 1:
            unit = math.lcm(unit, 2 * sizes.cp)  # context parallelism: two chunks a rank, so that causal work is even
        return unit


def load_config(raw: Mapping[str, Any]) -> Config:
    """`raw`, typed and checked.

    Raises ConfigError for the first key that is unknown, of a wrong type or range, or at odds with another key.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        details = error.errors()
        misspelt = [
            detail for detail in details if detail["type"] == "extra_forbidden"
        ]  # explains what is missing, too
        raise explain([*misspelt, *details][0], list(known_keys())) from error
    if config.model.path is not None:
        config = config.model_copy(update={"model": with_shape(config.model)})
    if config.reward.path is not None:
        path = classifier_of(config.reward.path).path
        config = config.model_copy(update={"reward": config.reward.model_copy(update={"path": path})})
    check(config)
    return config


def known_keys(section: type[Section] = Config, prefix: str = "") -> Iterator[str]:
    """Every key, dotted, groups before what they hold: "train", "train.iterations", ..."""
    for name, entry in section.model_fields.items():
        yield prefix + name
        for kind in (entry.annotation, *get_args(entry.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from known_keys(kind, f"{prefix}{name}.")

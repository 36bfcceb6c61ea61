"""The checks that concern several keys at once. Comes in: a typed Config; goes out: nothing, or a ConfigError.

Whatever would stop a run later (a batch that does not divide, a model that does not split) is refused here, before
anything starts. Every message names the key, its value and a value that would do.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ftppo import classifier
from ftppo.config_check_task import check_endpoint, check_eval, check_reward, check_task
from ftppo.config_errors import require as _require
from ftppo.config_model import Model
from ftppo.errors import ConfigError

if TYPE_CHECKING:
    from ftppo.config import Config

S3_SMALLEST_PART_BYTES = 5 * 2**20  # Amazon S3 refuses a smaller part unless it is the last
GCS_CHUNK_UNIT_BYTES = 256 * 2**10  # a resumable upload to GCS goes in multiples of this
VOCAB_MULTIPLE = 16  # what the tokenizers pad their vocabularies to


def check(config: "Config") -> None:
    """Raise ConfigError for the first combination of keys that cannot run."""
    learning = (_layout, _model, _batches, _sequence, _algo, _task, _reward)
    for part in (*learning, _cluster, _run, _checkpoint, _recovery, _chaos):
        part(config)


def _require_multiple(key: str, value: int, unit: int, why: str) -> None:
    below, above = value // unit * unit, (value // unit + 1) * unit
    nearest = f"{below} or {above}" if below else f"{above}"
    _require(value % unit == 0, key, value, f"must be a multiple of {unit} ({why}); nearest: {nearest}")


def _divisors(value: int) -> Sequence[int]:
    return [unit for unit in range(1, value + 1) if value % unit == 0]


def _layout(config: "Config") -> None:
    sizes = config.parallel
    if sizes.world_size is not None:
        _require(
            sizes.world_size == sizes.num_slots,
            "parallel.world_size",
            sizes.world_size,
            f"dp={sizes.dp} x tp={sizes.tp} x pp={sizes.pp} x cp={sizes.cp} makes {sizes.num_slots}; "
            f"change one of them, or leave world_size out",
        )


def _model(config: "Config") -> None:
    _splits(config.model, config)


def _splits(model: Model, config: "Config") -> None:
    sizes = config.parallel
    if model.head_dim is None:
        why = f"an even size for each of {model.heads} heads"
        _require_multiple("model.hidden", model.hidden, 2 * model.heads, why)
    else:
        _require_multiple("model.head_dim", model.head_dim, 2, "rotary position embeddings turn pairs")
    _require_multiple("model.heads", model.heads, model.kv_heads, f"model.kv_heads={model.kv_heads}")
    remedy = (
        f"vocabularies are padded to a multiple of {VOCAB_MULTIPLE}, so tp can be one of {_divisors(VOCAB_MULTIPLE)}"
    )
    _require(VOCAB_MULTIPLE % sizes.tp == 0, "parallel.tp", sizes.tp, remedy)
    _require_multiple("model.layers", model.layers, sizes.pp, f"parallel.pp={sizes.pp}")
    _require_multiple("model.ffn", model.ffn, sizes.tp, f"parallel.tp={sizes.tp}")
    for key, heads in (("model.heads", model.heads), ("model.kv_heads", model.kv_heads)):
        remedy = f"must split over parallel.tp={sizes.tp}; with this many heads tp can be one of {_divisors(heads)}"
        _require(heads % sizes.tp == 0, key, heads, remedy)


def _batches(config: "Config") -> None:
    train, sizes = config.train, config.parallel
    if train.micro_tokens is None:
        micro = sizes.dp * train.micro_batch
        why = f"parallel.dp={sizes.dp} x train.micro_batch={train.micro_batch}"
        _require_multiple("train.mini_batch", train.mini_batch, micro, why)
    else:
        _require_multiple("train.mini_batch", train.mini_batch, sizes.dp, f"parallel.dp={sizes.dp}")
    if train.warmup_steps:
        _require_multiple("train.warmup_batch", train.warmup_batch, sizes.dp, f"parallel.dp={sizes.dp}")
    drawn = train.prompts * train.samples
    for unit, reason in (
        (train.mini_batch, f"train.mini_batch={train.mini_batch}"),
        (sizes.dp * sizes.cp, f"parallel.dp={sizes.dp} x parallel.cp={sizes.cp}, which share the rollout"),
    ):
        step = unit // math.gcd(unit, train.samples)  # prompts that make whole units
        _require(
            drawn % unit == 0,
            "train.prompts",
            train.prompts,
            f"train.prompts x train.samples={train.samples} makes {drawn} sequences, which must be a multiple of "
            f"{unit} ({reason}); nearest train.prompts: {max(step, round(train.prompts / step) * step)}",
        )


def _sequence(config: "Config") -> None:
    rollout, sizes, unit = config.rollout, config.parallel, config.length_unit
    length = rollout.max_prompt + rollout.max_response
    _require(
        length % unit == 0,
        "rollout.max_response",
        rollout.max_response,
        f"with rollout.max_prompt={rollout.max_prompt} sequences are {length} tokens, which must be a multiple of "
        f"{unit} (parallel.tp={sizes.tp}, parallel.cp={sizes.cp}); nearest: {rollout.max_response + -length % unit}",
    )
    if config.train.micro_tokens is not None:
        remedy = f"a sequence has up to {length} tokens (rollout.max_prompt + rollout.max_response): at least as many"
        _require(config.train.micro_tokens >= length, "train.micro_tokens", config.train.micro_tokens, remedy)
    _takes(config.model, "the model", config)


def _takes(model: Model, name: str, config: "Config") -> None:
    rollout = config.rollout
    length = rollout.max_prompt + rollout.max_response
    for key, limit in (("max_length", model.max_length), ("window", model.window)):
        _require(
            limit is None or length <= limit,
            "rollout.max_response",
            rollout.max_response,
            f"with rollout.max_prompt={rollout.max_prompt} sequences are {length} tokens, and {name} takes up to "
            f"{limit} ({key}): lower one of the two",
        )


def _algo(config: "Config") -> None:
    algo = config.algo
    if algo.kl_target is not None:
        remedy = "an adaptive KL coefficient grows from its first value: give algo.kl_coef > 0, or algo.kl_target=null"
        _require(algo.kl_coef > 0, "algo.kl_coef", algo.kl_coef, remedy)
    if algo.by_group:
        remedy = f"algo.advantage={algo.advantage} compares the answers to one prompt: at least 2, and better 8"
        _require(config.train.samples >= 2, "train.samples", config.train.samples, remedy)
    if algo.dynamic_rounds:
        remedy = f"algo.dynamic_rounds={algo.dynamic_rounds} asks whether the answers to one prompt differ: at least 2"
        _require(config.train.samples >= 2, "train.samples", config.train.samples, remedy)


def _task(config: "Config") -> None:
    check_task(config.task, config.model, config.reward)
    check_eval(config.eval, config.task)


def _reward(config: "Config") -> None:
    path = config.reward.path
    found = None if path is None else classifier.classifier_of(path)
    check_reward(config.reward, found, config.task, config.model)
    if found is None:
        return
    try:
        _splits(found, config)
    except ConfigError as error:
        what = f"its config.json gives {error.key.removeprefix('model.')}={error.value}, which {error.remedy}"
        raise ConfigError(classifier.KEY, path, what) from error
    _takes(found, "the model of reward.path", config)


def _cluster(config: "Config") -> None:
    share, world = config.cluster.gpus_per_actor, config.parallel.num_slots
    _require(share <= 1, "cluster.gpus_per_actor", share, "an actor computes on one GPU: at most 1")
    if config.cluster.device == "cuda" and world > 1:
        remedy = f"NCCL does not let two of {world} ranks share a GPU: set 1"
        _require(share == 1, "cluster.gpus_per_actor", share, remedy)


def _run(config: "Config") -> None:
    name = config.run.name
    remedy = "names a folder: letters, digits, '.', '_' and '-', with a letter or digit first"
    _require(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None, "run.name", name, remedy)
    _require(bool(config.run.dir), "run.dir", config.run.dir, "name a folder, for example run.dir=runs")


def _checkpoint(config: "Config") -> None:
    save = config.checkpoint
    remedy = "holds credentials; give them to the environment instead"
    _require("@" not in urlsplit(save.url or "").netloc, "checkpoint.url", "...", remedy)
    check_endpoint("checkpoint.endpoint", save.endpoint)
    scheme = _check_url(save.url)
    if scheme is None:
        remedy = "is for s3:// and gs:// URLs; leave it out for a local folder"
        _require(save.endpoint is None, "checkpoint.endpoint", save.endpoint, remedy)
    if scheme == "s3" and save.endpoint is None:
        remedy = f"Amazon S3 refuses parts under 5 MiB: at least {S3_SMALLEST_PART_BYTES}"
        _require(save.part_bytes >= S3_SMALLEST_PART_BYTES, "checkpoint.part_bytes", save.part_bytes, remedy)
    if scheme == "gs":
        why = "GCS takes an upload in units of 256 KiB"
        _require_multiple("checkpoint.part_bytes", save.part_bytes, GCS_CHUNK_UNIT_BYTES, why)
    remedy = f"is above checkpoint.retry_cap_s={save.retry_cap_s}; lower it or raise the cap"
    _require(save.retry_first_s <= save.retry_cap_s, "checkpoint.retry_first_s", save.retry_first_s, remedy)
    if save.keep_every_iterations:
        key = "checkpoint.keep_every_iterations"
        remedy = "nothing is saved on the way (checkpoint.every_iterations=0): set that, or keep 0"
        _require(save.every_iterations > 0, key, save.keep_every_iterations, remedy)
        why = f"checkpoint.every_iterations={save.every_iterations}"
        _require_multiple(key, save.keep_every_iterations, save.every_iterations, why)


def _check_url(url: str | None) -> str | None:
    """The scheme of a bucket's URL; None for a local folder."""
    if url is None:
        return None
    scheme, marker, rest = url.partition("://")
    if not marker or scheme == "file":
        _require(bool(rest if marker else scheme), "checkpoint.url", url, "is empty: name a folder, or set null")
        return None
    near = {"gcs": "gs", "s3a": "s3", "s3n": "s3"}.get(scheme.lower())
    hint = f"write {near}://{rest}" if near else "use a folder, s3://bucket/prefix or gs://bucket/prefix"
    _require(scheme in ("s3", "gs"), "checkpoint.url", url, f"no store for {scheme}://; {hint}")
    _require(bool(rest.partition("/")[0]), "checkpoint.url", url, f"names no bucket: {scheme}://bucket/prefix")
    return scheme


def _recovery(config: "Config") -> None:
    recovery, remedy = config.recovery, "everybody is slower than that: above 1, or 0 for never"
    ratio = recovery.straggler_ratio
    _require(not 0 < ratio <= 1, "recovery.straggler_ratio", ratio, remedy)
    if recovery.replace_stragglers:
        key, value = "recovery.replace_stragglers", recovery.replace_stragglers
        _require(ratio > 0, key, value, "recovery.straggler_ratio=0 looks for none: set 1.5, or false here")
        remedy = "without snapshots a slot that moves takes all back to a checkpoint: snapshot.every_steps=1, or false"
        _require(config.snapshot.every_steps > 0, key, value, remedy)


def _chaos(config: "Config") -> None:
    world = config.parallel.num_slots
    for place, fault in enumerate(config.chaos.faults):
        key = f"chaos.faults.{place}"
        remedy = f"the layout has slots 0 to {world - 1}"
        _require(fault.slot < world, f"{key}.slot", fault.slot, remedy)
        if fault.kind == "bitflip":
            remedy = "a flipped bit is looked for between two steps: take snapshot, at the end of one"
            _require(fault.phase == "snapshot", f"{key}.phase", fault.phase, remedy)
        if fault.kind == "slow":
            remedy = "slow needs the seconds that it lasts"
            _require(fault.seconds > 0, f"{key}.seconds", fault.seconds, remedy)
    if config.chaos.soak.num_faults:
        _soak(config)


def _soak(config: "Config") -> None:
    """The faults must find room, and none may end the run for want of standbys, or of recoveries that are left."""
    soak, recovery = config.chaos.soak, config.recovery
    gaps = (soak.num_faults - 1) * soak.min_gap
    remedy = f"chaos.soak.num_faults={soak.num_faults} need at least {soak.first_iteration + gaps + 1}"
    _require(soak.first_iteration + gaps < config.train.iterations, "train.iterations", config.train.iterations, remedy)
    most = len(config.chaos.faults) + soak.num_faults
    remedy = f"{most} faults are to be recovered from: at least as many, and better some more"
    _require(recovery.max_recoveries >= most, "recovery.max_recoveries", recovery.max_recoveries, remedy)
    whole = config.parallel.num_slots // config.parallel.dp if "kill_dp_group" in soak.kinds else 1
    remedy = f"one fault takes up to {whole} slots: as many standbys, or recovery=wait"
    enough = config.cluster.standby >= whole or recovery.when_short != "fail"
    _require(enough, "cluster.standby", config.cluster.standby, remedy)
    remedy = f"would be taken for a hang: less than recovery.hang_s={recovery.hang_s:g}"
    _require(soak.slow_s < recovery.hang_s, "chaos.soak.slow_s", soak.slow_s, remedy)

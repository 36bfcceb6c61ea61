"""The configuration refuses what cannot run, and says how to mend it."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from ftppo.config import Config, known_keys, load_config
from ftppo.errors import ConfigError


def refused(raw: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(raw)
    return caught.value


def test_defaults_can_run() -> None:
    config = load_config({})
    assert config == Config()
    assert config.parallel.num_slots == 1


def test_config_is_frozen_and_crosses_a_process_border() -> None:
    config = load_config({"parallel": {"dp": 2, "tp": 2}, "chaos": {"faults": [{"iteration": 1, "kind": "sigkill"}]}})
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ValueError, match="frozen"):
        config.parallel.dp = 3  # type: ignore[misc]


def test_known_keys_name_groups_keys_and_what_is_inside_lists() -> None:
    keys = list(known_keys())
    assert {"seed", "train", "train.iterations", "chaos.faults", "chaos.faults.kind"} <= set(keys)
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("raw", "key", "remedy"),
    [
        ({"paralel": {"dp": 2}}, "paralel", "did you mean parallel?"),
        ({"parallel": {"db": 2}}, "parallel.db", "did you mean parallel.dp?"),
        ({"iterations": 3}, "iterations", "did you mean train.iterations?"),
        ({"name": "x"}, "name", "run.name or task.name"),
        ({"snapshot": {"zzz": 1}}, "snapshot.zzz", "snapshot has: every_steps"),
        ({"zzz": 1}, "zzz", "the root has: seed, run, train"),
        ({"chaos": {"faults": [{"knd": "nan"}]}}, "chaos.faults.0.knd", "did you mean chaos.faults.kind?"),
        ({"chaos": {"faults": [{"kind": "nan"}]}}, "chaos.faults.0.iteration", "is required"),
        ({"run": {"resume": "maybe"}}, "run.resume", "'auto', 'never' or 'must'"),
        ({"run": {"name": [12]}}, "run.name", "quote"),
        ({"train": {"iterations": "x"}}, "train.iterations", "must be a valid integer"),
        ({"train": {"iterations": 0}}, "train.iterations", "must be greater than or equal to 1"),
        ({"recovery": {"hang_s": float("inf")}}, "recovery.hang_s", "must be a finite number"),
        ({"model": 5}, "model", "is a group of keys"),
        ({"seed": None}, "seed", "must be a valid integer"),
    ],
)
def test_one_key(raw: dict[str, Any], key: str, remedy: str) -> None:
    error = refused(raw)
    assert error.key == key
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("raw", "key", "remedy"),
    [
        ({"parallel": {"dp": 2, "tp": 2, "world_size": 8}}, "parallel.world_size", "makes 4"),
        ({"model": {"hidden": 36, "heads": 4, "kv_heads": 2}}, "model.hidden", "multiple of 8"),
        ({"model": {"heads": 4, "kv_heads": 3}}, "model.heads", "model.kv_heads=3"),
        ({"parallel": {"tp": 4}, "model": {"heads": 4, "kv_heads": 2}}, "model.kv_heads", "one of [1, 2]"),
        ({"parallel": {"tp": 3}}, "parallel.tp", "one of [1, 2, 4, 8, 16]"),
        ({"parallel": {"tp": 2}, "model": {"ffn": 129}}, "model.ffn", "nearest: 128 or 130"),
        ({"parallel": {"pp": 2}, "model": {"layers": 3}}, "model.layers", "nearest: 2 or 4"),
        ({"parallel": {"pp": 4}, "model": {"layers": 2}}, "model.layers", "nearest: 4"),
        ({"parallel": {"dp": 3}}, "train.mini_batch", "nearest: 48 or 72"),
        ({"train": {"mini_batch": 64, "micro_batch": 48}}, "train.mini_batch", "multiple of 48"),
        (
            {"parallel": {"dp": 2}, "train": {"warmup_steps": 1, "warmup_batch": 13}},
            "train.warmup_batch",
            "nearest: 12 or 14",
        ),
        ({"train": {"prompts": 30}}, "train.prompts", "nearest train.prompts: 64"),
        ({"train": {"prompts": 24, "samples": 4}}, "train.prompts", "nearest train.prompts: 32"),
        ({"train": {"mini_batch": 8, "prompts": 8}, "parallel": {"cp": 16}}, "train.prompts", "share the rollout"),
        ({"parallel": {"cp": 2}, "rollout": {"max_response": 13}}, "rollout.max_response", "nearest: 16"),
        ({"parallel": {"tp": 2}, "rollout": {"max_response": 13}}, "rollout.max_response", "nearest: 14"),
        ({"algo": {"kl_target": 0.1}}, "algo.kl_coef", "algo.kl_coef > 0"),
        ({"algo": {"advantage": "grpo"}}, "train.samples", "algo.advantage=grpo compares"),
        ({"algo": {"advantage": "rloo"}}, "train.samples", "at least 2"),
        ({"algo": {"dynamic_rounds": 2}}, "train.samples", "algo.dynamic_rounds=2 asks"),
        ({"train": {"micro_tokens": 47}}, "train.micro_tokens", "up to 48 tokens"),
        ({"train": {"micro_tokens": 96, "mini_batch": 64}, "parallel": {"dp": 3}}, "train.mini_batch", "parallel.dp=3"),
        ({"task": {"kind": "jsonl"}}, "task.path", "name it"),
        ({"task": {"kind": "jsonl", "path": "nowhere.jsonl"}}, "task.path", "no such file"),
        ({"task": {"path": "x.jsonl"}}, "task.path", "task.kind=jsonl, parquet and hub only"),
        ({"task": {"kind": "jsonl", "path": "s3://bucket"}}, "task.path", "names no object"),
        ({"task": {"kind": "parquet", "path": "http://host/x"}}, "task.path", "no store for http://"),
        ({"task": {"kind": "jsonl", "datasets": [{"path": "no.jsonl"}]}}, "task.datasets.0.path", "no such file"),
        ({"task": {"kind": "hub", "path": "a/b", "datasets": [{"path": "c/d"}]}}, "task.path", "leave one"),
        ({"task": {"kind": "hub", "path": "a/b", "endpoint": "here"}}, "task.endpoint", "http://host"),
        ({"task": {"kind": "hub", "path": "a/b", "answer_column": None}}, "task.answer_column", "task.reward"),
        (
            {"task": {"kind": "hub", "path": "a/b", "answer_pattern": "("}},
            "task.answer_pattern",
            "no regular expression",
        ),
        ({"task": {"response_pattern": "(.)"}}, "task.response_pattern", "reasoning-gym's own scorer judges"),
        (
            {"task": {"kind": "hub", "path": "a/b"}, "eval": {"every_iterations": 5}},
            "task.held_out",
            "task.held_out=0.1, or give eval.path",
        ),
        ({"eval": {"path": "x.jsonl"}}, "eval.path", "reasoning-gym makes"),
        ({"task": {"kind": "hub", "path": "a/b", "held_out": 0.1}, "eval": {"path": "c/d"}}, "eval.path", "leave one"),
        ({"task": {"kind": "jsonl", "path": __file__}, "eval": {"path": "no.jsonl"}}, "eval.path", "no such file"),
        ({"task": {"kind": "jsonl", "path": __file__}, "eval": {"split": "test"}}, "eval.split", "task.kind=hub"),
        ({"task": {"held_out": 0.1}}, "task.held_out", "leave it out"),
        ({"task": {"chat": True}}, "task.chat", "model.path"),
        ({"task": {"system": "Be brief."}}, "task.system", "task.chat=true"),
        ({"task": {"template": "{"}}, "task.template", "no format string"),
        ({"task": {"template": "hello"}}, "task.template", "{question}"),
        ({"task": {"alphabet": "abc"}}, "task.alphabet", "task.tokenizer=char"),
        ({"cluster": {"gpus_per_actor": 2}}, "cluster.gpus_per_actor", "at most 1"),
        (
            {"cluster": {"device": "cuda", "gpus_per_actor": 0.5}, "parallel": {"dp": 2}},
            "cluster.gpus_per_actor",
            "NCCL",
        ),
        ({"run": {"name": "../up"}}, "run.name", "names a folder"),
        ({"run": {"dir": ""}}, "run.dir", "run.dir=runs"),
        ({"checkpoint": {"url": "gcs://bucket/x"}}, "checkpoint.url", "write gs://bucket/x"),
        ({"checkpoint": {"url": "ftp://host/x"}}, "checkpoint.url", "no store for ftp://"),
        ({"checkpoint": {"url": "s3:///x"}}, "checkpoint.url", "names no bucket"),
        ({"checkpoint": {"url": ""}}, "checkpoint.url", "is empty"),
        ({"checkpoint": {"endpoint": "http://localhost:9000"}}, "checkpoint.endpoint", "local folder"),
        ({"checkpoint": {"url": "s3://b", "endpoint": "localhost:9000"}}, "checkpoint.endpoint", "http://host"),
        ({"checkpoint": {"url": "s3://b", "part_bytes": 2**20}}, "checkpoint.part_bytes", "5 MiB"),
        ({"checkpoint": {"url": "gs://b", "part_bytes": 300_000}}, "checkpoint.part_bytes", "256 KiB"),
        ({"checkpoint": {"retry_first_s": 30}}, "checkpoint.retry_first_s", "raise the cap"),
        ({"recovery": {"straggler_ratio": 0.8}}, "recovery.straggler_ratio", "above 1, or 0"),
        (
            {"recovery": {"straggler_ratio": 0, "replace_stragglers": True}},
            "recovery.replace_stragglers",
            "recovery.straggler_ratio=0",
        ),
        (
            {"recovery": {"replace_stragglers": True}, "snapshot": {"every_steps": 0}},
            "recovery.replace_stragglers",
            "snapshot.every_steps=1",
        ),
        ({"checkpoint": {"keep_every_iterations": 7}}, "checkpoint.keep_every_iterations", "nearest: 5 or 10"),
        (
            {"checkpoint": {"every_iterations": 0, "keep_every_iterations": 7}},
            "checkpoint.keep_every_iterations",
            "nothing is saved on the way",
        ),
        ({"chaos": {"faults": [{"iteration": 1, "slot": 1, "kind": "nan"}]}}, "chaos.faults.0.slot", "slots 0 to 0"),
        ({"chaos": {"faults": [{"iteration": 1, "kind": "slow"}]}}, "chaos.faults.0.seconds", "needs the seconds"),
        ({"chaos": {"soak": {"num_faults": 9}}}, "train.iterations", "need at least 11"),
        ({"chaos": {"soak": {"num_faults": 4, "min_gap": 3}}}, "train.iterations", "need at least 12"),
        (
            {"chaos": {"faults": [{"iteration": 1, "kind": "exit"}], "soak": {"num_faults": 20, "min_gap": 0}}},
            "recovery.max_recoveries",
            "21 faults",
        ),
        (
            {"parallel": {"dp": 2, "tp": 2}, "cluster": {"standby": 1}, "chaos": {"soak": {"num_faults": 1}}},
            "cluster.standby",
            "takes up to 2 slots",
        ),
        (
            {"cluster": {"standby": 1}, "recovery": {"hang_s": 0.5}, "chaos": {"soak": {"num_faults": 1}}},
            "chaos.soak.slow_s",
            "less than recovery.hang_s=0.5",
        ),
        ({"chaos": {"soak": {"kinds": ["exit", "lunch"]}}}, "chaos.soak.kinds.1", "'sigkill'"),
        (
            {"chaos": {"faults": [{"iteration": 1, "kind": "nan", "phase": "lunch"}]}},
            "chaos.faults.0.phase",
            "'rollout'",
        ),
    ],
)
def test_several_keys(raw: dict[str, Any], key: str, remedy: str) -> None:
    error = refused(raw)
    assert error.key == key
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "raw",
    [
        {"checkpoint": {"url": "s3://bucket/prefix", "endpoint": "http://127.0.0.1:9000", "part_bytes": 4096}},
        {"checkpoint": {"url": "gs://bucket"}},
        {"checkpoint": {"url": "/somewhere/checkpoints"}},
        {"cluster": {"device": "cuda", "gpus_per_actor": 0.5}},
        {"recovery": {"when_short": "wait", "orphan_s": 300.0}, "checkpoint": {"asynchronous": True}},
        {"train": {"warmup_steps": 0, "warmup_batch": 12}},
        {"parallel": {"tp": 2, "cp": 2}, "rollout": {"max_prompt": 9, "max_response": 7}},
        {"algo": {"advantage": "reinforce_pp"}},
        {"recovery": {"replace_stragglers": True, "straggler_ratio": 1.2}},
        {"train": {"micro_tokens": 48, "mini_batch": 4, "prompts": 4}, "parallel": {"dp": 4}},
        {"algo": {"advantage": "grpo"}, "train": {"samples": 2}},
        {"recovery": {"when_short": "wait"}, "chaos": {"soak": {"num_faults": 8}}},
        {"cluster": {"standby": 1}, "chaos": {"soak": {"num_faults": 8, "kinds": ["exit", float("nan")]}}},
    ],
)
def test_what_can_run_is_let_through(raw: dict[str, Any]) -> None:
    load_config(raw)


@pytest.mark.parametrize("key", ["url", "endpoint"])
def test_credentials_in_a_url_are_refused_and_not_repeated(key: str) -> None:
    error = refused({"checkpoint": {"url": "s3://bucket", key: "s3://name:secret@bucket/x"}})
    assert error.key == f"checkpoint.{key}"
    assert "credentials" in error.remedy
    assert "secret" not in str(error)


def test_jsonl_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("{}\n")
    assert load_config({"task": {"kind": "jsonl", "path": str(path)}}).task.path == str(path)

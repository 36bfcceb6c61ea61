"""job.yaml is what `anyscale job submit` accepts, and what it starts is a configuration that can run."""

import shlex
import tomllib
from pathlib import Path

import pytest
from anyscale.compute_config.models import ComputeConfig
from anyscale.job.models import JobConfig

from ftppo.__main__ import compose_raw
from ftppo.config import Config, load_config

ROOT = Path(__file__).resolve().parents[2]
GPUS_A_NODE = 4  # of the instance type in job.yaml


@pytest.fixture(scope="module")
def job() -> JobConfig:
    return JobConfig.from_yaml(str(ROOT / "job.yaml"))


def started(job: JobConfig) -> Config:
    words = shlex.split(job.entrypoint.replace("$ANYSCALE_ARTIFACT_STORAGE", "s3://bucket/artifact_storage"))
    assert words[:3] == ["python", "-m", "ftppo"]
    return load_config(compose_raw(words[3:]))


def test_a_retried_job_goes_on_from_durable_checkpoints(job: JobConfig) -> None:
    config = started(job)
    assert config.run.resume == "auto"
    assert config.checkpoint.url is not None and config.checkpoint.url.startswith("s3://bucket/")
    assert config.checkpoint.every_iterations > 0
    assert job.max_retries is not None and job.max_retries > 0


def test_the_nodes_hold_every_actor(job: JobConfig) -> None:
    config = started(job)
    compute = job.compute_config
    assert isinstance(compute, ComputeConfig) and compute.head_node is not None and compute.worker_nodes
    gpus = GPUS_A_NODE * sum(group.min_nodes for group in compute.worker_nodes)
    assert config.parallel.num_slots + config.cluster.standby <= gpus
    assert config.cluster.address == "auto"


def test_the_nodes_get_the_dependencies_of_the_project(job: JobConfig) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert job.requirements == [entry for entry in declared if not entry.startswith("ray[")]


def test_what_is_uploaded_leaves_out_what_is_local(job: JobConfig) -> None:
    assert job.working_dir == "."
    assert {".git", ".venv", "runs"} <= set(job.excludes or [])

"""A Ray cluster of our own for the tests here, and a pool of real actors on it."""

import contextlib
from collections.abc import Iterator

import pytest

from ftppo.__main__ import compose_raw
from ftppo.config import Config, load_config
from ftppo.driver.cluster import Cluster, connect
from tests.sandbox import Sandbox


def config(*overrides: str) -> Config:
    return load_config(compose_raw(["experiment=smoke", "cluster.address=local", "cluster.device=cpu", *overrides]))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Ends with the module, and fails its last test for what is left."""
    with Sandbox() as own:
        yield own


@pytest.fixture(scope="module")
def cluster(sandbox: Sandbox) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        with sandbox.entered():
            own = stack.enter_context(connect(config("cluster.standby=1", "parallel=dp2tp2")))
        yield own

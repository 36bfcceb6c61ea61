"""A cluster of our own: refused where it is too small, and gone when it is done with."""

import pytest
import ray

from ftppo.driver.cluster import connect
from ftppo.errors import ConfigError
from tests.ray.conftest import config
from tests.sandbox import Sandbox

pytestmark = pytest.mark.slow


def test_more_bundles_than_the_cluster_holds(sandbox: Sandbox) -> None:
    with sandbox.entered(), pytest.raises(ConfigError) as caught, connect(config("cluster.standby=9999")):
        pass
    assert (caught.value.key, caught.value.value) == ("cluster.standby", 9999)
    available = f"this cluster has {ray_cpus()}"
    for told in ("2 slots and 9999 standbys", "0.1 CPU each need 1000.1", available, "lower cluster.standby"):
        assert told in caught.value.remedy
    assert not ray.is_initialized()
    assert sandbox.lasting() == []
    assert sandbox.files() == []


def ray_cpus() -> str:
    """As many as Ray finds on this machine."""
    from ray._private.utils import get_num_cpus

    return f"{get_num_cpus():g}"

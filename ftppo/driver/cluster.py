"""The Ray cluster: one that is there, or one of our own for the length of a run.

Comes in: the config; goes out: a Cluster.
"""

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import ray

from ftppo.config import Config
from ftppo.errors import ClusterError, ConfigError
from ftppo.worker.actor import send_tensors_as_arrays

START_ATTEMPTS = 3
LISTENER_S = 10.0  # for the cluster that we are to join to take our connection
SHUTDOWN_S = 3.0  # Ray's processes end within this time when asked
OBJECT_STORE_BYTES = 512 * 2**20  # of a cluster of our own; batches of tokens are small


@dataclass(frozen=True)
class Cluster:
    """What there is to run on."""

    kind: Literal["cpu", "cuda"]
    num_cpus: float
    num_gpus: float
    own: bool  # started by this run, and ended with it

    def bundle(self, config: Config) -> dict[str, float]:
        """What one actor needs."""
        gpus = {"GPU": config.cluster.gpus_per_actor} if self.kind == "cuda" else {}
        return {"CPU": config.cluster.cpus_per_actor, **gpus}


@contextlib.contextmanager
def connect(config: Config) -> Iterator[Cluster]:
    """Join the cluster at `cluster.address` or RAY_ADDRESS; without one start a local one and leave nothing of it."""
    address = config.cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    own = address == "local"
    with contextlib.ExitStack() as at_end:
        if own:
            _start_own(config, at_end)
        else:
            at_end.callback(ray.shutdown)
            _initialize(config, address)
        send_tensors_as_arrays()
        resources = ray.cluster_resources()
        cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        cluster = Cluster(_kind(config, gpus), cpus, gpus, own)
        _check_capacity(config, cluster)
        yield cluster


def _start_own(config: Config, at_end: contextlib.ExitStack) -> None:
    """Start a local cluster, and have `at_end` take all of it away. On a busy machine it may need another attempt."""
    for attempt in range(START_ATTEMPTS):
        with contextlib.ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="ftppo-ray-", ignore_cleanup_errors=True))
            undo.callback(_shut_down, set(psutil.Process().children(recursive=True)))
            try:
                own = {"_temp_dir": folder, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
                _initialize(config, "local", **own)
            except ClusterError:
                if attempt + 1 == START_ATTEMPTS:
                    raise
                continue
            at_end.push(undo.pop_all())
            return


def _shut_down(others: Collection[psutil.Process]) -> None:
    """End the cluster, and every process that was started with it; `others` were there before."""
    started = [one for one in psutil.Process().children(recursive=True) if one not in others]
    ray.shutdown()
    _end(started)


def _end(processes: Sequence[psutil.Process]) -> None:
    """See that they are gone: a cluster that came up half, or an actor that hangs, is not ended by Ray's shutdown."""
    _, alive = psutil.wait_procs(processes, timeout=SHUTDOWN_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=SHUTDOWN_S)


def _initialize(config: Config, address: str, **own: Any) -> None:
    quiet = not config.run.ray_logs
    _require_listener(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(
            address=address,
            namespace="ftppo",
            logging_level=logging.ERROR if quiet else logging.INFO,
            log_to_driver=not quiet,
            runtime_env={"env_vars": _actor_environment(config)},
            **own,
        )
    except Exception as error:  # Ray raises bare ones too, as where a node takes too long to start
        raise ClusterError(
            f"no Ray cluster at {address}: {error}; set cluster.address, or 'local' for one of our own"
        ) from error


def _require_listener(address: str) -> None:
    """Raise ClusterError where nobody listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), LISTENER_S).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster at {address}: {error}; set cluster.address, or 'local' for one of our own"
        ) from error


def _actor_environment(config: Config) -> dict[str, str]:
    threads = str(config.cluster.threads_per_actor)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}


def _kind(config: Config, num_gpus: float) -> Literal["cpu", "cuda"]:
    """cuda where the cluster has GPUs and nothing else was asked for."""
    wish = config.cluster.device
    if wish == "cuda" and num_gpus == 0:
        raise ConfigError("cluster.device", wish, "this cluster has no GPU: take cpu or auto")
    return "cpu" if wish == "cpu" or num_gpus == 0 else "cuda"


def _check_capacity(config: Config, cluster: Cluster) -> None:
    num_nodes = sum(node["Alive"] for node in ray.nodes())
    if num_nodes < 2 and any(fault.kind == "kill_node" for fault in config.chaos.faults):
        remedy = "this cluster has one node, and the run would die with it: kill_dp_group kills a whole replica"
        raise ConfigError("chaos.faults", "kill_node", remedy)
    parallel = config.parallel
    world = parallel.dp * parallel.tp * parallel.pp * parallel.cp
    num_bundles = world + config.cluster.standby
    have = {"CPU": cluster.num_cpus, "GPU": cluster.num_gpus}
    for resource, each in cluster.bundle(config).items():
        wanted = each * num_bundles
        if wanted > have[resource] + 1e-6:
            asked = f"{world} slots and {config.cluster.standby} standbys at {each:g} {resource} each need {wanted:g}"
            remedy = f"{asked}, this cluster has {have[resource]:g}: lower cluster.standby or the layout, or add nodes"
            raise ConfigError("cluster.standby", config.cluster.standby, remedy)

"""The update phase of a run against the loop of plain.py, on the demo's shapes. Comes in: rounds; goes out: a table.

ftppo: the whole program on a Ray cluster of its own; after each of its iterations it is asked how long the update took:
from the scored batch to the last optimizer step, that is shuffling, calls to the actors, policy and critic steps, the
snapshots after each and the lines in the run's files. Plain: as many steps of a policy (cross-entropy) and a critic
(squared error) on as many sequences, batches at hand, no Ray, nothing written down. Both: one process a rank with one
thread, gloo, the same Megatron-Core configuration, micro-batches, distributed optimizer, clipping and Adam.
"""

import functools
import io
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from ftppo.__main__ import compose_raw
from ftppo.clock import SystemClock
from ftppo.config import Config, load_config
from ftppo.driver.cluster import connect
from ftppo.driver.datafiles import read_rows
from ftppo.driver.display import IterationView, PlainDisplay
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.saver import Saver
from ftppo.driver.supervisor import Supervisor
from ftppo.tasks.build import build_tasks, build_tokenizer
from tests.bench import plain
from tests.bench.pairs import Pairs, table
from tests.process.mesh import Mesh

WARM_UP = 1  # rounds that do not count

DEMO = ("experiment=demo", "chaos.faults=[]", "cluster=cpu", "cluster.standby=0", "cluster.address=local")
CASES = {
    "demo, dp2 tp2": (),
    "demo, dp2 tp2, no snapshots": ("snapshot.every_steps=0",),
    "demo, one rank": ("parallel=single",),
}


def compare(rounds: int) -> str:
    """A table with a row for each case, both sides measured in turn `rounds` times."""
    pairs = [_case(name, overrides, rounds) for name, overrides in CASES.items()]
    return table("update: policy and critic steps, tokens of the sequences", "megatron-core", pairs)


class _Rounds(PlainDisplay):
    """Hears of every iteration how long its update took; the other side has its turn then."""

    def __init__(self, pairs: Pairs, other: Callable[[], float]) -> None:
        super().__init__(SystemClock(), io.StringIO())
        self.pairs, self.other = pairs, other

    def iteration(self, view: IterationView) -> None:
        ours_s, other_s = view.metrics.update_s, self.other()
        assert ours_s is not None, "an iteration that has finished has updated"
        if view.metrics.iteration >= WARM_UP:
            self.pairs.add(ours_s, other_s)


def _case(name: str, overrides: tuple[str, ...], rounds: int) -> Pairs:
    with tempfile.TemporaryDirectory(prefix="ftppo-bench-") as folder:
        config = config_of(folder, overrides, rounds)
        train = config.train
        num_tokens = train.epochs * train.prompts * train.samples * _seq(config)
        pairs = Pairs(name, num_tokens)
        mesh = Mesh()
        ranks = range(config.parallel.num_slots)
        try:
            vocab_size = build_tokenizer(config.task, config.model).vocab_size
            mesh.run(ranks, plain.start, config, vocab_size, str(Path(folder) / "store"))
            _run(config, _Rounds(pairs, lambda: max(mesh.run(ranks, plain.train))))
            mesh.run(ranks, plain.stop)
        finally:
            mesh.close()
    return pairs


def _run(config: Config, display: _Rounds) -> None:
    clock, on_sigterm = SystemClock(), signal.getsignal(signal.SIGTERM)
    with connect(config) as cluster, RunFiles(Path(config.run.dir), clock, resume=False) as files:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own, which ends the process as it is
        supervisor = Supervisor(config, clock, files, display, Saver(config, clock))
        tokenizer = build_tokenizer(config.task, config.model)
        tasks = build_tasks(config, tokenizer, functools.partial(read_rows, config))
        supervisor.run(cluster, tasks, tokenizer, resume=False)


def config_of(folder: str, overrides: tuple[str, ...], rounds: int) -> Config:
    """The demo without warm-up, faults and checkpoints."""
    fixed = (
        f"run.dir={folder}",
        f"checkpoint.url={folder}/checkpoints",
        f"train.iterations={rounds + WARM_UP}",
        "train.warmup_steps=0",
        "checkpoint.every_iterations=0",
    )
    return load_config(compose_raw([*DEMO, *fixed, *overrides]))


def _seq(config: Config) -> int:
    return config.rollout.max_prompt + config.rollout.max_response

"""Faults drawn at random, one after the other: the run ends as if there had been none, and nothing piles up."""

import contextlib
from pathlib import Path

import psutil
import pytest

from ftppo.__main__ import compose_raw
from ftppo.config import load_config
from ftppo.plan.chaos import call_of
from ftppo.plan.soak import draw_faults
from ftppo.worker.inject import HARMLESS
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECIPE = "dp2 long"
KNOBS = (
    "chaos=soak",
    "chaos.soak.num_faults=8",
    "chaos.soak.hang_share=0.125",
    "chaos.soak.seed=1",  # slot 0 stays from the first fault on, so it has let go of five generations at the end
    "cluster.standby=2",
    "recovery.hang_s=10",
)
FIRST_FAULT, LAST = 2, 22  # iterations
GENERATION = 10  # what is left of one generation's groups is more than this, threads and descriptors alike


def test_a_soak_ends_in_the_same_weights(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    drawn = draw_faults(load_config(compose_raw([*RECIPES[RECIPE], *KNOBS])))
    assert len({fault.kind for fault in drawn}) == 8

    with Program(sandbox, tmp_path, *RECIPES[RECIPE], *KNOBS) as program:
        program.wait_until(lambda: program.iterations() >= FIRST_FAULT - 1, "trained an iteration")
        before = most_held(sandbox)
        program.wait_until(lambda: program.iterations() >= LAST, "almost done")
        after = most_held(sandbox)
        done = program.wait()

    assert done.status == 0, done.output
    assert done.summary.status == "finished"
    assert done.reasons("injected") == [
        f"{place}: {one.kind} in {call_of(one.phase)}" for place, one in enumerate(drawn)
    ]
    assert done.reasons("not_injected") == []
    losses = [fault for fault in drawn if fault.kind not in HARMLESS]
    assert [one.generation for one in done.summary.recoveries] == list(range(1, len(losses) + 1))
    assert {one.source for one in done.summary.recoveries} == {"peer"}
    assert max(one.lost_steps for one in done.summary.recoveries) <= 1
    wanted = undisturbed(RECIPE).summary
    assert (done.summary.state_digest, done.summary.reward) == (wanted.state_digest, wanted.reward)
    assert all(late < early + GENERATION for early, late in zip(before, after, strict=True)), (before, after)


def most_held(sandbox: Sandbox) -> tuple[int, int]:
    """The most threads, and the most descriptors, that an actor has."""
    threads, descriptors = [0], [0]
    for process in sandbox.processes():
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            if process.cmdline()[0].startswith("ray::TrainActor"):
                threads.append(process.num_threads())
                descriptors.append(process.num_fds())
    return max(threads), max(descriptors)

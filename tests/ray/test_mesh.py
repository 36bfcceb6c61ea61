"""Real actors in a pool and as a mesh: who gets which slot, how calls spread, and how each failure looks."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from ftppo.clock import SystemClock
from ftppo.driver.cluster import Cluster
from ftppo.driver.detect import survey
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.pool import Pool
from ftppo.errors import StaleGeneration, StorageError
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.types import Sequences
from ftppo.worker.actor import Stamp
from ftppo.worker.meeting import Rendezvous
from tests.ray.conftest import config
from tests.ray.standin import install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LAYOUT = Layout(dp=2, tp=2)
DEVICES = (3, 0, 4, 1, 2)  # where the actors of the bundles say they are
ANSWER_S = 60.0
HANG_S = 3.0
GENERATION = 4


class ProbedPool(Pool):
    """Its actors are real; the devices that they find are DEVICES."""

    def _gather(self, references: Sequence[Any], what: str) -> list[Any]:
        found = super()._gather(references, what)
        if what == "came up":
            found = [replace(place, device=device) for place, device in zip(found, DEVICES, strict=True)]
        return found


@dataclass(frozen=True)
class Fleet:
    """A started pool, and who was to stand where."""

    pool: Pool
    roster: Roster

    def mesh(self, generation: int = GENERATION) -> Mesh:
        handles = {name: self.pool.members[name].handle for name in self.roster.slots}
        return Mesh(replace(self.roster, generation=generation), handles, SystemClock(), HANG_S)


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    pool = ProbedPool(config("parallel=dp2tp2", "cluster.standby=1"), cluster, 32, 0, SystemClock())
    try:
        slots, standby = pool.start()
        install_all(pool, slots)
        yield Fleet(pool, Roster(GENERATION, LAYOUT, slots, standby))
    finally:
        pool.stop()


@pytest.fixture
def mesh(fleet: Fleet) -> Mesh:
    install_all(fleet.pool, fleet.roster.slots)  # a test before may have had actors let go of the generation
    return fleet.mesh()


def install_all(pool: Pool, slots: Sequence[str]) -> None:
    for slot, name in enumerate(slots):
        ray.get(pool.members[name].handle.__ray_call__.remote(install, slot, GENERATION), timeout=ANSWER_S)


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Path]:
    """The file that lets go of who is held; there at the end of the test in any case."""
    path = tmp_path / "release"
    yield path
    path.touch()


def rows(num: int) -> Sequences:
    return Sequences(torch.arange(3 * num).reshape(num, 3), torch.ones(num, 3))


def test_slots_go_by_where_actors_found_themselves(fleet: Fleet) -> None:
    by_device = [f"a{DEVICES.index(device)}" for device in range(5)]
    assert [*fleet.roster.slots, *fleet.roster.standby] == by_device
    assert [fleet.pool.members[name].bundle for name in fleet.roster.slots] == [1, 3, 4, 0]
    pids = {member.place.pid for member in fleet.pool.members.values() if member.place}
    assert len(pids) == 5 and os.getpid() not in pids


def test_results_come_in_slot_order(mesh: Mesh) -> None:
    assert mesh.call("whoami", phase="idle") == [0, 1, 2, 3]


@pytest.mark.parametrize("num", [8, 7])
def test_rows_are_cut_over_replicas_and_joined_in_order(mesh: Mesh, num: int) -> None:
    given = rows(num)
    joined = mesh.call("echo", rows=given, via="mesh", phase="score")
    assert joined.tokens.equal(given.tokens) and joined.response.equal(given.response)
    first, second = (part.tolist() for part in given.tokens[:, 0].tensor_split(2))
    assert mesh.call("last_seen", phase="score") == [first, first, second, second]


def test_a_busy_actor_answers_its_beacon(fleet: Fleet, mesh: Mesh, release: Path) -> None:
    handle = mesh.handles[fleet.roster.actor(2)]
    call = handle.call.remote(Stamp(GENERATION, wanted=True), "hold", 2, str(release))
    phase = ""
    while phase != "update":
        beacon = ray.get(handle.beacon.remote(), timeout=ANSWER_S)
        phase = beacon.phase
    assert (beacon.slot, beacon.generation, beacon.step) == (2, GENERATION, 7)
    assert ray.wait([call], timeout=0)[0] == []
    release.touch()
    ray.get(call, timeout=ANSWER_S)


@pytest.mark.parametrize("deadline_s", [HANG_S, None], ids=["deadline", "no move"])
def test_silence_breaks_the_generation_and_names_the_slot(mesh: Mesh, release: Path, deadline_s: float | None) -> None:
    with pytest.raises(GenerationBroken) as caught:
        mesh.call("hold", 1, str(release), phase="update", deadline_s=deadline_s)
    (seen,) = caught.value.observations
    assert (seen.slot, seen.actor, seen.process_dead) == (1, mesh.roster.actor(1), None)
    assert seen.silent_s is not None and seen.silent_s >= HANG_S / 2
    assert (caught.value.phase, caught.value.roster) == ("update", mesh.roster)


def test_who_moves_may_take_longer(mesh: Mesh) -> None:
    assert mesh.call("crawl", 1, 2 * HANG_S, phase="update") == ["done"] * 4


def test_an_exception_names_its_slot_and_place(mesh: Mesh) -> None:
    with pytest.raises(GenerationBroken) as caught:
        mesh.call("fail", 3, phase="score")
    (seen,) = caught.value.observations
    assert (seen.slot, seen.process_dead, seen.peer_lost) == (3, False, False)
    assert seen.error is not None
    assert (seen.error.type, seen.error.message) == ("ValueError", "slot 3 divides by nothing")
    assert "in fail" in seen.error.trace


def test_what_concerns_no_rank_is_raised_as_it_is(mesh: Mesh) -> None:
    with pytest.raises(StorageError, match="the bucket is gone"):
        mesh.call("refuse", phase="save")


@pytest.mark.parametrize("generation", [GENERATION - 1, GENERATION + 1])
def test_calls_of_another_generation_are_refused(fleet: Fleet, generation: int) -> None:
    with pytest.raises(GenerationBroken) as caught:
        fleet.mesh(generation).call("whoami", phase="idle")
    assert {seen.error.type for seen in caught.value.observations if seen.error} == {"StaleGeneration"}
    assert not any(seen.process_dead for seen in caught.value.observations)


def test_a_generation_is_entered_once(fleet: Fleet) -> None:
    handle = fleet.pool.members[fleet.roster.actor(0)].handle
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(handle.join.remote(Rendezvous(GENERATION, "127.0.0.1", 1), None, 1.0), timeout=ANSWER_S)
    refused = caught.value.cause
    assert isinstance(refused, StaleGeneration)
    assert (refused.call_generation, refused.own_generation) == (GENERATION, GENERATION)


def test_a_killed_process_is_seen_at_once_and_by_the_survey(fleet: Fleet, mesh: Mesh, release: Path) -> None:
    """The last test here: one actor is lost for good."""
    name = fleet.roster.actor(2)
    place = fleet.pool.members[name].place
    assert place is not None
    os.kill(place.pid, signal.SIGKILL)
    with pytest.raises(GenerationBroken) as caught:
        mesh.call("hold", 0, str(release), phase="update")
    (seen,) = caught.value.observations
    assert (seen.slot, seen.actor, seen.process_dead) == (2, name, True)
    release.touch()
    asked = survey(mesh.roster, mesh.handles, {}, caught.value.observations, SystemClock(), ANSWER_S)
    assert [(one.slot, one.process_dead, one.answered_control) for one in asked if one.slot == 2] == [(2, True, None)]
    assert [one.answered_control for one in asked if one.slot != 2] == [True] * 3

    bundle = fleet.pool.members[name].bundle
    fleet.pool.retire(name)
    (fresh,) = fleet.pool.refill()
    assert (fleet.pool.members[fresh].bundle, name in fleet.pool.members) == (bundle, False)

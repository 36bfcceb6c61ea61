"""On one GPU, with NCCL: groups come and go, what is blocked is woken, a standby goes on, and the bits are the same."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ftppo.config import Config, Fault, Rollout
from ftppo.plan.topology import Layout
from ftppo.types import Batch
from tests.faults.program import Outcome, faults, run_program
from tests.gpu import calls as gpu
from tests.gpu.conftest import DEADLINE_S, Fresh
from tests.process import calls, case
from tests.process.calls import Kind
from tests.process.mesh import Mesh, RankFailed
from tests.process.world import BY_DATA, World
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]

REBUILDS = 10
STEPS = REBUILDS + 2
SLACK_BYTES = 64 * 2**20  # of the device, which gives memory out in large blocks
GONE_S = 30.0  # until the device has the memory of a killed process back
ONE, TWO = case.config(case.ONE), case.config(Layout(dp=2))
SHARED_REFUSED = ("ncclInvalidUsage", "Duplicate GPU", "Multiple Ranks are using the same GPU")


@dataclass(frozen=True)
class Undisturbed:
    """A run in which nothing happens. Lists are by version; entries by slot."""

    batch: Batch
    digests: list[list[str]]  # after version 0, 1, ...


@pytest.fixture(scope="module")
def undisturbed(kind: Kind) -> Undisturbed:
    """One slot, over STEPS steps."""
    mesh = Fresh(DEADLINE_S)
    try:
        return _undisturbed(mesh, ONE, kind, STEPS)
    finally:
        mesh.close()


def test_rebuilding_groups_costs_no_memory_and_no_bit(mesh: Mesh, kind: Kind, undisturbed: Undisturbed) -> None:
    levels = []
    with _begun(mesh, ONE, kind) as world:
        for version in range(1, REBUILDS + 1):
            _step(world, undisturbed.batch, version)
            assert world.each("release") == [0]
            levels += mesh.run([0], gpu.level)
            world.join()
        for version in range(REBUILDS + 1, STEPS + 1):
            _step(world, undisturbed.batch, version)
            assert world.digests() == undisturbed.digests[version]
    first, *later = levels[1:]  # what is made at first use is there by then
    assert {level.allocated for level in later} == {first.allocated}
    assert max(level.used for level in later) <= first.used + SLACK_BYTES
    assert max(level.threads for level in later) <= first.threads
    assert max(level.files for level in later) <= first.files


def test_a_survivor_is_woken_and_goes_on_with_a_newcomer(mesh: Mesh, kind: Kind) -> None:
    mesh.run([0, 1], gpu.share_gpu)
    try:
        undisturbed = _undisturbed(mesh, TWO, kind, 2)
    except RankFailed as refused:
        if any(word in str(refused) for word in SHARED_REFUSED):
            pytest.skip("this NCCL lets no two ranks share a GPU")
        raise
    with _begun(mesh, TWO, kind) as world:
        _step(world, undisturbed.batch, 1)
        [before] = mesh.run([0], gpu.level)
        [woken] = mesh.run([0], gpu.wake, False, mesh.processes[1].pid, *_next(world, undisturbed.batch, 2))
        assert woken.bereaved.error is not None
        assert woken.bereaved.groups_alive == 0
        world.replace(1)
        mesh.run([1], gpu.share_gpu)
        _go_on(world, undisturbed, 1, {1: world.addresses[0]})
        [after] = mesh.run([0], gpu.level)
    assert after.allocated <= before.allocated + SLACK_BYTES
    assert after.used <= before.used + SLACK_BYTES


def test_a_step_that_waits_for_the_device_is_woken_and_run_again(
    mesh: Mesh, kind: Kind, undisturbed: Undisturbed
) -> None:
    with _begun(mesh, ONE, kind) as world:
        _step(world, undisturbed.batch, 1)
        [before] = mesh.run([0], gpu.level)
        [woken] = mesh.run([0], gpu.wake, True, None, *_next(world, undisturbed.batch, 2))
        assert woken.bereaved.groups_alive == 0
        _go_on(world, undisturbed, 1, {})
        [after] = mesh.run([0], gpu.level)
    assert after.allocated == before.allocated
    assert after.used <= before.used + SLACK_BYTES


def test_a_trial_whose_other_standby_does_not_come_is_woken(mesh: Mesh, kind: Kind, undisturbed: Undisturbed) -> None:
    mesh.run([0], gpu.stand_by, 0, ONE, kind)
    mesh.run([0], gpu.wake_trial)
    [address] = mesh.run([0], gpu.stand_by, 0, ONE, kind)  # the device is good for what comes next
    with _begun(mesh, ONE, kind) as world:
        assert world.addresses[0] != address
        _step(world, undisturbed.batch, 1)
        assert world.digests() == undisturbed.digests[1]


def test_a_standby_on_the_same_gpu_goes_on(mesh: Mesh, kind: Kind, undisturbed: Undisturbed) -> None:
    world = _begun(mesh, ONE, kind)
    for version in (1, 2):
        _step(world, undisturbed.batch, version)
    [alone] = mesh.run([0], gpu.level)
    mesh.run([1], gpu.stand_by, 0, ONE, kind)
    mesh.run([1], gpu.promote, 0, world.generation + 1, 2, world.addresses[0])
    assert mesh.run([1], gpu.as_slot, 0, calls.call, *world.arguments("digest")) == undisturbed.digests[2]

    mesh.processes[0].kill()
    mesh.run([1], gpu.as_slot, 0, calls.call, *_next(world, undisturbed.batch, 3))
    assert mesh.run([1], gpu.as_slot, 0, calls.call, *world.arguments("digest")) == undisturbed.digests[3]
    until = time.monotonic() + GONE_S
    while (level := mesh.run([1], gpu.level)[0]).used > alone.used + SLACK_BYTES:
        assert time.monotonic() < until, f"{level} where the one before held {alone}"
        time.sleep(1.0)
    assert level.allocated <= alone.allocated + SLACK_BYTES


def test_a_long_step_has_the_same_bits_each_time(mesh: Mesh, kind: Kind) -> None:
    config = ONE.model_copy(update={"rollout": Rollout(max_prompt=case.PROMPT, max_response=1024 - case.PROMPT)})
    with _begun(mesh, config, kind) as world:
        batch = _long_batch(config)
        _step(world, batch, 1)
        [digests] = mesh.run([0], gpu.again, 1, 4, *_next(world, batch, 2))
    assert len(set(digests)) == 1


@pytest.fixture(scope="module")
def recipe(kind: Kind) -> tuple[str, ...]:
    """What the runs of the whole program train with."""
    return ("experiment=smoke", "parallel=single", f"cluster={kind}", "train.iterations=5", "train.epochs=2")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, recipe: tuple[str, ...]) -> Outcome:
    """The run that nothing disturbs."""
    with Sandbox() as sandbox:
        done = run_program(sandbox, tmp_path_factory.mktemp("calm"), *recipe)
    assert done.status == 0, done.output
    return done


@pytest.mark.parametrize("fault", ["sigkill", "sigterm"])
def test_the_program_ends_in_the_weights_of_an_undisturbed_run(
    tmp_path: Path, recipe: tuple[str, ...], calm: Outcome, fault: str
) -> None:
    shared = ("cluster.gpus_per_actor=0.5", "cluster.standby=1")
    planned = [Fault.model_validate({"iteration": 2, "phase": "update.backward", "slot": 0, "kind": fault})]
    with Sandbox() as sandbox:
        found = run_program(sandbox, tmp_path, *recipe, *shared, faults(planned))
    assert found.status == 0, found.output
    assert found.summary.state_digest == calm.summary.state_digest
    assert [one.plan for one in found.summary.recoveries] == ["substitute"]


def _begun(mesh: Mesh, config: Config, kind: Kind) -> World:
    """A world at version 0, in which no two models are alike."""
    world = World(mesh, config, kind=kind)
    mesh.run(world.slots, calls.tell_models_apart)
    world.each("snapshot", 0)
    return world


def _undisturbed(mesh: Mesh, config: Config, kind: Kind, num_steps: int) -> Undisturbed:
    with _begun(mesh, config, kind) as world:
        batch = case.batch(world.score(case.sequences()), config.algo)
        digests = [world.digests()]
        for version in range(1, num_steps + 1):
            _step(world, batch, version)
            digests.append(world.digests())
    return Undisturbed(batch, digests)


def _step(world: World, batch: Batch, version: int) -> None:
    """The step that leads to `version`, and its copy at the buddy."""
    assert not world.step(case.spec(version - 1), batch).skipped
    world.each("settle")


def _next(world: World, batch: Batch, version: int) -> tuple[Any, ...]:
    """What `calls.call` needs for the step that leads to `version`."""
    return world.arguments("ppo_step", case.spec(version - 1), rows=batch, via=BY_DATA)


def _go_on(world: World, undisturbed: Undisturbed, version: int, sources: dict[int, Any]) -> None:
    """Enter the next generation at `version`, with the bits that it had, and run the next step."""
    world.join()
    world.each("restore", version, sources)
    world.each("regain", version)
    assert world.digests() == undisturbed.digests[version]
    _step(world, undisturbed.batch, version + 1)
    assert world.digests() == undisturbed.digests[version + 1]


def _long_batch(config: Config) -> Batch:
    """Answers that fill all of their places."""
    seq = config.rollout.max_prompt + config.rollout.max_response
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, calls.VOCAB, (case.NUM, seq), generator=draw)
    response = (torch.arange(seq) >= case.PROMPT).float().expand(case.NUM, seq).contiguous()

    def drawn(middle: float) -> torch.Tensor:
        return (middle + 0.1 * torch.randn(case.NUM, seq, generator=draw)) * response

    logprobs, reference, values, advantages, returns = (drawn(middle) for middle in (-4.0, -4.0, 0.0, 0.0, 0.0))
    counts = float(response.sum()), case.NUM
    return Batch(tokens, response, logprobs, reference, values, advantages, returns, *counts)

"""A small run on disk: eight iterations, a recovery from a peer, and one from a checkpoint that runs two again."""

from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.driver.record import (
    CheckpointRecord,
    IterationMetrics,
    Layout,
    RecoveryRecord,
    RecoverySeconds,
    Reward,
    Summary,
)
from ftppo.driver.runfiles import RunFiles

PARTS = RecoverySeconds(detect=0.1, fence=0.5, promote=0.1, groups=1.0, state=0.3, first_step=0.9, total=3.0)


def metrics(iteration: int, reward: float | None = None) -> IterationMetrics:
    return IterationMetrics(
        iteration,
        step=4 * iteration + 4,
        reward_mean=iteration / 10 if reward is None else reward,
        reward_std=0.1,
        kl=0.01 * iteration,
        policy_grad_norm=float("inf") if iteration == 2 else 1.0,
        tokens_per_s=800.0,
        rollout_s=2.0,
        update_s=1.0,
    )


@pytest.fixture
def peer_recovery() -> RecoveryRecord:
    return RecoveryRecord(2, "crash", (3,), "update", "substitute", "peer", 0, PARTS)


@pytest.fixture
def old_recovery() -> RecoveryRecord:
    return RecoveryRecord(3, "node_lost", (0, 1), "rollout", "shrink", "checkpoint", 8, PARTS)


@pytest.fixture
def checkpoint() -> CheckpointRecord:
    return CheckpointRecord(16, "s3://bucket/a&b/step-16", 3 * 2**20, 0.1, 0.9, 2)


@pytest.fixture
def summary(peer_recovery: RecoveryRecord, old_recovery: RecoveryRecord, checkpoint: CheckpointRecord) -> Summary:
    return Summary(
        run="sample",
        status="finished",
        reason=None,
        iterations=8,
        steps=32,
        layout=Layout(2, 2, 1, 1),
        standby=1,
        state_digest="ab" * 32,
        reward=Reward(0.0, 0.7),
        recoveries=(peer_recovery, old_recovery),
        checkpoints=(checkpoint,),
    )


@pytest.fixture
def run_folder(
    tmp_path: Path,
    summary: Summary,
    peer_recovery: RecoveryRecord,
    old_recovery: RecoveryRecord,
    checkpoint: CheckpointRecord,
) -> Path:
    """The run as a finished one leaves it, without its report."""
    clock, folder = FakeClock(1_700_000_000.0), tmp_path / "sample"
    with RunFiles(folder, clock, resume=False) as files:
        files.config({"seed": 7, "model": {"layers": 2}})
        files.at(generation=1)
        for iteration in (0, 1, 2, 3, 4, 5, 4, 5, 6, 7):
            files.at(iteration=iteration, step=4 * iteration)
            clock.advance(3.0)
            if iteration == 2:
                files.record("fault", reason="<script>alert('x')</script>", slot=3)
                files.at(generation=2)
                files.recovery(peer_recovery)
            if iteration == 4 and files.stamp.generation == 2 and files.recoveries() == (peer_recovery,):
                files.checkpoint(checkpoint)
            again = files.stamp.generation == 3 and iteration in (4, 5)
            files.iteration(metrics(iteration, reward=iteration / 10 + 0.02 if again else None))
            if iteration == 5 and not again:
                files.at(generation=3, iteration=4, step=16)
                files.recovery(old_recovery)
        files.record("finished")
        files.summary(summary)
    return folder

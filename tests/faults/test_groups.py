"""GRPO, which has no critic: what is lost comes back, and the weights end as if nothing had happened."""

from pathlib import Path

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.config import Fault
from ftppo.storage.url import open_store
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOSSES = (
    Fault(iteration=1, phase="update.optimizer", slot=1, kind="sigkill"),
    Fault(iteration=2, phase="rollout", slot=0, kind="exit"),
    Fault(iteration=3, phase="save", slot=0, kind="sigkill"),
)


def test_grpo_ends_as_if_nothing_had_happened(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    done = run_program(sandbox, tmp_path, *RECIPES["grpo"], "cluster.standby=2", faults(LOSSES))
    assert done.status == 0, done.output
    assert [(one.slots, one.source, one.lost_steps) for one in done.summary.recoveries] == [
        ((loss.slot,), "peer", 0) for loss in LOSSES
    ]
    wanted = undisturbed("grpo").summary
    assert (done.summary.state_digest, done.summary.reward) == (wanted.state_digest, wanted.reward)
    steps = done.rows("step")
    assert min(row["policy_grad_norm"] for row in steps) > 0, "answers to a prompt differ in worth"
    assert min(row["differing"] for row in done.rows("iteration")) < 1, "some are drawn in place of others"
    assert {(row["value_loss"], row["critic_grad_norm"]) for row in steps} == {(None, None)}


def test_grpo_saves_no_critic(undisturbed: Undisturbed) -> None:
    catalog = Catalog(open_store(str(undisturbed("grpo").folder / "checkpoints")))
    manifest = catalog.latest()
    assert manifest is not None
    keys = {item.key for item in catalog.index(manifest).items}
    assert any(key.startswith("reference.") for key in keys) and not any(key.startswith("critic.") for key in keys)

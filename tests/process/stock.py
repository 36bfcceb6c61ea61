"""Saves of stock megatron-core: `dist_checkpointing.save` with its default strategy, and the processes it leaves."""

import multiprocessing
from pathlib import Path
from typing import Any

import psutil
import torch
from megatron.core import dist_checkpointing

from tests.process import calls


def save_as_megatron(context: calls.Context, state: dict[str, Any], folder: Path) -> None:
    """Save a sharded state dict of all ranks; what is left of it in this process is for end_children."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # its writer starts a process
    with context["engine"].device.building(), torch.no_grad():
        dist_checkpointing.save(state, str(folder))


def end_children(context: calls.Context, slot: int) -> None:
    """The process that megatron-core's writer has started would outlive this one."""
    for child in psutil.Process().children(recursive=True):
        child.kill()


def save_policy(context: calls.Context, slot: int, folder: Path, metadata: dict[str, Any]) -> None:
    """The policy's weights alone, as Megatron-Core names and cuts them."""
    save_as_megatron(context, context["engine"].policy.module.sharded_state_dict(metadata=metadata), folder)
    end_children(context, slot)


def save_learner(context: calls.Context, slot: int, folder: Path, sharding: str) -> None:
    """The policy and its optimizer, whose state is kept as the type `sharding`."""
    learner = context["engine"].policy
    with context["engine"].device.building(), torch.no_grad():
        model = learner.module.sharded_state_dict()
        optimizer = learner.optimizer.sharded_state_dict(model, metadata={"distrib_optim_sharding_type": sharding})
    save_as_megatron(context, {"model": model, "optimizer": optimizer, "iteration": 7}, folder)
    end_children(context, slot)


def load_policy(context: calls.Context, slot: int, folder: Path) -> None:
    """Fill the policy's weights by megatron-core's own means."""
    module = context["engine"].policy.module
    wanted = module.sharded_state_dict()
    with context["engine"].device.building(), torch.no_grad():
        loaded = dist_checkpointing.load(dict(wanted), str(folder))
        module.load_state_dict({name: loaded[name] for name in wanted})

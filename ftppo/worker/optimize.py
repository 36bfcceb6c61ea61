"""From gradients to new weights. Comes in: learners with their gradients added up; goes out: norms, a step taken."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from ftppo.types import StepResult
from ftppo.worker.beacon import Progress
from ftppo.worker.model import Learner
from ftppo.worker.state import Part

type Move = tuple[Learner, float, float]  # with the norm of its gradients and its learning rate

OUT_OF_TURN = StepResult(*(0.0,) * 8, skipped=True)  # of a step whose predecessor was not done


def reload_main_weights(learners: Sequence[Learner]) -> None:
    """The optimizers' own weights are the models'."""
    for learner in learners:
        learner.optimizer.reload_model_params()


def restart(learners: Sequence[Learner], parts: Sequence[Part]) -> None:
    """The optimizers as if they had not taken a step; `parts` are those of the learners' state."""
    for part in parts:
        if ".exp_avg" in part.piece.key or part.piece.key.endswith("optimizer.step"):
            part.piece.tensor.zero_()
    reload_main_weights(learners)


def zero_gradients(learner: Learner) -> None:
    """Ready for the first micro-batch."""
    learner.model.zero_grad_buffer()
    learner.optimizer.zero_grad()


def poison_if_asked(progress: Progress, module: Any) -> None:
    """Spoil a gradient, where an injected fault wants it."""
    if progress.poisoned:
        progress.poisoned = False
        next(module.parameters()).main_grad.fill_(math.nan)


def agree(learners: Sequence[Learner], sums: Tensor) -> tuple[list[float], Tensor]:
    """Each learner's gradient norm over all ranks, and `sums` [k] over all that share the mini-batch, in one message.

    The gradients are handed to the optimizers on the way. Everybody gets the same norms and sums.
    """
    for learner in learners:
        learner.optimizer.prepare_grads()
    squares = [_square(learner.optimizer.get_grads_for_grad_norm(), sums) for learner in learners]
    # TP ranks see the same tokens: one of them counts. Pipeline stages before the last have counted nothing.
    counted = sums if parallel_state.get_tensor_model_parallel_rank() == 0 else torch.zeros_like(sums)
    whole = torch.cat((torch.stack(squares), counted))
    torch.distributed.all_reduce(whole)
    whole = whole.cpu()
    return whole[: len(learners)].sqrt().tolist(), whole[len(learners) :]


@torch.no_grad()
def move(moves: Sequence[Move], clip_grad: float) -> None:
    """Each learner's optimizer step, on gradients clipped to the norm `clip_grad`, and its new weights on all ranks."""
    for learner, norm, lr in moves:
        for group in learner.optimizer.param_groups:
            group["lr"] = lr
        if norm > clip_grad:
            torch._foreach_mul_(_gradients(learner), clip_grad / norm)
        learner.optimizer.step_with_ready_grads()


def _gradients(learner: Learner) -> list[Tensor]:
    return [param.grad for param in learner.optimizer.get_parameters() if param.grad is not None]


def _square(gradients: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(torch._foreach_norm(gradients)).square().sum() if gradients else like.new_zeros(())


def result_of(means: Tensor, norms: Sequence[float], skipped: bool) -> StepResult:
    """A step's scalars, from the means of the policy (4) and, where one learned, of the critic (2), and their norms."""
    loss, entropy, kl, clipped, *of_critic = means.tolist()
    value_loss, value_clipped = of_critic or (None, None)
    critic_norm = norms[1] if of_critic else None
    return StepResult(loss, value_loss, entropy, kl, clipped, value_clipped, norms[0], critic_norm, skipped)

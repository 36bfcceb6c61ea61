"""From gradients to new weights. Comes in: learners with their gradients added up; goes out: norms, a step taken."""

from collections.abc import Sequence

from torch import Tensor

from ftppo.types import StepResult
from ftppo.worker.device import Device
from ftppo.worker.model import Learner

type Move = tuple[Learner, float, float]  # with the norm of its gradients and its learning rate

OUT_OF_TURN = StepResult(*(0.0,) * 8, skipped=True)  # of a step whose predecessor was not done


def zero_gradients(learner: Learner) -> None:
    """Ready for the first micro-batch."""
    learner.model.zero_grad_buffer()
    learner.optimizer.zero_grad()


def prepare_gradients(learner: Learner, device: Device, clip_grad: float) -> float:
    """Hand the gradients to the optimizer, clipped; their global norm before that, the same on every rank."""
    with device.building():
        learner.optimizer.prepare_grads()
        return float(learner.optimizer.clip_grad_norm(clip_grad))


def move(moves: Sequence[Move], device: Device) -> None:
    """Each learner's optimizer step, and its new weights on all ranks."""
    for learner, _, lr in moves:
        for group in learner.optimizer.param_groups:
            group["lr"] = lr
        with device.building():
            learner.optimizer.step_with_ready_grads()


def result_of(
    policy: Tensor, value: Tensor, num_tokens: float, policy_norm: float, critic_norm: float, skipped: bool
) -> StepResult:
    """Means over the mini-batch's tokens, from the sums of the policy [5] and the critic [2]."""
    loss, entropy, kl, clipped = (float(item) / num_tokens for item in policy[:4])
    value_loss, value_clipped = (float(item) / num_tokens for item in value)
    return StepResult(loss, value_loss, entropy, kl, clipped, value_clipped, policy_norm, critic_norm, skipped)

"""The models of a rank by their roles. Comes in: the config, inside process groups; goes out: models with weights.

The policy answers and learns; a critic learns; a reference stays what the policy was when PPO began; a reward model is
what its folder holds, is read anew wherever it is built, and so needs no copy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatron.core.models.gpt import GPTModel

from ftppo.checkpoint.huggingface import reader as huggingface
from ftppo.checkpoint.huggingface.names import OUTPUT
from ftppo.checkpoint.torchdist import reader as torchdist
from ftppo.classifier import classifier_of
from ftppo.config import Config
from ftppo.tasks.tokenizer import padded
from ftppo.worker.device import Device
from ftppo.worker.model import Learner, build_learner, build_model
from ftppo.worker.state import initialize, model_parts

BEGUN = ("policy", "critic", "reference")  # those that begin with the policy's weights, as far as they have them
ROLES = (*BEGUN, "reward")


def build_models(
    config: Config, device: Device, vocab_size: int, seq: int, tick: Callable[[str], None], blank: bool = False
) -> dict[str, Any]:
    """All that the config asks for: "policy" and "critic" as Learners, "reference" and "reward" as frozen GPTModels.

    Those of BEGUN are left `blank` where their state will come from elsewhere: to draw or read it takes time.
    """
    learning = ("policy", "critic") if config.algo.needs_critic else ("policy",)
    drawn = {role: build_role(role, config, device, vocab_size, seq, blank) for role in learning}
    models: dict[str, Any] = {role: build_learner(role, model, config, device, tick) for role, model in drawn.items()}
    frozen = {"reference": config.algo.needs_reference, "reward": config.reward.path is not None}
    for role in (role for role, needed in frozen.items() if needed):
        models[role] = build_role(role, config, device, vocab_size, seq, blank).requires_grad_(False)
    return models


def modules_of(models: Mapping[str, Any], roles: Sequence[str] = ROLES) -> dict[str, GPTModel]:
    """Those of `models` that have one of `roles`, without their wrapping."""
    found = {role: models[role] for role in roles if role in models}
    return {role: model.module if isinstance(model, Learner) else model for role, model in found.items()}


def build_role(role: str, config: Config, device: Device, vocab_size: int, seq: int, blank: bool = False) -> GPTModel:
    """One model as it begins; one of BEGUN where `blank` has zeros. Raises ConfigError where a folder lacks a part."""
    if role == "reward":
        assert config.reward.path is not None
        shape = classifier_of(config.reward.path)
        own = config.model_copy(update={"model": shape})
        model = build_model(own, device, padded(shape.vocab or 0), seq, scalar_head=True)
        huggingface.read_weights([part.piece for part in model_parts(model, "")], shape, classifies=True)
        return model
    model = build_model(config, device, vocab_size, seq, scalar_head=role == "critic")
    if blank:
        for parameter in model.parameters():
            parameter.data.zero_()
    else:
        begin(model, role, config)
    return model


def begin(model: GPTModel, role: str, config: Config) -> int:
    """Fill every weight of one of BEGUN, this rank's slices alone; returns the bytes read, 0 where they are drawn.

    A critic has the policy's trunk, and a head of 0. Raises ConfigError, CheckpointError where what is read lacks what
    the model needs.
    """
    if config.model.path is None and config.model.weights is None:
        initialize(model, "critic" if role == "critic" else "policy", config.seed, config.model.init_std)
        return 0
    pieces = [part.piece for part in model_parts(model, "")]
    head = OUTPUT if role == "critic" else None
    for piece in pieces:
        if piece.key == head:
            piece.tensor.zero_()
    pieces = [piece for piece in pieces if piece.key != head]
    if config.model.weights is not None:
        return torchdist.read_weights(pieces, config, model.num_tokens)
    return huggingface.read_weights(pieces, config.model)

"""Tiny models of transformers, one a family, with weights that all count, and what a mesh makes of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ftppo.config import Algo, Config, Model
from ftppo.plan.packing import even
from ftppo.plan.topology import Layout
from ftppo.pretrained import with_shape
from ftppo.worker import update
from ftppo.worker.roles import begin
from ftppo.worker.update import Shifted
from tests.process import case
from tests.process.calls import Context

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 64, "eos_token_id": 3, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {  # 70 tokens: padded; heads larger than hidden / heads; tied; no groups
    "llama": {"vocab_size": 70, "head_dim": 16, "rope_parameters": LLAMA3},
    "qwen2": {
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
    },
    "qwen3": {"head_dim": 32},
    "mistral": {"num_key_value_heads": 8, "sliding_window": case.SEQ},
}


def make(family: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random model of transformers, saved to `folder` in several files."""
    from transformers import AutoModelForCausalLM

    return _saved(AutoModelForCausalLM, family, folder, dtype, changes)


def make_classifier(family: str, folder: Path, **changes: Any) -> Any:
    """The same with one label, of a shape of its own: `model(tokens).logits` are [n, 1]."""
    from transformers import AutoModelForSequenceClassification

    own = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_labels": 1}
    return _saved(AutoModelForSequenceClassification, family, folder, torch.float32, own | changes)


def _saved(kind: Any, family: str, folder: Path, dtype: torch.dtype, changes: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **(SHAPE | FAMILIES[family] | changes))
    model = kind.from_config(config, dtype=torch.float32).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0.0, 0.15, generator=draw)
            if "norm" in name:
                weight.add_(1.0)
    model = model.to(dtype)
    model.save_pretrained(folder, max_shard_size="60KB")
    return model


def config(folder: Path, layout: Layout, **sections: Any) -> Config:
    """The process tests' problem with the model in `folder`, greedy."""
    base = case.config(layout, algo=Algo(kl_coef=0.1), **sections)
    dtype = sections["model"].dtype if "model" in sections else "auto"
    rollout = base.rollout.model_copy(update={"temperature": 0.0, "batch": 3})
    return base.model_copy(update={"model": with_shape(Model(path=str(folder), dtype=dtype)), "rollout": rollout})


def logits(context: Context, slot: int, tokens: Tensor) -> Tensor | None:
    """Whole logits [n, seq, vocab] of the policy on `tokens` [n, seq]; None but on the last pipeline stage."""
    from megatron.core import parallel_state

    model = context["engine"].policy.model

    def loss_of(_: Shifted) -> Callable[[Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]]:
        one = torch.ones((), dtype=torch.int)
        return lambda out: (out.new_zeros(()), one, {"out": out.detach()})

    model.eval()
    with torch.no_grad():
        store = update._run(
            model, tokens, {}, even(len(tokens), len(tokens) // 2, tokens.shape[1]), loss_of, forward_only=True
        )
    model.train()
    if not parallel_state.is_pipeline_last_stage():
        return None
    local = torch.cat([item["out"] for item in store]).contiguous()
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(local) for _ in range(group.size())]
    torch.distributed.all_gather(parts, local, group=group)
    return update._gather_sequence(torch.cat(parts, dim=-1))


def read_again(context: Context, slot: int) -> tuple[int, int]:
    """Fill the policy anew: (bytes read, elements that this rank holds)."""
    engine = context["engine"]
    held = [part.piece.tensor.numel() for part in engine.parts if is_policy(part.piece.key)]
    return begin(engine.policy.module, "policy", engine.config), sum(held)


def is_policy(key: str) -> bool:
    """Whether a part of the state is a weight of the policy."""
    return not key.startswith(("critic.", "reference.", "optimizer."))

"""The models. Comes in: Config and Device, inside process groups; goes out: Megatron-Core modules, their optimizers.

Policy and critic have the same trunk; the critic's output is one number a token. Building uses process groups but no
communication, so a rank can build alone in a world of torch's `fake` backend.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor

from ftppo.config import Config
from ftppo.worker.attention import SdpaAttention
from ftppo.worker.device import Device
from ftppo.worker.norm import RMSNorm
from ftppo.worker.rope import Rotary, inverse_frequencies

NEVER = -1e9  # a logit: finite, as infinity times a probability of 0 would be no number


@dataclass
class Learner:
    """A model under training and its optimizer."""

    role: str  # "policy" | "critic"
    model: DistributedDataParallel
    optimizer: MegatronOptimizer

    @property
    def prefix(self) -> str:
        """What the names of its state begin with: a policy's are Megatron-Core's own."""
        return "" if self.role == "policy" else f"{self.role}."

    @property
    def module(self) -> GPTModel:
        """The model without its data-parallel wrapping."""
        return self.model.module


def transformer_config(config: Config, device: Device) -> TransformerConfig:
    """Megatron-Core's configuration for this model and layout."""
    model, parallel = config.model, config.parallel
    cut_sequence = parallel.sequence_parallel
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_size,
        add_qkv_bias=model.family == "qwen2",
        qk_layernorm=model.family == "qwen3",
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        context_parallel_size=parallel.cp,
        sequence_parallel=parallel.tp > 1 and (device.kind == "cuda" if cut_sequence is None else cut_sequence),
        params_dtype=device.dtype,
        pipeline_dtype=device.dtype,
        bf16=device.dtype == torch.bfloat16,
        perform_initialization=False,  # ftppo/worker/state.py draws weights by name, the same in every layout
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        calculate_per_token_loss=True,  # losses arrive divided by the global token count: gradients are plain sums
        deallocate_pipeline_outputs=True,
        batch_p2p_comm=device.kind == "cuda",
        variable_seq_lengths=config.train.micro_tokens is not None,  # pipeline stages tell each other what comes
        moe_token_dispatcher_type="alltoall",  # without experts it is nothing, but the default refuses the line above
    )


def build_model(config: Config, device: Device, vocab_size: int, seq: int, scalar_head: bool = False) -> GPTModel:
    """This rank's part of a model, with `scalar_head` of a critic or classifier. Weights are left as they come.

    Tokens from the model's attribute `num_tokens` up to `vocab_size` only pad the vocabulary: no output names one.
    """
    transformer = transformer_config(config, device)
    post_process = parallel_state.is_pipeline_last_stage()
    rotary = Rotary(inverse_frequencies(config.model))
    with device.building():
        model = GPTModel(
            config=transformer,
            transformer_layer_spec=_block_spec(transformer, rotary),
            vocab_size=vocab_size,
            max_sequence_length=seq,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=post_process,
            parallel_output=True,
            share_embeddings_and_output_weights=config.model.tie_embeddings and not scalar_head,
            position_embedding_type="none",  # core attention turns queries and keys itself
        )
        if scalar_head and post_process:
            model.output_layer = ScalarHead(transformer)
    model.rotary, model.num_tokens = rotary, config.model.vocab or vocab_size
    if post_process and not scalar_head and model.num_tokens < vocab_size:
        model.output_layer.register_forward_hook(_hide_padding(model.num_tokens))
    return model.to(device.torch)


def build_learner(role: str, model: GPTModel, config: Config, device: Device, tick: Callable[[str], None]) -> Learner:
    """Wrap a model for data parallelism with the distributed optimizer (Adam, moments allocated and zero).

    `tick` is told when the reduction of gradients ("reduce") and the gathering of weights ("gather") begin.
    """
    with device.building():
        ddp = DistributedDataParallel(
            config=model.config,
            ddp_config=DistributedDataParallelConfig(
                use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=False
            ),
            module=model,
        )
        model.config.finalize_model_grads_func = _telling(tick, "reduce", _finalize_gradients)
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=config.train.policy_lr,
                weight_decay=config.train.weight_decay,
                adam_beta1=config.train.adam_beta1,
                adam_beta2=config.train.adam_beta2,
                adam_eps=config.train.adam_eps,
                clip_grad=config.train.clip_grad,
                bf16=device.dtype == torch.bfloat16,
                params_dtype=device.dtype,
                use_distributed_optimizer=True,
            ),
            [ddp],
            use_gloo_process_groups=False,
        )
        learner = Learner(role, ddp, optimizer)
        for inner in inner_optimizers(learner):
            gather = inner.start_param_sync_for_bucket_group_subset
            inner.start_param_sync_for_bucket_group_subset = _telling(tick, "gather", gather)
        _allocate_moments(learner)
    return learner


def inner_optimizers(learner: Learner) -> list[Any]:
    """The distributed optimizers that do the work; Megatron-Core may chain several."""
    return list(getattr(learner.optimizer, "chained_optimizers", [learner.optimizer]))


def main_weights(optimizer: Any) -> list[tuple[torch.nn.Parameter, Tensor]]:
    """Each parameter that this rank has a part of, with the float32 weights of the part, as they lie in memory."""
    groups = [
        *zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True),
        *zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True),
    ]
    pairs = [pair for models, mains in groups for pair in zip(models, mains, strict=True)]
    return sorted(pairs, key=lambda pair: pair[1].storage_offset())


def forget_broken_forward(model: GPTModel) -> None:
    """Drop what a forward pass that did not come to its end has left on the layers: with it goes its whole graph."""
    for layer in model.decoder.layers:
        layer.mlp_norm_manager = None


class ScalarHead(torch.nn.Module):
    """The output of critic or classifier: hidden [s (/ tp), b, hidden] -> [s, b, 1] float32, whole on every TP rank."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(
        self, hidden: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        values = F.linear(hidden, self.weight).float()
        if self.sequence_parallel:
            values = gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False)
        return values, None


def _block_spec(transformer: TransformerConfig, rotary: Rotary) -> TransformerBlockSubmodules:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = functools.partial(SdpaAttention, rotary=rotary)
    if transformer.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    parts.self_attn_bda = parts.mlp_bda = _residual
    num_layers = get_num_layers_to_build(transformer)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=ModuleSpec(module=RMSNorm))


def _hide_padding(num_tokens: int) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A hook that gives tokens from `num_tokens` on a probability of 0, and so their weights a gradient of 0."""

    def hide(layer: torch.nn.Module, args: Any, output: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        logits, bias = output
        start = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
        padding = torch.arange(start, start + logits.shape[-1], device=logits.device) >= num_tokens
        return logits.masked_fill(padding, NEVER), bias

    return hide


def _residual(training: bool, fused: bool) -> Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]:
    return lambda x_and_bias, residual, dropout: residual + x_and_bias[0]


def _finalize_gradients(model: list[Any], num_tokens: Tensor | None = None, **kwargs: Any) -> None:
    # The loss is already divided by the global token count: no second division.
    finalize_model_grads(model, None, **kwargs)


def _telling(tick: Callable[[str], None], part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        tick(part)
        return function(*args, **kwargs)

    return told


def _allocate_moments(learner: Learner) -> None:
    # torch's Adam makes them at its first step; a state that exists from the start can be copied from the start, and
    # one that lies in a row is copied as one.
    for optimizer in inner_optimizers(learner):
        mains = [main for _, main in main_weights(optimizer)]
        sizes = [main.numel() for main in mains]
        device = mains[0].device if mains else None
        steps = torch.zeros(len(mains), device=device)
        means, squares = (torch.zeros(sum(sizes), device=device).split(sizes) for _ in range(2))
        for main, step, mean, square in zip(mains, steps, means, squares, strict=True):
            state = {"step": step, "exp_avg": mean.view_as(main), "exp_avg_sq": square.view_as(main)}
            optimizer.optimizer.state[main] = state
        for group in optimizer.optimizer.param_groups:
            group["fused"] = True  # one kernel for all parameters: on a CPU each is as short as what starting it costs

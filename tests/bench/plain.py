"""Training as a user of Megatron-Core writes it: no ftppo but what Megatron-Core needs to run here at all.

Comes in: the numbers of an experiment; goes out: seconds. One process a rank, gloo, rendezvous over a file. From ftppo:
the device's help to run on a CPU, the same settings of Megatron-Core, a head with one output for the critic.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from ftppo.config import Config
from ftppo.worker.device import Device, make_device
from ftppo.worker.model import ScalarHead, transformer_config

type Context = dict[str, Any]
type Model = tuple[DistributedDataParallel, MegatronOptimizer]
type Loss = tuple[Tensor, dict[str, Tensor]]


def start(context: Context, rank: int, config: Config, vocab_size: int, store: str) -> None:
    """Join the world that meets at the file `store`, and make policy, critic and this rank's sequences."""
    device = make_device(config, "cpu")
    device.prepare(config.cluster.threads_per_actor)
    sizes = config.parallel
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=sizes.num_slots)
    parallel_state.initialize_model_parallel(
        sizes.tp, sizes.pp, context_parallel_size=sizes.cp, create_gloo_process_groups=False
    )
    torch.manual_seed(0)
    seq = config.rollout.max_prompt + config.rollout.max_response
    num_rows = config.train.prompts * config.train.samples
    context["config"], context["device"] = config, device
    context["policy"] = _model(config, device, vocab_size, seq, critic=False)
    context["critic"] = _model(config, device, vocab_size, seq, critic=True)
    context["tokens"] = torch.randint(vocab_size, (num_rows, seq + 1))
    context["values"] = torch.randn(num_rows, seq)
    context["mask"] = (torch.arange(seq) >= config.rollout.max_prompt).float().expand(num_rows, seq)


def train(context: Context, rank: int) -> float:
    """As many optimizer steps as an iteration of ftppo makes. Seconds on this rank."""
    knobs, tokens = context["config"].train, context["tokens"]
    dist.barrier()
    started = time.perf_counter()
    for _ in range(knobs.epochs):
        order = torch.randperm(len(tokens))
        for rows in order.split(knobs.mini_batch):
            mine = rows.chunk(parallel_state.get_data_parallel_world_size())[parallel_state.get_data_parallel_rank()]
            _step(context, tokens[mine], context["values"][mine], context["mask"][mine])
    return time.perf_counter() - started


def stop(context: Context, rank: int) -> None:
    """Leave the world."""
    context.clear()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def _step(context: Context, tokens: Tensor, values: Tensor, mask: Tensor) -> None:
    seq, micro = tokens.shape[1] - 1, math.gcd(len(tokens), context["config"].train.micro_batch)
    masked = torch.triu(torch.ones(seq, seq), diagonal=1).bool()[None, None]
    positions = torch.arange(seq).expand(micro, seq)

    def policy(rows: slice, model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Loss]]:
        losses = model(tokens[rows, :-1], positions, masked, labels=tokens[rows, 1:])
        return losses, lambda out: _mean(out, mask[rows])

    def critic(rows: slice, model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Loss]]:
        out = model(tokens[rows, :-1], positions, masked)
        return out, lambda out: _mean((out.squeeze(-1) - values[rows]).square() / 2, mask[rows])

    for name, forward in (("policy", policy), ("critic", critic)):
        ddp, optimizer = context[name]
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=lambda batches, model, forward=forward: forward(next(batches), model),
            data_iterator=_slices(len(tokens), micro),
            model=[ddp],
            num_microbatches=len(tokens) // micro,
            seq_length=seq,
            micro_batch_size=micro,
            forward_only=False,
        )
        with context["device"].building():
            optimizer.step()


def _slices(num: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, num, size))


def _mean(losses: Tensor, mask: Tensor) -> Loss:
    loss = (losses * mask).sum() / mask.sum()
    return loss, {"loss": loss.detach()}


def _model(config: Config, device: Device, vocab_size: int, seq: int, critic: bool) -> Model:
    transformer = dataclasses.replace(
        transformer_config(config, device), calculate_per_token_loss=False, perform_initialization=True
    )
    with device.building():
        model = GPTModel(
            config=transformer,
            transformer_layer_spec=_spec(transformer),
            vocab_size=vocab_size,
            max_sequence_length=seq,
            position_embedding_type="rope",
            rotary_base=config.model.rope_base,  # type: ignore[arg-type]
            share_embeddings_and_output_weights=config.model.tie_embeddings and not critic,
        )
        if critic:
            model.output_layer = ScalarHead(transformer)
        ddp = DistributedDataParallel(
            transformer,
            DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            model,
        )
        transformer.finalize_model_grads_func = finalize_model_grads
        knobs = config.train
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=knobs.critic_lr if critic else knobs.policy_lr,
                weight_decay=knobs.weight_decay,
                adam_beta1=knobs.adam_beta1,
                adam_beta2=knobs.adam_beta2,
                adam_eps=knobs.adam_eps,
                clip_grad=knobs.clip_grad,
                params_dtype=device.dtype,
                use_distributed_optimizer=True,
            ),
            [ddp],
            use_gloo_process_groups=False,
        )
    return ddp, optimizer


def _spec(transformer: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron-Core's own layer, but for the norms."""
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = _RMSNorm
    return TransformerBlockSubmodules(
        layer_specs=[layer] * transformer.num_layers, layer_norm=ModuleSpec(module=_RMSNorm)
    )


class _RMSNorm(torch.nn.RMSNorm):
    """torch's, with the arguments and the mark that Megatron-Core wants."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

"""Incremental decoding over the weights of a Megatron-Core GPTModel, with a key/value cache and no Megatron forward.

Comes in: tokens and positions; goes out: logits. Works with tensor parallelism (two all-reduces a layer) and pipeline
parallelism (hidden states go from stage to stage). Context-parallel ranks have no part in it: each decodes its own.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from ftppo.worker.rope import rotate


@dataclass(frozen=True)
class _Layer:
    """One layer's weights, with the rows of the fused projection in the order q, k, v."""

    norm: Tensor  # [hidden]
    qkv: Tensor  # [(q + 2 kv) * d, hidden]
    bias: Tensor | None  # [(q + 2 kv) * d]
    qk_norm: Tensor | None  # [q + k heads, d]
    out: Tensor  # [hidden, q * d]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * ffn, hidden]
    down: Tensor  # [hidden, ffn]


class Decoder:
    """Decodes `num_rows` sequences of up to `length` tokens. Weights are read when it is made: make one per rollout."""

    def __init__(self, model: GPTModel, num_rows: int, length: int) -> None:
        config = model.config
        self.tp = parallel_state.get_tensor_model_parallel_group()
        self.pp = parallel_state.get_pipeline_model_parallel_group()
        self.first, self.last = model.pre_process, model.post_process
        self.eps = config.layernorm_epsilon
        self.head_dim = config.kv_channels
        self.num_kv = config.num_query_groups // self.tp.size()
        self.group = config.num_attention_heads // config.num_query_groups  # query heads a key/value head
        self.hidden, self.dtype, self.num_tokens = config.hidden_size, config.params_dtype, model.num_tokens
        self.layers = [self._layer(layer) for layer in model.decoder.layers]
        weight = next(model.parameters())
        self.device = weight.device
        if self.first:
            self.embedding = model.embedding.word_embeddings.weight.detach()
        if self.last:
            self.final_norm = model.decoder.final_layernorm.weight.detach()
            shared = model.share_embeddings_and_output_weights
            self.output = (model.shared_embedding_or_output_weight() if shared else model.output_layer.weight).detach()
        shape = (len(self.layers), num_rows, self.num_kv, length, self.head_dim)
        self.keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.cos, self.sin = model.rotary.angles(length, self.keys)

    def forward(self, tokens: Tensor, positions: Tensor, pick: Tensor | None = None) -> Tensor | None:
        """Run tokens [n, t] at positions [n, t]; returns float32 logits [n, num_tokens] at `pick` [n], else the last.

        Logits are whole and equal on every TP rank of the last stage; None on the other stages.
        """
        x = self._embed(tokens) if self.first else self._receive(tokens.shape)
        cos, sin = self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2)  # [n, t, 1, d / 2]
        seen = int(positions.max()) + 1
        mask = positions[:, :, None] >= torch.arange(seen, device=self.device)  # [n, t, seen]
        for number, layer in enumerate(self.layers):
            normed = F.rms_norm(x, layer.norm.shape, layer.norm, self.eps)
            q = self._cache(layer, number, normed, positions, cos, sin)
            if self.last and number + 1 == len(self.layers) and x.shape[1] > 1:
                # From here on only the positions that are asked for matter: no later layer looks at the others.
                rows = torch.arange(x.shape[0], device=self.device)[:, None]
                place = torch.full_like(rows, -1) if pick is None else pick[:, None]
                x, q, mask = x[rows, place], q[rows, place], mask[rows, place]
            x = x + self._attend(layer, number, q, mask)
            x = x + self._feed_forward(layer, F.rms_norm(x, layer.mlp_norm.shape, layer.mlp_norm, self.eps))
        if not self.last:
            dist.send(x.contiguous(), dist.get_global_rank(self.pp, self.pp.rank() + 1), group=self.pp)
            return None
        return self._logits(F.rms_norm(x[:, 0], self.final_norm.shape, self.final_norm, self.eps))

    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` [m] only."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]

    def share(self, tokens: Tensor) -> Tensor:
        """The last stage's tokens [n] int64, on every stage."""
        if self.pp.size() > 1:
            dist.broadcast(tokens, dist.get_global_rank(self.pp, self.pp.size() - 1), group=self.pp)
        return tokens

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attention, layer.mlp
        norms = [(attention.q_layernorm, self.num_kv * self.group), (attention.k_layernorm, self.num_kv)]
        qk_norm = [norm.weight.detach().expand(heads, -1) for norm, heads in norms if norm is not None]
        return _Layer(
            norm=layer.input_layernorm.weight.detach(),
            qkv=self._q_k_v(attention.linear_qkv.weight),
            bias=None if attention.linear_qkv.bias is None else self._q_k_v(attention.linear_qkv.bias),
            qk_norm=torch.cat(qk_norm) if qk_norm else None,
            out=attention.linear_proj.weight.detach(),
            mlp_norm=layer.pre_mlp_layernorm.weight.detach(),
            gate_up=mlp.linear_fc1.weight.detach(),
            down=mlp.linear_fc2.weight.detach(),
        )

    def _q_k_v(self, fused: Tensor) -> Tensor:
        """[(q + 2 kv) * d, ...] by groups, as Megatron-Core has it -> the same with all q first, then k, then v."""
        groups = fused.detach().view(self.num_kv, self.group + 2, self.head_dim, *fused.shape[1:])
        return torch.cat([part.reshape(-1, *fused.shape[1:]) for part in groups.split([self.group, 1, 1], dim=1)])

    def _cache(self, layer: _Layer, number: int, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keep the keys and values of x [n, t, hidden]; returns its queries [n, t, heads, d]."""
        n, t, _ = x.shape
        heads = self.num_kv * self.group
        q_k_v = F.linear(x, layer.qkv, layer.bias).view(n, t, heads + 2 * self.num_kv, self.head_dim)
        q_k, v = q_k_v.split([heads + self.num_kv, self.num_kv], dim=2)
        if layer.qk_norm is not None:
            q_k = F.rms_norm(q_k, (self.head_dim,), eps=self.eps) * layer.qk_norm
        q, k = rotate(q_k, cos, sin).split([heads, self.num_kv], dim=2)
        row = torch.arange(n, device=self.device)[:, None]
        self.keys[number][row, :, positions] = k
        self.values[number][row, :, positions] = v
        return q

    def _attend(self, layer: _Layer, number: int, q: Tensor, mask: Tensor) -> Tensor:
        """q [n, t, heads, d], mask [n, t, seen] -> [n, t, hidden]."""
        n, t, heads, _ = q.shape
        seen = mask.shape[-1]
        keys, values = self.keys[number, :, :, :seen], self.values[number, :, :, :seen]
        q = q.transpose(1, 2).reshape(n, self.num_kv, self.group * t, self.head_dim)
        scores = (q @ keys.transpose(-1, -2)).mul_(self.head_dim**-0.5).view(n, self.num_kv, self.group, t, seen)
        scores.masked_fill_(~mask[:, None, None], float("-inf"))
        weights = scores.softmax(-1, dtype=torch.float32).to(self.dtype)
        mixed = (weights.view(n, self.num_kv, self.group * t, seen) @ values).view(n, heads, t, self.head_dim)
        return self._reduce(F.linear(mixed.transpose(1, 2).reshape(n, t, -1), layer.out))

    def _feed_forward(self, layer: _Layer, x: Tensor) -> Tensor:
        gate, up = F.linear(x, layer.gate_up).chunk(2, dim=-1)
        return self._reduce(F.linear(F.silu(gate) * up, layer.down))

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.tp.size() == 1:
            return F.embedding(tokens, self.embedding)
        start = self.tp.rank() * self.embedding.shape[0]
        here = (tokens >= start) & (tokens < start + self.embedding.shape[0])
        found = F.embedding((tokens - start).clamp(0, self.embedding.shape[0] - 1), self.embedding)
        return self._reduce(found * here.unsqueeze(-1))

    def _logits(self, x: Tensor) -> Tensor:
        local = F.linear(x, self.output).float()
        if self.tp.size() == 1:
            return local[:, : self.num_tokens]
        parts = [torch.empty_like(local) for _ in range(self.tp.size())]
        dist.all_gather(parts, local, group=self.tp)
        return torch.cat(parts, dim=-1)[:, : self.num_tokens]

    def _receive(self, shape: torch.Size) -> Tensor:
        x = torch.empty(*shape, self.hidden, dtype=self.dtype, device=self.device)
        dist.recv(x, dist.get_global_rank(self.pp, self.pp.rank() - 1), group=self.pp)
        return x

    def _reduce(self, x: Tensor) -> Tensor:
        if self.tp.size() > 1:
            x = x.contiguous()
            dist.all_reduce(x, group=self.tp)
        return x

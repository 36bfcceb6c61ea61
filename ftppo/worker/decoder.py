"""Incremental decoding over the weights of a Megatron-Core GPTModel, with a key/value cache and no Megatron forward.

Comes in: tokens and positions; goes out: logits. Works with tensor parallelism (two all-reduces a layer) and pipeline
parallelism (hidden states go from stage to stage). Context-parallel ranks have no part in it: each decodes its own.
"""

from collections.abc import Sequence
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
    """Decodes up to `num_rows` sequences of up to `length` tokens at once, each in a row of the key/value cache.

    Weights are read when it is made: make one per rollout. Logits are float32 [n, num_tokens], whole and equal on every
    TP rank of the last stage; None on the other stages.
    """

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
        self.device = next(model.parameters()).device
        if self.first:
            self.embedding = model.embedding.word_embeddings.weight.detach()
        if self.last:
            self.final_norm = model.decoder.final_layernorm.weight.detach()
            shared = model.share_embeddings_and_output_weights
            self.output = (model.shared_embedding_or_output_weight() if shared else model.output_layer.weight).detach()
        # One tensor a layer. Zeros: what is hidden from a query still meets its weight of 0, and must be a number.
        shape = (num_rows, self.num_kv, length, self.head_dim)
        self.keys = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in self.layers]
        self.values = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in self.layers]
        # Where the first key of each row and head is, in a layer's cache seen as [rows * kv * length, d].
        self.starts = length * torch.arange(num_rows * self.num_kv, device=self.device).view(num_rows, self.num_kv)
        self.rows = torch.arange(num_rows, device=self.device)
        self.places = torch.zeros_like(self.rows)  # of each row's next token
        self.cos, self.sin = model.rotary.angles(length, self.keys[0])

    def prefill(self, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor | None:
        """Prompts `tokens` [n, t], right-padded, enter `rows` [n]; the logits after the last of their `lengths` [n].

        What padding leaves in the cache lies behind the prompt, and is overwritten before a query can see it.
        """
        self.places[rows] = lengths
        places = torch.arange(tokens.shape[1], device=self.device)
        angles = self.cos[places][:, None], self.sin[places][:, None]  # [t, 1, d / 2]
        cells = self.starts[rows][:, None] + places[:, None]  # [n, t, kv]
        x = self._embed(tokens) if self.first else self._receive(tokens.shape)
        for number, layer in enumerate(self.layers):
            q, k, v = self._project(layer, number, x, angles, cells)
            if self.last and number + 1 == len(self.layers):
                # From here on only the last token of each prompt matters: no later layer looks at the others.
                picked = self.rows[: len(rows), None], lengths[:, None] - 1
                bias = self._bias(lengths, tokens.shape[1])
                x, mixed = x[picked], self._attend(q[picked], k.transpose(1, 2), v.transpose(1, 2), bias)
            else:
                mixed = self._attend_causally(q, k, v)
            x = self._finish(layer, x, mixed)
        return self._hand_on(x)

    def step(self, tokens: Tensor) -> Tensor | None:
        """One token [n] more in each of the first n rows; the logits after it."""
        num = len(tokens)
        places = self.places[:num]
        seen = int(places.max()) + 1
        angles = self.cos[places][:, None, None], self.sin[places][:, None, None]  # [n, 1, 1, d / 2]
        cells = self.starts[:num] + places[:, None]  # [n, kv]
        bias = self._bias(places + 1, seen)
        x = self._embed(tokens[:, None]) if self.first else self._receive((num, 1))
        for number, layer in enumerate(self.layers):
            q, _, _ = self._project(layer, number, x, angles, cells)
            keys, values = (cache[number][:num, :, :seen] for cache in (self.keys, self.values))
            x = self._finish(layer, x, self._attend(q, keys, values, bias))
        places.add_(1)
        return self._hand_on(x)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """The sequences in the rows `sources` go on in the rows `targets`."""
        for part in (*self.keys, *self.values, self.places):
            part[targets] = part[sources]

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

    def _project(
        self, layer: _Layer, number: int, x: Tensor, angles: tuple[Tensor, Tensor], cells: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, t, heads, d], keys and values [n, t, kv, d] of x [n, t, hidden]; the cache keeps these two."""
        n, t, _ = x.shape
        heads = self.num_kv * self.group
        normed = self._norm(x, layer.norm)
        q_k_v = F.linear(normed, layer.qkv, layer.bias).view(n, t, heads + 2 * self.num_kv, self.head_dim)
        q_k, v = q_k_v.split([heads + self.num_kv, self.num_kv], dim=2)
        if layer.qk_norm is not None:
            q_k = F.rms_norm(q_k, (self.head_dim,), eps=self.eps) * layer.qk_norm
        q, k = rotate(q_k, *angles).split([heads, self.num_kv], dim=2)
        for cache, new in ((self.keys[number], k), (self.values[number], v)):
            cache.view(-1, self.head_dim).index_copy_(0, cells.flatten(), new.reshape(-1, self.head_dim))
        return q, k, v

    def _bias(self, lengths: Tensor, seen: int) -> Tensor:
        """[n, 1, 1, seen]: what hides all but the first `lengths` [n] keys from a query."""
        hidden = torch.arange(seen, device=self.device) >= lengths[:, None, None, None]
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """One query a row, q [n, 1, heads, d], on keys and values [n, kv, seen, d] -> [n, 1, heads * d].

        The query heads of a group stand where SDPA has queries: so they share their keys, and nothing is repeated.
        """
        grouped = q.view(len(q), self.num_kv, self.group, self.head_dim)
        mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=bias)
        return mixed.reshape(len(q), 1, -1)

    def _attend_causally(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, t, heads, d] on k and v [n, t, kv, d] -> [n, t, heads * d]. Padding is behind: none looks at it."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.group > 1)
        return mixed.transpose(1, 2).flatten(2)

    def _finish(self, layer: _Layer, x: Tensor, mixed: Tensor) -> Tensor:
        """What is left of a layer after attention has mixed the values."""
        x = x + self._reduce(F.linear(mixed, layer.out))
        gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return x + self._reduce(F.linear(F.silu(gate) * up, layer.down))

    def _hand_on(self, x: Tensor) -> Tensor | None:
        """To the next stage, or on the last one the logits of x [n, 1, hidden]."""
        if not self.last:
            dist.send(x.contiguous(), dist.get_global_rank(self.pp, self.pp.rank() + 1), group=self.pp)
            return None
        return self._logits(self._norm(x[:, 0], self.final_norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

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

    def _receive(self, shape: Sequence[int]) -> Tensor:
        x = torch.empty(*shape, self.hidden, dtype=self.dtype, device=self.device)
        dist.recv(x, dist.get_global_rank(self.pp, self.pp.rank() - 1), group=self.pp)
        return x

    def _reduce(self, x: Tensor) -> Tensor:
        if self.tp.size() > 1:
            x = x.contiguous()
            dist.all_reduce(x, group=self.tp)
        return x

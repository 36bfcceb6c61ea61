"""Core attention on torch's SDPA, with context parallelism. Comes in: projected q, k, v; goes out: the mixed values.

Positions enter here: queries and keys are turned before they meet (rope.py), Megatron-Core's own embedding is left out.

Under context parallelism a sequence is cut into 2*cp chunks and rank r holds chunks r and 2*cp-1-r (zigzag, so that
causal work is balanced). Keys and values are gathered over the group; queries stay.
"""

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ftppo.worker.rope import Rotary, rotate


class SdpaAttention(torch.nn.Module):
    """Causal attention for Megatron-Core's SelfAttention; padding is on the right, so the causal mask is enough."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        rotary: Rotary,
        cp_comm_type: str | None = None,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        assert attn_mask_type == AttnMaskType.causal and config.attention_dropout == 0.0 and pg_collection is not None
        self.scale, self.rotary = softmax_scale, rotary
        self.cp_group = pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """query [s, b, heads, d], key and value [s, b, kv_heads, d] -> [s, b, heads * d]."""
        cp = self.cp_group.size()
        mask = None
        angles = self.rotary.angles(query.shape[0] * cp, query)
        cos, sin = (zigzag(table, self.cp_group.rank(), cp, 0)[:, None, None] for table in angles)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cp > 1:
            key, value = _Gather.apply(torch.stack((key, value)), self.cp_group).unbind(0)
            mask = _zigzag_mask(query.shape[0], self.cp_group.rank(), cp, query.device)
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=cp == 1, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


def zigzag(x: Tensor, rank: int, size: int, dim: int) -> Tensor:
    """The part of `x` along `dim` that rank `rank` of `size` context-parallel ranks holds."""
    if size == 1:
        return x
    chunks = x.chunk(2 * size, dim=dim)
    return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]), dim=dim)


def unzigzag(parts: list[Tensor], dim: int) -> Tensor:
    """The whole of which `parts[r]` is `zigzag(whole, r, len(parts), dim)`."""
    halves = [part.chunk(2, dim=dim) for part in parts]
    return torch.cat([first for first, _ in halves] + [last for _, last in reversed(halves)], dim=dim)


def _zigzag_mask(num_queries: int, rank: int, size: int, device: torch.device) -> Tensor:
    positions = zigzag(torch.arange(num_queries * size, device=device), rank, size, 0)
    return positions[:, None] >= torch.arange(num_queries * size, device=device)[None, :]


class _Gather(torch.autograd.Function):
    """[2, s, b, h, d] of this rank -> [2, s * cp, b, h, d] in order; backward sums what every rank owes this one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        torch.distributed.all_gather(parts, x.contiguous(), group=group)
        return unzigzag(parts, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.contiguous()
        torch.distributed.all_reduce(grad, group=ctx.group)
        return zigzag(grad, ctx.group.rank(), ctx.group.size(), 1), None

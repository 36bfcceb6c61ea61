"""Root mean square norm (arXiv:1910.07467). Comes in: activations; goes out: the same at a root mean square of one."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """y = weight * x / sqrt(mean(x^2) + eps). Megatron-Core sums the weight's gradient over sequence-parallel ranks."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        if x.device.type == "cpu":
            return _OnCpu.apply(x, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _OnCpu(torch.autograd.Function):
    """What torch has one kernel for on cuda only: elsewhere it takes the norm, and its gradient, apart into fifteen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(wide, weight, inverse)
        return (wide * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        wide, weight, inverse = ctx.saved_tensors
        normed = wide * inverse
        by_channel = (grad * normed).flatten(0, -2)
        # d/dx of weight * x * inverse: what goes along x itself does not change the norm's output.
        along = torch.mv(by_channel, weight.to(by_channel.dtype)).div_(wide.shape[-1]).view(inverse.shape)
        own = torch.mul(grad, weight).to(normed.dtype).addcmul_(normed, along, value=-1).mul_(inverse)
        return own.to(grad.dtype), by_channel.sum(0).to(weight.dtype), None

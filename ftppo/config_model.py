"""The model section of the configuration, and what a section is. Comes in: keys; goes out: the shape of a decoder."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One config group: frozen, and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )


class RopeScaling(Section):
    """Rotary frequencies for sequences longer than those of the first training; formulas in worker/rope.py."""

    kind: Literal["linear", "llama3"]
    factor: float = Field(ge=1)
    low_freq_factor: float = Field(1.0, gt=0)  # llama3, like the rest
    high_freq_factor: float = Field(4.0, gt=0)
    original_length: int = Field(8192, ge=1)  # tokens of a sequence in the first training


class Model(Section):
    """A decoder of the llama kind: RMSNorm, SwiGLU, RoPE, grouped-query attention."""

    path: str | None = None  # folder or name of a Hugging Face model: weights, tokenizer, all keys but the last three
    family: Literal["llama", "mistral", "qwen2", "qwen3"] = "llama"  # qwen2: q, k, v have biases; qwen3: q, k norms
    layers: int = Field(2, ge=1)
    hidden: int = Field(128, ge=8)
    ffn: int = Field(256, ge=8)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    head_dim: int | None = Field(None, ge=2)  # null: hidden / heads
    rope_base: float = Field(10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    norm_eps: float = Field(1e-5, gt=0)
    tie_embeddings: bool = False
    vocab: int | None = Field(None, ge=1)  # tokens that can be drawn; null: all of the tokenizer's
    max_length: int | None = Field(None, ge=1)  # longest sequence, in tokens; null: any
    window: int | None = Field(None, ge=1)  # of sliding attention: longer sequences are refused
    init_std: float = Field(0.02, gt=0)
    dtype: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on cuda, fp32 on cpu
    weights: str | None = None  # folder or URL of a torch_dist checkpoint of Megatron-Core, whose weights to begin with

    @property
    def head_size(self) -> int:
        """Channels of one head."""
        return self.head_dim or self.hidden // self.heads

"""The algo section of the configuration. Comes in: keys; goes out: which algorithm trains, and its numbers."""

from typing import Literal

from pydantic import Field

from ftppo.config_model import Section


class Algo(Section):
    """The numbers of PPO and of its kin without a critic. Formulas and their sources are in ftppo/algo."""

    advantage: Literal["gae", "grpo", "rloo", "reinforce_pp"] = "gae"  # gae alone has a critic
    divide_by_std: bool = True  # grpo: by the standard deviation of the rewards in a group; false: Dr. GRPO
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    dual_clip: float | None = Field(3.0, gt=1)
    value_clip: float | None = Field(0.2, gt=0)
    value_coef: float = Field(1.0, gt=0)
    aggregate: Literal["token_mean", "seq_mean", "token_sum"] = "token_mean"  # how tokens count; see algo/losses.py
    entropy_coef: float = Field(0.0, ge=0)
    dynamic_rounds: int = Field(0, ge=0)  # most rounds after the first, in place of groups that compare nothing
    importance_cap: float | None = Field(None, gt=0)  # given: advantages times min(policy / policy that drew, cap)
    whiten: bool | None = None  # advantages, over all tokens; null: those of gae and reinforce_pp
    kl_kind: Literal["k1", "k2", "k3"] = "k1"
    kl_place: Literal["reward", "loss"] = "reward"
    kl_coef: float = Field(0.0, ge=0)
    kl_target: float | None = Field(None, gt=0)  # given: the coefficient adapts to keep this KL
    kl_horizon: float = Field(10000.0, gt=0)  # samples over which it adapts

    @property
    def needs_critic(self) -> bool:
        """Whether a second model learns what to expect."""
        return self.advantage == "gae"

    @property
    def by_group(self) -> bool:
        """Whether an answer is compared with the others to its prompt."""
        return self.advantage in ("grpo", "rloo")

    @property
    def whitens(self) -> bool:
        """Whether advantages are whitened; those of a group are centred already."""
        return not self.by_group if self.whiten is None else self.whiten

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the policy is kept for the KL penalty."""
        return self.kl_coef > 0

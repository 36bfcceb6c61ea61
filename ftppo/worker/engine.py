"""One rank: its models, groups, part of the work. Comes in: requests and batches; goes out: results and new weights.

Knows nothing of Ray. A rank builds alone (`build`), then joins a generation (`join`); after a fault it lets go
(`release`) and joins the next. The order of the methods is the order of a run.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ftppo.checkpoint.exchange import Address
from ftppo.checkpoint.index import ShardRecord
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.snapshot import Flat
from ftppo.config import Config
from ftppo.plan.topology import Layout
from ftppo.types import Batch, RolloutRequest, RolloutResult, Scores, Sequences, StepResult, StepSpec
from ftppo.worker import update
from ftppo.worker.beacon import Progress
from ftppo.worker.device import Device
from ftppo.worker.durable import Durable
from ftppo.worker.groups import Groups
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.memory import Memory
from ftppo.worker.model import Learner, build_learner, build_model, forget_first_use_answers
from ftppo.worker.rollout import generate
from ftppo.worker.state import Part, copy_weights, digest, initialize, model_parts, optimizer_parts, step_counters

COLLECTIVE_HANGS = 10  # times recovery.hang_s after which a collective gives up of itself; the driver acts long before


class Engine:
    """One rank's whole training state. Not thread-safe but for `progress`."""

    def __init__(self, config: Config, device: Device, vocab_size: int, eos: int, memory: Memory) -> None:
        self.config, self.device, self.vocab_size, self.eos = config, device, vocab_size, eos
        self.layout = Layout(**{axis: getattr(config.parallel, axis) for axis in ("dp", "tp", "pp", "cp")})
        self.seq = config.rollout.max_prompt + config.rollout.max_response
        self.progress = Progress()
        self.groups = Groups()
        self.slot = -1
        self.models: dict[str, Any] = {}  # "policy", "critic": Learner; "reference": GPTModel where one is needed
        self.parts: list[Part] = []
        self.memory = memory
        device.prepare(config.cluster.threads_per_actor)

    def build(self, slot: int) -> None:
        """Make the models of `slot` with freshly drawn weights. Needs no other rank; leaves no group behind."""
        self.progress.enter("build")
        self.slot = slot
        self.groups.create_alone(self.layout, slot)
        policy = self._new_model("policy")
        critic = self._new_model("critic")
        self.models = {
            "policy": build_learner("policy", policy, self.config, self.device, self.progress.tick),
            "critic": build_learner("critic", critic, self.config, self.device, self.progress.tick),
        }
        if self.config.algo.needs_reference:
            self.models["reference"] = self._new_model("reference").requires_grad_(False)
        self.parts = self._collect_parts()
        self._reload_main_weights()
        self.memory.attach(slot, *self._flats())
        counters = {"optimizer.step": step_counters(self.policy), "critic.optimizer.step": step_counters(self.critic)}
        self.durable = Durable(self.config.checkpoint, slot, self.parts, counters)
        num_alive = self.release()
        assert num_alive == 0, f"{num_alive} groups outlive the building of slot {slot}"

    def join(self, meet: Rendezvous, buddy: Address | None, timeout_s: float) -> None:
        """Enter the world of a generation with the models as they are; `buddy` is who keeps this rank's copies."""
        collective_s = COLLECTIVE_HANGS * self.config.recovery.hang_s
        self.groups.create(self.layout, self.slot, meet, self.device.backend, timeout_s, collective_s, self.models)
        self.progress.generation, self.progress.slot = meet.generation, self.slot
        for learner in (self.policy, self.critic):
            forget_first_use_answers(learner)
        self.memory.join(meet.generation, buddy if self.config.snapshot.every_steps else None)

    def release(self) -> int:
        """Let go of the world, whatever its state. Returns how many of its groups stay alive: 0 unless some leak."""
        self.progress.enter("idle")
        return self.groups.release(self.models)

    @property
    def policy(self) -> Learner:
        """The model that answers."""
        return self.models["policy"]

    @property
    def critic(self) -> Learner:
        """The model that values."""
        return self.models["critic"]

    def rollout(self, request: RolloutRequest) -> RolloutResult:
        """Draw answers to this actor's share of the prompts."""
        self.progress.enter("rollout", request.iteration)
        self.policy.module.eval()
        result = generate(
            self.policy.module, request, self.config.rollout, self.eos, self.config.seed, self.progress.tick
        )
        self.policy.module.train()
        return result

    def score(self, sequences: Sequences) -> Scores | None:
        """Log-probabilities, those of the reference and values of a DP chunk; None but on the last pipeline stage."""
        self.progress.enter("score")
        micro = math.gcd(sequences.tokens.shape[0], self.config.train.micro_batch)
        found: dict[str, Tensor | None] = {}
        for name, kind in (("policy", "logprobs"), ("reference", "logprobs"), ("critic", "values")):
            self.progress.tick()
            model = self.models.get(name)
            if model is not None:
                model = model.model if isinstance(model, Learner) else model
                found[name] = update.forward_scores(model, sequences, kind, micro, self.config)
        policy, values = found["policy"], found["critic"]
        if policy is None or values is None:
            return None
        reference = found.get("reference")
        return Scores(policy, policy if reference is None else reference, values)

    def warmup_step(self, spec: StepSpec, batch: Batch) -> StepResult:
        """One supervised step of the policy on given answers."""
        self.progress.enter("update", spec.step)
        self._zero_gradients(self.policy)
        sums = update.supervised_gradients(self.policy, batch, self._micro(batch), self.progress.tick)
        (sums,) = update.share_sums([sums])
        norm = self._prepare(self.policy)
        moved = self._move((self.policy, norm, spec.policy_lr))
        if moved:
            self._snapshot_if_due(spec.version)
        return _result(sums, torch.zeros(2), batch.num_tokens, norm, 0.0, skipped=not moved)

    def begin_ppo(self, version: int) -> None:
        """Between warm-up and PPO: the reference freezes, the critic takes the policy's trunk, optimizers restart."""
        copy_weights(self.policy.module, self.critic.module)
        if "reference" in self.models:
            copy_weights(self.policy.module, self.models["reference"])
        self._restart_optimizers()
        self.snapshot(version)

    def ppo_step(self, spec: StepSpec, batch: Batch) -> StepResult:
        """One step of policy and critic on this rank's DP chunk. If a gradient is not finite, nobody moves."""
        self.progress.enter("update", spec.step)
        micro = self._micro(batch)
        for learner in (self.policy, self.critic):
            self._zero_gradients(learner)
        policy_sums = update.policy_gradients(self.policy, batch, spec.kl_coef, micro, self.config, self.progress.tick)
        value_sums = update.value_gradients(self.critic, batch, micro, self.config, self.progress.tick)
        policy_sums, value_sums = update.share_sums([policy_sums, value_sums])
        policy_norm, critic_norm = self._prepare(self.policy), self._prepare(self.critic)
        moved = self._move((self.policy, policy_norm, spec.policy_lr), (self.critic, critic_norm, spec.critic_lr))
        if moved:
            self._snapshot_if_due(spec.version)
        return _result(policy_sums, value_sums, batch.num_tokens, policy_norm, critic_norm, skipped=not moved)

    def snapshot(self, version: int) -> None:
        """Copy the whole state, frozen weights included, as it is between steps."""
        if self.config.snapshot.every_steps:
            self.memory.freeze()
            self.memory.take(version)

    def settle(self) -> None:
        """Wait until the buddy has this rank's newest copy."""
        self.memory.settle()

    def restore(self, version: int, sources: Mapping[int, Address]) -> None:
        """Go back to `version`: from this rank's own copy, or where `sources` names its slot from that actor's."""
        self.progress.enter("load")
        self.memory.restore(version, sources.get(self.slot))
        self.snapshot(version)  # who lost its buddy has a new one
        self.progress.enter("idle")

    def begin_save(self, prefix: str) -> None:
        """Copy this rank's part of the state, and start to write the copy into the attempt's folder."""
        self.progress.enter("save")
        self.progress.tick()
        self.durable.begin(prefix)
        self.progress.enter("idle")

    def end_save(self) -> ShardRecord:
        """What this rank has written, once it has. Raises StorageError."""
        self.progress.enter("save")
        record = self.durable.end()
        self.progress.enter("idle")
        return record

    def publish(self, header: Header, records: list[ShardRecord]) -> Manifest | None:
        """Make what all ranks have written a checkpoint: slot 0 does it, the others return None."""
        return self.durable.publish(header, records, self.layout.world)

    def load(self, manifest: Manifest) -> int:
        """Fill this rank's state from a checkpoint of any layout. Returns the bytes fetched."""
        self.progress.enter("load")
        fetched = self.durable.load(manifest)
        self.progress.enter("idle")
        return fetched

    def reset(self) -> None:
        """Back to the weights drawn at the start, for a fault before the first checkpoint."""
        for name in self.models:
            self._draw(name, self._module(name))
        self._restart_optimizers()

    def _restart_optimizers(self) -> None:
        for part in self.parts:
            if ".exp_avg" in part.piece.key:
                part.piece.tensor.zero_()
        for counter in (*step_counters(self.policy), *step_counters(self.critic)):
            counter.zero_()
        self._reload_main_weights()

    def digest(self) -> str:
        """SHA-256 over what this rank writes of policy, critic and optimizers."""
        return digest(part for part in self.parts if not part.piece.key.startswith("reference."))

    def _snapshot_if_due(self, version: int) -> None:
        every = self.config.snapshot.every_steps
        if every and version % every == 0:
            self.progress.enter("snapshot", version)
            self.progress.tick()
            self.memory.take(version, every)

    def _flats(self) -> tuple[Flat, Flat]:
        """All that steps change, and all that they do not."""
        frozen = [part.piece.tensor for part in self.parts if part.piece.key.startswith("reference.")]
        moving = [part.piece.tensor for part in self.parts if not part.piece.key.startswith("reference.")]
        return Flat([*moving, *step_counters(self.policy), *step_counters(self.critic)]), Flat(frozen)

    def _new_model(self, name: str) -> Any:
        model = build_model(self.config, self.device, self.vocab_size, self.seq, scalar_head=name == "critic")
        self._draw(name, model)
        return model

    def _draw(self, name: str, model: Any) -> None:
        # The reference starts as the policy does.
        role = "critic" if name == "critic" else "policy"
        initialize(model, role, self.config.seed, self.config.model.init_std)

    def _module(self, name: str) -> Any:
        model = self.models[name]
        return model.module if isinstance(model, Learner) else model

    def _collect_parts(self) -> list[Part]:
        parts = model_parts(self.policy.module, "") + optimizer_parts(self.policy, "")
        parts += model_parts(self.critic.module, "critic.") + optimizer_parts(self.critic, "critic.")
        if "reference" in self.models:
            parts += model_parts(self.models["reference"], "reference.")
        return parts

    def _micro(self, batch: Batch) -> int:
        return math.gcd(batch.tokens.shape[0], self.config.train.micro_batch)

    def _zero_gradients(self, learner: Learner) -> None:
        learner.model.zero_grad_buffer()
        learner.optimizer.zero_grad()

    def _prepare(self, learner: Learner) -> float:
        """Gather and clip the gradients; their global norm before clipping, the same on every rank."""
        if self.progress.poisoned:
            self.progress.poisoned = False
            next(learner.module.parameters()).main_grad.fill_(math.nan)
        with self.device.building():
            learner.optimizer.prepare_grads()
            return float(learner.optimizer.clip_grad_norm(self.config.train.clip_grad))

    def _move(self, *moves: tuple[Learner, float, float]) -> bool:
        if not all(math.isfinite(norm) for _, norm, _ in moves):
            return False
        self.progress.tick("optimizer")
        for learner, _, lr in moves:
            for group in learner.optimizer.param_groups:
                group["lr"] = lr
            with self.device.building():
                learner.optimizer.step_with_ready_grads()
        return True

    def _reload_main_weights(self) -> None:
        for learner in (self.policy, self.critic):
            learner.optimizer.reload_model_params()


def _result(
    policy: Tensor, value: Tensor, num_tokens: float, policy_norm: float, critic_norm: float, skipped: bool
) -> StepResult:
    loss, entropy, kl, clipped = (float(item) / num_tokens for item in policy[:4])
    value_loss, value_clipped = (float(item) / num_tokens for item in value)
    return StepResult(loss, value_loss, entropy, kl, clipped, value_clipped, policy_norm, critic_norm, skipped)

"""One rank: its models, groups, part of the work. Comes in: requests and batches; goes out: results and new weights.

Knows nothing of Ray. A rank builds alone (`build`), then joins a generation (`join`); after a fault it lets go
(`release`) and joins the next. The order of the methods is the order of a run.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from ftppo.checkpoint.exchange import Address
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.config import Config
from ftppo.plan.packing import Pack, packs_of
from ftppo.plan.topology import Layout
from ftppo.types import (
    Batch,
    Rewards,
    RolloutRequest,
    RolloutResult,
    Scores,
    Sequences,
    StepResult,
    StepSpec,
    Written,
    lengths_of,
)
from ftppo.worker import update
from ftppo.worker.beacon import Progress
from ftppo.worker.device import Device
from ftppo.worker.durable import Durable
from ftppo.worker.fingerprint import fingerprint, flip_if_asked
from ftppo.worker.groups import Groups
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.memory import Memory
from ftppo.worker.model import Learner, forget_broken_forward
from ftppo.worker.optimize import (
    OUT_OF_TURN,
    Move,
    agree,
    move,
    poison_if_asked,
    reload_main_weights,
    restart,
    result_of,
    zero_gradients,
)
from ftppo.worker.owned import owned_of
from ftppo.worker.pace import Pace
from ftppo.worker.roles import BEGUN, begin, build_models, modules_of
from ftppo.worker.rollout import generate
from ftppo.worker.state import Part, copy_weights, digest, gather_weights, learner_parts, model_parts

COLLECTIVE_HANGS = 10  # times recovery.hang_s after which a collective gives up of itself; the driver acts long before


class Engine:
    """One rank's whole training state. Not thread-safe but for `progress`."""

    def __init__(self, config: Config, device: Device, vocab_size: int, eos: int, memory: Memory) -> None:
        self.config, self.device, self.vocab_size, self.eos = config, device, vocab_size, eos
        self.layout, self.memory = Layout(), memory
        self.seq = config.rollout.max_prompt + config.rollout.max_response
        self.progress, self.pace, self.groups = Progress(), Pace(device), Groups()
        self.slot, self.version, self._rehearsed = -1, 0, False  # the version is that of the weights
        self.models: dict[str, Any] = {}  # by role: see ftppo/worker/roles.py
        self.parts: list[Part] = []
        self.durable = Durable(config.checkpoint, self.slot, self.parts)
        device.prepare(config.cluster.threads_per_actor)

    def build(self, layout: Layout, slot: int, blank: bool = False) -> None:
        """Make the models of `slot`, as PPO begins with them or `blank`: their state comes from elsewhere.

        Needs no other rank; leaves no group behind. Other models go before; the copies in memory stay.
        """
        self.progress.enter("build")
        self.layout, self.slot = layout, slot
        self.models, self.parts = {}, []
        self.groups.create_alone(self.layout, slot)
        tick = self.pace.watching(self.progress.tick)
        self.models = build_models(self.config, self.device, self.vocab_size, self.seq, tick, blank)
        self.parts = self._collect_parts()
        reload_main_weights(self.learners)
        frozen = [part for part in self.parts if part.piece.key.startswith("reference.")]
        self.owned = owned_of(self.learners, frozen, slot)
        self.memory.attach(str(layout), slot, *self.owned.flats, self.owned.table(slot))
        self.durable = Durable(self.config.checkpoint, slot, self.parts)
        if not self._rehearsed:  # what is made at first use is made once a process
            update.rehearse(self.learners, self.seq, self.config, self.progress.tick)
        self._rehearsed = True
        num_alive = self.release()
        assert num_alive == 0, f"{num_alive} groups outlive the building of slot {slot}"

    def join(self, meet: Rendezvous, buddy: Address | None, timeout_s: float) -> None:
        """Enter the world of a generation with the models as they are; `buddy` is who keeps this rank's copies."""
        collective_s = COLLECTIVE_HANGS * self.config.recovery.hang_s
        self.groups.create(self.layout, self.slot, meet, self.device.backend, timeout_s, collective_s, self.models)
        self.progress.join(meet.generation, self.slot)
        self.memory.join(meet.generation, buddy if self.config.snapshot.every_steps else None)

    def release(self) -> int:
        """Let go of the world, whatever its state. Returns how many of its groups stay alive: 0 unless some leak."""
        self.progress.enter("idle")
        for module in modules_of(self.models).values():
            forget_broken_forward(module)
        self.durable.abandon()
        return self.groups.release(self.models)

    def abort(self) -> None:
        """From any thread: wake the one that works from whatever collective holds it up, where that can be done."""
        self.groups.abort()

    @property
    def policy(self) -> Learner:
        """The model that answers."""
        return self.models["policy"]

    @property
    def learners(self) -> list[Learner]:
        """The models under training: the policy and, where there is one, the critic."""
        return [self.models[role] for role in ("policy", "critic") if role in self.models]

    def rollout(self, request: RolloutRequest) -> RolloutResult:
        """Draw answers to this actor's share of the prompts."""
        self.progress.enter(request.purpose, request.iteration)
        self.policy.module.eval()
        result = generate(
            self.policy.module, request, self.config.rollout, self.eos, self.config.seed, self.progress.tick
        )
        self.policy.module.train()
        return result

    def reward(self, sequences: Sequences) -> Rewards | None:
        """What the reward model says of a DP chunk's answers; None but on the last pipeline stage."""
        self.progress.enter("score")
        return update.rewards_of(self.models["reward"], sequences, self._packs(sequences), self.progress.tick)

    def score(self, sequences: Sequences) -> Scores | None:
        """Log-probabilities, those of the reference and values of a DP chunk; None but on the last pipeline stage."""
        self.progress.enter("score")
        models = modules_of(self.models)
        return update.scores_of(models, sequences, self._packs(sequences), self.config, self.progress.tick)

    def warmup_step(self, spec: StepSpec, batch: Batch) -> StepResult:
        """One supervised step of the policy on given answers."""
        self.progress.enter("update", spec.step)
        zero_gradients(self.policy)
        with self.device.exact():
            sums = update.supervised_gradients(self.policy, batch, self._packs(batch), self.progress.tick)
        poison_if_asked(self.progress, self.policy.module)
        norms, means = agree([self.policy], sums)
        moved = self._move((self.policy, norms[0], spec.policy_lr))
        self.version = spec.version
        if moved:
            self._snapshot_if_due(spec)
        return result_of(means, norms, skipped=not moved)

    def begin_ppo(self, version: int) -> None:
        """Between warm-up and PPO: the reference freezes, the critic takes the policy's trunk, optimizers restart."""
        self.durable.settle()
        for role, module in modules_of(self.models, BEGUN).items():
            if role != "policy":
                copy_weights(self.policy.module, module)
        restart(self.learners, self.parts)
        self.snapshot(version)

    def ppo_step(self, spec: StepSpec, batch: Batch) -> StepResult:
        """One step of all learners on this rank's DP chunk. If a gradient is not finite, nobody moves.

        Nor does anybody where the step before it has not been done: calls come before their turn is certain.
        """
        if spec.version != self.version + 1:
            assert not spec.final, f"version {spec.version} cannot follow {self.version}"
            return OUT_OF_TURN
        self.progress.enter("update", spec.step)
        packs, learners = self._packs(batch, batch.num_micro), self.learners
        for learner in learners:
            zero_gradients(learner)
        with self.device.exact():
            sums = [
                update.gradients(learner, batch, spec.kl_coef, packs, self.config, self.progress.tick)
                for learner in self.pace.over(learners)
            ]
        poison_if_asked(self.progress, self.policy.module)
        norms, means = agree(learners, torch.cat(sums))
        self.pace.end(packs)
        moved = self._move(*zip(learners, norms, (spec.policy_lr, spec.critic_lr), strict=False))
        if moved or spec.final:
            self.version = spec.version
        if moved:
            self._snapshot_if_due(spec)
        return result_of(means, norms, skipped=not moved)

    def snapshot(self, version: int) -> None:
        """The weights are at `version`, between steps: copy the whole state, frozen weights included."""
        self.version = version
        if self.config.snapshot.every_steps:
            self.memory.freeze()
            self.memory.take(version)

    def hand_over(self, version: int) -> None:
        """Between steps, at `version`: copy the state where that was not due, and wait until the buddy has the copy."""
        if self.config.snapshot.every_steps:
            self.memory.secure(version, self.config.snapshot.every_steps)

    def settle(self) -> None:
        """Wait until the buddy has what is on its way."""
        self.memory.settle()

    def restore(self, version: int, sources: Mapping[int, Address]) -> None:
        """Take this rank's shard back to `version`: from its own copy, or where `sources` names its slot that actor's.

        Needs no other rank of the mesh; once all have it, `regain` makes the weights whole.
        """
        self.progress.enter("load")
        self.durable.settle()
        self.memory.restore(version, sources.get(self.slot))

    def reshard(self, version: int, layout: Layout, sources: Mapping[int, Address]) -> None:
        """As `restore`, with `version` as a mesh of another `layout` copied it: `sources` is who has what."""
        self.progress.enter("load")
        self.durable.settle()
        self.memory.reshard(self.owned.pieces, version, str(layout), sources)

    def regain(self, version: int) -> None:
        """Make whole weights of all ranks' shards, and copy them: who lost its buddy has a new one."""
        self.progress.enter("load")
        with self.device.building():
            for learner in self.learners:
                gather_weights(learner)
        self.snapshot(version)

    def begin_save(self, prefix: str) -> None:
        """Start to copy this rank's part of the state, and to write the copy into the attempt's folder."""
        self.progress.enter("save")
        self.progress.tick()
        self.durable.begin(prefix)

    def end_save(self) -> Written:
        """What this rank has written, once it has. Raises StorageError."""
        self.progress.enter("save")
        return self.durable.end()

    def begin_publish(self, header: Header, written: list[Written] | None) -> None:
        """Begin to make a checkpoint of what all ranks have written; who is not told of it does nothing."""
        if written is not None:
            self.durable.begin_publish(header, written, self.layout.world)

    def end_publish(self) -> Manifest | None:
        """What this rank was to publish, once it has; None where it was not. Raises CheckpointError, StorageError."""
        return self.durable.end_publish()

    def load(self, manifest: Manifest) -> int:
        """Fill this rank's state from a checkpoint of any layout. Returns the bytes fetched."""
        self.progress.enter("load")
        return self.durable.load(manifest)

    def reset(self) -> None:
        """Back to the weights drawn at the start, for a fault before the first checkpoint."""
        self.durable.settle()
        for role, module in modules_of(self.models, BEGUN).items():
            begin(module, role, self.config)
        restart(self.learners, self.parts)

    def digest(self) -> str:
        """SHA-256 over what this rank writes of the learners and their optimizers."""
        return digest(part for part in self.parts if not part.piece.key.startswith("reference."))

    def fingerprint(self) -> int:
        """A checksum of this rank's weights, the same on all replicas unless bits have flipped."""
        return fingerprint(learner.module for learner in self.learners)

    def _snapshot_if_due(self, spec: StepSpec) -> None:
        every = self.config.snapshot.every_steps
        if every and spec.version % every == 0:
            self.progress.enter("snapshot", spec.step)
            self.progress.tick()
            flip_if_asked(self.progress, self.policy.module)
            self.memory.take(spec.version, every)

    def _collect_parts(self) -> list[Part]:
        writes = self.slot == 0
        parts = [part for learner in self.learners for part in learner_parts(learner, writes)]
        return parts + (model_parts(self.models["reference"], "reference.") if "reference" in self.models else [])

    def _packs(self, given: Batch | Sequences, at_least: int = 1) -> list[Pack]:
        """The micro-batches of these rows."""
        return packs_of(lengths_of(given.response), self.config, at_least)

    def _move(self, *moves: Move) -> bool:
        self.groups.check()
        if not all(math.isfinite(norm) for _, norm, _ in moves):
            return False
        self.progress.tick("optimizer")
        self.durable.settle()
        move(moves, self.config.train.clip_grad)
        return True

"""One PPO iteration in a straight line. Comes in: where the run stands; goes out: where it stands after.

    prompts -> rollout -> rewards -> scores -> advantages -> epochs x mini-batches optimizer steps

Knows nothing of faults. An Iteration remembers what it has finished, so that running it again goes on from there.
"""

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ftppo.algo.batch import make_batch
from ftppo.algo.groups import chosen, differing, enough
from ftppo.algo.kl import next_coef
from ftppo.algo.schedule import learning_rate
from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.efficiency import efficiency
from ftppo.driver.mesh import Call, CallPhase, Mesh
from ftppo.driver.minibatch import mini_batch
from ftppo.driver.prompts import assemble, decode_answers, drawn_logprobs, encode_prompts, supervised_batch
from ftppo.driver.record import IterationMetrics
from ftppo.driver.worth import Drawn, worth
from ftppo.tasks.base import Task
from ftppo.tasks.tokenizer import Tokenizer
from ftppo.types import Answers, Batch, DriverState, RolloutResult, StepResult, StepSpec

AHEAD = 1  # steps that wait at the actors behind the one under way, so that these never wait for the driver


@dataclass
class Workshop:
    """What an iteration works with. `mesh` is that of the current generation."""

    config: Config
    task: Task
    tokenizer: Tokenizer
    clock: Clock
    on_phase: Callable[[str, str], None]  # phase, detail
    on_step: Callable[[StepSpec, StepResult], None]
    on_batch: Callable[["Iteration"], None]  # its batch is made: from here on it cannot be made again
    boundary_due: Callable[[int], bool]  # whether something waits for a moment without a step, so many being under way
    at_boundary: Callable[[], None]  # does it
    mesh: Mesh | None = None

    @property
    def num_steps(self) -> int:
        """Optimizer steps of one iteration."""
        train = self.config.train
        return train.epochs * (train.prompts * train.samples // train.mini_batch)


@dataclass
class Iteration:
    """The iteration that begins at `state`. `run` may be called again after a recovery that kept the weights' step."""

    shop: Workshop
    state: DriverState
    rounds: list[Answers] = field(default_factory=list)  # until there is a batch; several with algo.dynamic_rounds
    drawn: Drawn | None = None  # a round that is not judged yet
    rewards: torch.Tensor | None = None  # [n] float32, of all that was drawn, from then on
    batch: Batch | None = None
    results: list[StepResult] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> DriverState:
        """Do what is left to do. Raises GenerationBroken."""
        while self.batch is None and not self._drawn_enough():
            with self._timed("rollout"):
                if self.drawn is None:
                    self.drawn = self._rollout()
                self.rounds.append(self._judge(self.drawn))
                self.drawn = None
        if self.batch is None:
            with self._timed("score"):
                self.batch = self._score()
            self.shop.on_batch(self)
        with self._timed("update"):
            self._update(self.batch)
        assert len(self.results) == self.shop.num_steps, "optimizer steps are epochs x mini-batches"
        return self.after()

    def steps(self) -> list[tuple[StepSpec, StepResult]]:
        """The steps done."""
        return [(self.spec(number), result) for number, result in enumerate(self.results)]

    def keepsake(self) -> dict[str, Any]:
        """All that another driver needs to go on with this iteration, besides a Workshop and the steps' results."""
        return {name: value for name, value in vars(self).items() if name not in ("shop", "results")}

    def metrics(self) -> IterationMetrics:
        """Scalars of the finished iteration."""
        assert self.batch is not None
        at, spent, config = self.state.iteration, self.seconds, self.shop.config
        layout, vocab_size = self._mesh.roster.layout, self.shop.tokenizer.vocab_size
        used = efficiency(self.batch, at, spent["update"], config, layout, vocab_size)
        mean = {name: _mean(getattr(one, name) for one in self.results) for name in _MEANS}
        last = config.train.iterations * self.shop.num_steps
        return IterationMetrics(
            iteration=at,
            step=self.state.step + len(self.results),
            reward_mean=self.stats["reward"],
            reward_std=self.stats["reward_std"],
            differing=self.stats.get("differing"),
            kl=self.stats["kl"],
            rollout_kl=self.stats["rollout_kl"],
            kl_coef=self.state.kl_coef,
            response_length=self.stats["response_length"],
            tokens_per_s=self.stats["tokens"] / max(sum(spent.values()), 1e-9),
            explained_variance=self.stats.get("explained_variance"),
            lr=learning_rate(self._ppo_step(0), config.train.policy_lr, last, config.train),
            rollout_s=spent["rollout"],
            score_s=spent["score"],
            update_s=spent["update"],
            **used,
            **mean,
        )

    def _drawn_enough(self) -> bool:
        train = self.shop.config.train
        return enough(self.rounds, train.samples, train.prompts, self.shop.config.algo.dynamic_rounds)

    def _rollout(self) -> Drawn:
        """One more round: as many prompts as an iteration has."""
        shop, train = self.shop, self.shop.config.train
        prompts = [shop.task.prompt(self._cursor + index) for index in range(train.prompts)]
        request = encode_prompts(prompts, train.samples, self.state.iteration, shop.tokenizer, shop.config.rollout)
        result: RolloutResult = self._mesh.call("rollout", rows=request, via="mesh_shared", phase="rollout")
        self.stats["tokens"] = self.stats.get("tokens", 0.0) + float(result.lengths.sum())
        sequences = assemble(request, result, shop.tokenizer.pad_id, shop.config.rollout)
        texts = enumerate(decode_answers(result, shop.tokenizer))
        asked = [(prompts[row // train.samples], text) for row, text in texts]
        return Drawn(asked, sequences, drawn_logprobs(result, sequences))

    def _judge(self, drawn: Drawn) -> Answers:
        shop = self.shop
        rewards = worth(drawn.asked, drawn.sequences, shop.task, shop.config.reward, self._mesh, "score")
        return Answers(drawn.sequences, drawn.logprobs, torch.tensor(rewards))

    def _score(self) -> Batch:
        train, algo = self.shop.config.train, self.shop.config.algo
        answers = chosen(self.rounds, train.samples, train.prompts)
        scores = self._mesh.call("score", rows=answers.sequences, via="mesh", phase="score")
        batch, stats = make_batch(answers, scores, train.samples, algo, self.state.kl_coef)
        self.rewards = torch.cat([one.rewards for one in self.rounds])
        self.rounds.clear()
        self.stats |= stats | {
            "reward": float(self.rewards.mean()),
            "reward_std": float(self.rewards.std(correction=0)),
        }
        if train.samples > 1:
            self.stats["differing"] = float(differing(self.rewards, train.samples).float().mean())
        return batch

    def _update(self, batch: Batch) -> None:
        """All steps that are not done yet, in order; the next one is asked for before the last one has ended."""
        shop, under_way = self.shop, deque[_Step]()
        while len(self.results) < shop.num_steps:
            if not under_way and shop.boundary_due(0):
                shop.at_boundary()
            while len(under_way) <= AHEAD and not shop.boundary_due(len(under_way)):
                number = len(self.results) + len(under_way)
                if number == shop.num_steps:
                    break
                under_way.append(self._start(number, batch))
            if not under_way:
                continue  # something has become due at the boundary itself
            step = under_way.popleft()
            shop.on_phase("update", f"step {len(self.results) + 1}/{shop.num_steps}")
            result = self._mesh.finish(step.call)
            if result.skipped:  # once more: what a machine got wrong comes right, what is in the data does not
                for behind in under_way:
                    self._mesh.finish(behind.call)  # nobody moves in a step whose turn has not come
                under_way.clear()
                result = self._mesh.finish(self._start(len(self.results), batch, final=True).call)
            self.results.append(result)
            shop.on_step(step.spec, result)
        if shop.boundary_due(0):
            shop.at_boundary()

    def _start(self, number: int, batch: Batch, final: bool = False) -> "_Step":
        """Ask for a step."""
        config, mesh, spec = self.shop.config, self._mesh, self.spec(number, final)
        rows = mini_batch(batch, number, self.state.iteration, config, mesh.roster.layout.dp)
        # Faults configured for the update strike in its middle step.
        phase: CallPhase = "update" if number == self.shop.num_steps // 2 and not final else "update.other"
        return _Step(spec, mesh.start("ppo_step", spec, rows=rows, via="mesh_first", phase=phase))

    def spec(self, number: int, final: bool = False) -> StepSpec:
        """Of the step with this number in the iteration."""
        train, ppo_step = self.shop.config.train, self._ppo_step(number)
        last = train.iterations * self.shop.num_steps
        return StepSpec(
            step=self.state.step + number,
            iteration=self.state.iteration,
            kind="ppo",
            policy_lr=learning_rate(ppo_step, train.policy_lr, last, train),
            critic_lr=learning_rate(ppo_step, train.critic_lr, last, train),
            kl_coef=self.state.kl_coef,
            version=self.state.version + number + 1,
            final=final,
        )

    def after(self) -> DriverState:
        """Where the run stands once all is done."""
        algo, state = self.shop.config.algo, self.state
        assert self.batch is not None
        num_samples = self.batch.tokens.shape[0]
        coef = state.kl_coef
        if algo.kl_target is not None:
            coef = next_coef(coef, self.stats["kl"], algo.kl_target, algo.kl_horizon, num_samples)
        reward = self.stats["reward"]
        return replace(
            state,
            iteration=state.iteration + 1,
            step=state.step + len(self.results),
            cursor=self._cursor,
            kl_coef=coef,
            first_reward=reward if state.first_reward is None else state.first_reward,
            last_reward=reward,
        )

    @property
    def _mesh(self) -> Mesh:
        assert self.shop.mesh is not None, "no generation stands"
        return self.shop.mesh

    @property
    def _cursor(self) -> int:
        """Prompts taken from the task's stream by now."""
        train = self.shop.config.train
        num_drawn = len(self.rounds) * train.prompts if self.rewards is None else len(self.rewards) // train.samples
        return self.state.cursor + num_drawn

    def _ppo_step(self, number: int) -> int:
        return self.state.step - self.state.warmup_done + number

    def _timed(self, phase: str) -> "_Timed":
        self.shop.on_phase(phase, "")
        return _Timed(self, phase)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


_MEANS = ("policy_loss", "value_loss", "entropy", "clip_fraction", "policy_grad_norm", "critic_grad_norm")


@dataclass(frozen=True)
class _Step:
    """An optimizer step that the actors know of."""

    spec: StepSpec
    call: Call


class _Timed:
    """Adds the seconds of a phase, those of a broken attempt included."""

    def __init__(self, iteration: Iteration, phase: str) -> None:
        self.iteration, self.phase = iteration, phase

    def __enter__(self) -> None:
        self.started = self.iteration.shop.clock.monotonic()

    def __exit__(self, *_: object) -> None:
        spent = self.iteration.shop.clock.monotonic() - self.started
        self.iteration.seconds[self.phase] = self.iteration.seconds.get(self.phase, 0.0) + spent


def warmup_step(shop: Workshop, state: DriverState) -> DriverState:
    """One supervised step on the task's own answers. Raises GenerationBroken."""
    assert shop.mesh is not None, "no generation stands"
    config = shop.config
    prompts = [shop.task.prompt(state.cursor + index) for index in range(config.train.warmup_batch)]
    batch = supervised_batch(prompts, shop.task, shop.tokenizer, config.rollout)
    rate = config.train.warmup_lr
    spec = StepSpec(
        step=state.step,
        iteration=0,
        kind="warmup",
        policy_lr=rate,
        critic_lr=rate,
        kl_coef=0.0,
        version=state.version + 1,
    )
    shop.on_phase("warmup", f"step {state.warmup_done + 1}/{config.train.warmup_steps}")
    result = shop.mesh.call("warmup_step", spec, rows=batch, via="mesh_first", phase="warmup")
    shop.on_step(spec, result)
    return replace(
        state, step=state.step + 1, warmup_done=state.warmup_done + 1, cursor=state.cursor + config.train.warmup_batch
    )

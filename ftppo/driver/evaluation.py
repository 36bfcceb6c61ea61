"""Evaluation. Comes in: the weights as they stand, prompts that training never sees; goes out: EvalMetrics, samples.

It reads the weights and moves nothing: its random numbers are streams of their own, so a run ends in the same bits with
it and without. After a fault it is done again from its beginning; what it has found is written once it is complete.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ftppo.driver.display import Display
from ftppo.driver.iteration import Workshop
from ftppo.driver.prompts import assemble, decode_answers, encode_prompts
from ftppo.driver.record import EvalMetrics, EvalSample
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.text import number
from ftppo.driver.worth import worth
from ftppo.tasks.build import Tasks
from ftppo.types import DriverState, Prompt, RolloutRequest, RolloutResult


@dataclass(frozen=True)
class _Answers:
    """Answers to all prompts, those to one prompt side by side."""

    texts: list[str]
    scores: list[float]
    mean_tokens: float


class Evaluation:
    """The evaluations of a run. Where nothing is held out, nothing is evaluated."""

    def __init__(self, shop: Workshop, tasks: Tasks, files: RunFiles, display: Display) -> None:
        self.shop, self._task, self._files, self._display = shop, tasks.held_out, files, display
        self._num_held_out = tasks.num_held_out
        self._knobs = shop.config.eval
        self._done = {metrics.iteration for metrics in files.evaluations()}

    def due(self, state: DriverState) -> bool:
        """Whether the run is, for the first time, where it is evaluated: every n iterations, and at the end."""
        every, at_end = self._knobs.every_iterations, state.iteration == self.shop.config.train.iterations
        on_time = every > 0 and (at_end or state.iteration % every == 0)
        return on_time and self._task is not None and state.iteration not in self._done

    def run(self, state: DriverState) -> None:
        """Evaluate the weights at `state`. Raises GenerationBroken."""
        assert self._task is not None
        started = self.shop.clock.monotonic()
        self.shop.on_phase("eval", "")
        num = min(self._knobs.prompts, self._num_held_out or self._knobs.prompts)
        prompts = [self._task.prompt(index) for index in range(num)]
        greedy = self._answers(prompts, 1, 0.0, state.iteration)
        drawn = None
        if self._knobs.samples:
            drawn = self._answers(prompts, self._knobs.samples, self._knobs.temperature, state.iteration)
        metrics = EvalMetrics(
            iteration=state.iteration,
            step=state.step,
            num_prompts=len(prompts),
            reward_mean=statistics.fmean(greedy.scores),
            response_length=greedy.mean_tokens,
            sample_reward_mean=None if drawn is None else statistics.fmean(drawn.scores),
            pass_at={} if drawn is None else self._pass_at(drawn.scores),
            eval_s=self.shop.clock.monotonic() - started,
        )
        samples = self._told(prompts, greedy, "greedy", state)
        samples += [] if drawn is None else self._told(prompts, drawn, "sample", state)
        self._files.evaluation(metrics, samples)
        self._done.add(state.iteration)
        self._display.event(f"evaluation: {_line(metrics)}")

    def _answers(self, prompts: Sequence[Prompt], samples: int, temperature: float, iteration: int) -> _Answers:
        shop = self.shop
        assert self._task is not None and shop.mesh is not None
        request = encode_prompts(prompts, samples, iteration, shop.tokenizer, shop.config.rollout)
        num, sizes = len(request.lengths), shop.config.parallel
        request = replace(request, purpose="eval", temperature=temperature)
        request = _filled_up(request, sizes.dp * sizes.cp)
        result: RolloutResult = shop.mesh.call("rollout", rows=request, via="mesh_shared", phase="eval")
        texts = decode_answers(result, shop.tokenizer)[:num]
        sequences = assemble(request, result, shop.tokenizer.pad_id, shop.config.rollout)
        asked = [(prompts[row // samples], text) for row, text in enumerate(texts)]
        scores = worth(asked, sequences, self._task, shop.config.reward, shop.mesh, "eval")
        return _Answers(texts, scores, float(result.lengths[:num].float().mean()))

    def _pass_at(self, scores: Sequence[float]) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, ... and the number of samples, mean over the prompts."""
        num, right = self._knobs.samples, self._knobs.pass_reward
        passed = [sum(score >= right for score in scores[start : start + num]) for start in range(0, len(scores), num)]
        powers = [2**power for power in range(num.bit_length()) if 2**power < num]
        return {k: statistics.fmean(pass_at(k, num, one) for one in passed) for k in (*powers, num)}

    def _told(
        self, prompts: Sequence[Prompt], answers: _Answers, decoding: str, state: DriverState
    ) -> list[EvalSample]:
        each = len(answers.texts) // len(prompts)
        return [
            EvalSample(state.iteration, state.step, decoding, prompts[row // each].text, text, score)
            for row, (text, score) in enumerate(zip(answers.texts, answers.scores, strict=True))
        ]


def pass_at(k: int, num: int, num_right: int) -> float:
    """The chance that one of `k` answers out of `num`, of which `num_right` are right, is right.

    It is 1 - C(num - num_right, k) / C(num, k), the unbiased estimator of Chen et al., "Evaluating Large Language
    Models Trained on Code" (2021).
    """
    return 1.0 - math.comb(num - num_right, k) / math.comb(num, k)


def _filled_up(request: RolloutRequest, unit: int) -> RolloutRequest:
    """As many rows as divide evenly over the mesh: the first ones again at the end."""
    num = len(request.lengths)
    return request.rows(torch.arange(num + -num % unit) % num)


def _line(metrics: EvalMetrics) -> str:
    parts = [f"reward {number(metrics.reward_mean)} greedy"]
    parts += [f"pass@{k} {number(value)}" for k, value in metrics.pass_at.items()]
    return f"after {metrics.iteration} iterations on {metrics.num_prompts} prompts: {', '.join(parts)}"

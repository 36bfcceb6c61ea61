"""Answers of a decoder that knows them beforehand: each prompt gets its own, and no row idles while a prompt waits."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from ftppo.config import Rollout
from ftppo.types import RolloutRequest, RolloutResult
from ftppo.worker import rollout

EOS, MOST = 1, 12


class Script:
    """Stands for a Decoder. Prompt i is the token i + 2, `prompts[i]` times; so is its answer, which then ends.

    `answers[i]` is the length of the answer with its end, or 0 where it does not end by itself.
    """

    device = torch.device("cpu")

    def __init__(self, prompts: list[int], answers: list[int], num_rows: int) -> None:
        self.prompts, self.answers, self.rows = prompts, answers, torch.arange(num_rows)
        self.cache: list[list[int]] = [[] for _ in range(num_rows)]  # tokens
        self.packs: list[list[int]] = []  # lengths of the prompts of each prefill
        self.steps: list[int] = []  # rows of each step

    def prefill(self, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        self.packs.append(lengths.tolist())
        assert tokens.shape[1] == lengths.max(), "no more padding than the longest needs"
        for row, prompt, length in zip(rows.tolist(), tokens.tolist(), lengths.tolist(), strict=True):
            self.cache[row] = prompt[:length]
        return self._logits(rows.tolist())

    def step(self, tokens: Tensor) -> Tensor:
        self.steps.append(len(tokens))
        for row, token in enumerate(tokens.tolist()):
            assert token == self.cache[row][-1], "the token drawn last follows what its row holds"
            self.cache[row].append(token)
        return self._logits(range(len(tokens)))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.cache[target] = self.cache[source]

    def share(self, tokens: Tensor) -> Tensor:
        return tokens

    def _logits(self, rows: Any) -> Tensor:
        logits = torch.zeros(len(rows), len(self.prompts) + 2)
        for place, row in enumerate(rows):
            number = self.cache[row][0] - 2
            ends = len(self.cache[row]) - self.prompts[number] + 1 == self.answers[number]
            logits[place, EOS if ends else number + 2] = 1.0
        return logits


def drawn(
    monkeypatch: pytest.MonkeyPatch, prompts: list[int], answers: list[int], batch: int
) -> tuple[RolloutResult, Script, int]:
    """The result, what the decoder was asked for, and how often `tick` was called."""
    made: list[Script] = []

    def decoder(model: object, num_rows: int, length: int) -> Script:
        assert length == max(prompts) + MOST
        made.append(Script(prompts, answers, num_rows))
        return made[0]

    monkeypatch.setattr(rollout, "Decoder", decoder)
    num, width = len(prompts), max(prompts) + 3
    tokens = torch.arange(2, num + 2)[:, None].where(torch.arange(width) < torch.tensor(prompts)[:, None], 0)
    request = RolloutRequest(0, tokens, torch.tensor(prompts), torch.arange(num))
    ticks: list[None] = []
    config = Rollout(max_prompt=width, max_response=MOST, temperature=0, batch=batch)
    result = rollout.generate(object(), request, config, EOS, 0, lambda: ticks.append(None))  # type: ignore[arg-type]
    return result, made[0], len(ticks)


def assert_right(result: RolloutResult, answers: list[int]) -> None:
    for number, (answer, tokens) in enumerate(zip(answers, result.tokens.tolist(), strict=True)):
        wanted = [number + 2] * (answer - 1) + [EOS] if answer else [number + 2] * MOST
        assert tokens == wanted + [0] * (MOST - len(wanted))
        assert result.lengths[number] == len(wanted)
        assert result.logprobs[number].ne(0).tolist() == [True] * len(wanted) + [False] * (MOST - len(wanted))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("batch", [1, 3, 8, 64])
def test_each_prompt_gets_its_answer_in_the_order_of_the_request(
    monkeypatch: pytest.MonkeyPatch, batch: int, seed: int
) -> None:
    draw = random.Random(seed)
    num = draw.randint(1, 30)
    answers = [draw.choice([0, 1, draw.randint(1, MOST)]) for _ in range(num)]
    result, script, ticks = drawn(monkeypatch, [draw.randint(1, 9) for _ in range(num)], answers, batch)
    assert_right(result, answers)
    assert ticks == len(script.packs) + len(script.steps)
    # Who draws its first token in a prefill and the others in steps has been in as many steps as it drew more tokens.
    assert sum(script.steps) == int(result.lengths.sum()) - num


def test_no_row_idles_while_a_prompt_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [12, 2, 2, 2, 2, 2, 12]
    result, script, _ = drawn(monkeypatch, [5] * 7, answers, batch=2)
    assert_right(result, answers)
    assert script.packs == [[5, 5], [5], [5], [5], [5], [5]]
    assert script.steps == [2] * 11 + [1] * 5  # five short answers beside the first long one, then the last


def test_prompts_that_enter_together_are_read_with_those_of_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "PREFILL_TOKENS", 40)
    _, script, _ = drawn(monkeypatch, [20, 3, 9, 19, 8, 9, 3], [2] * 7, batch=7)
    assert script.packs == [[20, 19], [9, 9, 8], [3, 3]]

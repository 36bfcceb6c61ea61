"""Rows of tokens: which row is whose, where an answer begins and ends, and what does not fit."""

from collections.abc import Sequence

import pytest
import torch

from ftppo.config import Rollout
from ftppo.driver.prompts import assemble, drawn_logprobs, encode_prompts, supervised_batch
from ftppo.errors import TaskError
from ftppo.tasks.base import Asked
from ftppo.tasks.tokenizer import CharTokenizer
from ftppo.types import Prompt, RolloutRequest, RolloutResult

TOKENIZER = CharTokenizer("abcdefgh")
PAD, END = TOKENIZER.pad_id, TOKENIZER.eos_id
ROLLOUT = Rollout(max_prompt=4, max_response=3)


class Answers:
    """A task whose answers are its prompts' entries."""

    def prompt(self, index: int) -> Prompt:
        raise AssertionError("prompts are given")

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        raise AssertionError("nothing is judged")

    def answer(self, prompt: Prompt) -> str:
        return str(prompt.entry["answer"])


def prompt(index: int, text: str, answer: str = "") -> Prompt:
    return Prompt(index, text, {"answer": answer})


def test_samples_of_a_prompt_are_neighbours_numbered_over_the_whole_run() -> None:
    request = encode_prompts([prompt(10, "ab"), prompt(11, "cdef")], 3, 7, TOKENIZER, ROLLOUT)
    assert request.iteration == 7
    assert request.sample.tolist() == [30, 31, 32, 33, 34, 35]
    assert request.tokens.tolist() == [[0, 1, PAD, PAD]] * 3 + [[2, 3, 4, 5]] * 3
    assert request.lengths.tolist() == [2, 2, 2, 4, 4, 4]
    assert {request.tokens.dtype, request.lengths.dtype, request.sample.dtype} == {torch.int64}


def test_the_width_does_not_hang_on_the_prompts() -> None:
    assert encode_prompts([prompt(0, "a")], 1, 0, TOKENIZER, ROLLOUT).tokens.shape == (1, 4)


@pytest.mark.parametrize(("text", "length"), [("", 0), ("abcde", 5)])
def test_a_prompt_that_is_empty_or_too_long_is_refused_by_number(text: str, length: int) -> None:
    with pytest.raises(TaskError, match=f"prompt 9 has {length} tokens, 1 to rollout.max_prompt=4 are possible"):
        encode_prompts([prompt(8, "ab"), prompt(9, text)], 1, 0, TOKENIZER, ROLLOUT)
    with pytest.raises(TaskError, match="prompt 9"):
        supervised_batch([prompt(9, text, "a")], Answers(), TOKENIZER, ROLLOUT)


def test_answers_stand_directly_behind_prompts_of_any_length() -> None:
    request = RolloutRequest(
        iteration=0,
        tokens=torch.tensor([[0, PAD, PAD, PAD], [0, 1, 2, 3], [4, 5, PAD, PAD], [6, 7, 0, PAD]]),
        lengths=torch.tensor([1, 4, 2, 3]),
        sample=torch.arange(4),
    )
    junk = 5  # what is past an answer's length does not count
    answers = torch.tensor([[1, END, junk], [2, 3, END], [END, junk, junk], [7, 7, 7]])
    result = RolloutResult(answers, torch.tensor([2, 3, 1, 3]), torch.zeros(4, 3))
    whole = assemble(request, result, PAD, ROLLOUT)
    assert whole.tokens.tolist() == [
        [0, 1, END, PAD, PAD, PAD, PAD],
        [0, 1, 2, 3, 2, 3, END],
        [4, 5, END, PAD, PAD, PAD, PAD],
        [6, 7, 0, 7, 7, 7, PAD],
    ]
    assert whole.response.tolist() == [
        [0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0],
    ]
    assert whole.response.dtype == torch.float32


def test_log_probabilities_stand_where_their_tokens_do() -> None:
    request = RolloutRequest(0, torch.tensor([[0, PAD], [0, 1]]), torch.tensor([1, 2]), torch.arange(2))
    logprobs = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, -4.0, -5.0]])
    result = RolloutResult(torch.tensor([[1, END, PAD], [2, 3, END]]), torch.tensor([2, 3]), logprobs)
    drawn = drawn_logprobs(result, assemble(request, result, PAD, Rollout(max_prompt=2, max_response=3)))
    assert drawn.tolist() == [[0, -1, -2, 0, 0], [0, 0, -3, -4, -5]]


@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_its_prompt_its_answer_and_padding(seed: int) -> None:
    torch.manual_seed(seed)
    rollout, num = Rollout(max_prompt=6, max_response=5), 20
    lengths, answered = torch.randint(1, 7, (num,)), torch.randint(1, 6, (num,))
    tokens, answers = torch.randint(0, PAD, (num, 6)), torch.randint(0, PAD, (num, 5))
    request = RolloutRequest(0, tokens, lengths, torch.arange(num))
    whole = assemble(request, RolloutResult(answers, answered, torch.zeros(num, 5)), PAD, rollout)
    for row in range(num):
        asked, said = tokens[row, : lengths[row]].tolist(), answers[row, : answered[row]].tolist()
        wanted = [*asked, *said]
        assert whole.tokens[row].tolist() == wanted + [PAD] * (11 - len(wanted))
        assert whole.response[row].nonzero().flatten().tolist() == list(range(len(asked), len(wanted)))


def test_the_request_is_left_as_it_was() -> None:
    request = encode_prompts([prompt(0, "ab")], 1, 0, TOKENIZER, ROLLOUT)
    before = request.tokens.clone()
    assemble(request, RolloutResult(torch.tensor([[3, 4, END]]), torch.tensor([3]), torch.zeros(1, 3)), PAD, ROLLOUT)
    assert request.tokens.equal(before)


def test_a_supervised_batch_counts_the_answers_and_their_ends() -> None:
    batch = supervised_batch([prompt(0, "ab", "h"), prompt(1, "abcd", "gh")], Answers(), TOKENIZER, ROLLOUT)
    assert batch.tokens.tolist() == [[0, 1, 7, END, PAD, PAD, PAD], [0, 1, 2, 3, 6, 7, END]]
    assert batch.response.tolist() == [[0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]]
    assert batch.num_tokens == 5.0
    for name in ("logprobs", "ref_logprobs", "values", "advantages", "returns"):
        assert not getattr(batch, name).any() and getattr(batch, name).shape == (2, 7)


def test_an_answer_that_is_too_long_with_its_end_is_refused() -> None:
    with pytest.raises(TaskError, match=r"the answer to 'ab' has 4 tokens with its end, rollout\.max_response=3"):
        supervised_batch([prompt(0, "ab", "cde")], Answers(), TOKENIZER, ROLLOUT)

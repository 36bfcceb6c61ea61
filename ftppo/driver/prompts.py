"""Text to rows of tokens and back. Comes in: prompts and answers; goes out: requests, sequences, supervised batches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ftppo.config import Rollout
from ftppo.errors import TaskError
from ftppo.tasks.base import Task
from ftppo.tasks.tokenizer import Tokenizer
from ftppo.types import Batch, Prompt, RolloutRequest, RolloutResult, Sequences


def encode_prompts(
    prompts: Sequence[Prompt], samples: int, iteration: int, tokenizer: Tokenizer, rollout: Rollout
) -> RolloutRequest:
    """`samples` rows for each prompt, neighbours. Raises TaskError for a prompt that is empty or too long."""
    encoded = [_encode(prompt, tokenizer, rollout) for prompt in prompts for _ in range(samples)]
    numbers = [prompt.index * samples + draw for prompt in prompts for draw in range(samples)]
    lengths = torch.tensor([len(ids) for ids in encoded])
    return RolloutRequest(
        iteration, _padded(encoded, rollout.max_prompt, tokenizer.pad_id), lengths, torch.tensor(numbers)
    )


def decode_answers(result: RolloutResult, tokenizer: Tokenizer) -> list[str]:
    """The text of each answer."""
    rows = zip(result.tokens, result.lengths.tolist(), strict=True)
    return [tokenizer.decode(row[:length].tolist()) for row, length in rows]


def assemble(request: RolloutRequest, result: RolloutResult, pad_id: int, rollout: Rollout) -> Sequences:
    """Each prompt with its answer behind it, right-padded to [n, max_prompt + max_response]."""
    num, width = len(request.lengths), rollout.max_prompt + rollout.max_response
    tokens = torch.full((num, width), pad_id)
    tokens[:, : request.tokens.shape[1]] = request.tokens
    place = torch.arange(width).expand(num, width)
    start, end = request.lengths[:, None], (request.lengths + result.lengths)[:, None]
    response = (place >= start) & (place < end)
    within = torch.arange(result.tokens.shape[1]) < result.lengths[:, None]
    tokens[response] = result.tokens[within]
    tokens[place >= end] = pad_id
    return Sequences(tokens, response.float())


def drawn_logprobs(result: RolloutResult, sequences: Sequences) -> Tensor:
    """Log-probabilities when drawn, where `assemble` has put their tokens: [n, seq] float32, 0 elsewhere."""
    within = torch.arange(result.tokens.shape[1]) < result.lengths[:, None]
    return torch.zeros_like(sequences.response).masked_scatter(sequences.response.bool(), result.logprobs[within])


def supervised_batch(prompts: Sequence[Prompt], task: Task, tokenizer: Tokenizer, rollout: Rollout) -> Batch:
    """Prompts with the task's own answers and an end token. Raises TaskError for an answer that is too long."""
    rows, masks = [], []
    for prompt in prompts:
        question = _encode(prompt, tokenizer, rollout)
        answer = [*tokenizer.encode(task.answer(prompt)), tokenizer.eos_id]
        if len(answer) > rollout.max_response:
            raise TaskError(
                f"the answer to {prompt.text!r} has {len(answer)} tokens with its end, "
                f"rollout.max_response={rollout.max_response}: raise it"
            )
        rows.append(question + answer)
        masks.append([0] * len(question) + [1] * len(answer))
    width = rollout.max_prompt + rollout.max_response
    tokens, response = _padded(rows, width, tokenizer.pad_id), _padded(masks, width, 0).float()
    zeros = torch.zeros_like(response)
    return Batch(tokens, response, zeros, zeros, zeros, zeros, zeros, float(response.sum()), len(rows))


def _encode(prompt: Prompt, tokenizer: Tokenizer, rollout: Rollout) -> list[int]:
    ids = tokenizer.encode_prompt(prompt.text)
    if not 0 < len(ids) <= rollout.max_prompt:
        raise TaskError(
            f"prompt {prompt.index} has {len(ids)} tokens, 1 to rollout.max_prompt={rollout.max_prompt} are possible: "
            f"raise it or shorten task.template ({prompt.text[:60]!r})"
        )
    return ids


def _padded(rows: Sequence[Sequence[int]], width: int, pad: int) -> Tensor:
    return torch.tensor([[*row, *([pad] * (width - len(row)))] for row in rows])

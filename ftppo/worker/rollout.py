"""Draw answers. Comes in: this actor's share of the prompts; goes out: tokens, lengths, log-probabilities.

Where an answer ends, the next prompt takes its row of the cache at once. Who takes which row hangs on the request and
the tokens drawn, so that all ranks which share a model do alike; what is drawn does not hang on the row.
"""

from collections.abc import Callable

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from ftppo.config import Rollout
from ftppo.plan.packing import by_length
from ftppo.plan.seating import Seats
from ftppo.types import RolloutRequest, RolloutResult
from ftppo.worker.decoder import Decoder
from ftppo.worker.draw import draw, uniforms

PREFILL_TOKENS = 1024  # of prompts that are read together: enough to keep a processor busy


@torch.no_grad()
def generate(
    model: GPTModel, request: RolloutRequest, config: Rollout, eos: int, seed: int, tick: Callable[[], None]
) -> RolloutResult:
    """Answers to all rows of `request`, `config.batch` at a time. Equal on all TP and PP ranks that share the model.

    A turn of the loop draws the first token of the prompts that have just entered the cache or, where none has, one
    more token of each answer under way.
    """
    if request.temperature is not None:
        config = config.model_copy(update={"temperature": request.temperature})
    lengths = request.lengths.tolist()
    seats = Seats(lengths, config.batch)
    decoder = Decoder(model, seats.num_rows, max(lengths) + config.max_response)
    answers = _Answers(request, config, eos, seed, decoder)
    change = seats.turn()
    while seats.prompts:
        if change.entered:
            rows = torch.tensor(change.entered, device=decoder.device)
            prompts = torch.tensor([seats.prompts[row] for row in change.entered])
            answers.enter(rows, prompts)
            logits = _prefill(decoder, rows, request.rows(prompts), tick)
        else:
            tick()
            rows = decoder.rows[: len(seats.prompts)]
            logits = decoder.step(answers.newest(rows))
        ended = answers.draw(rows, logits)
        change = seats.turn(ended)
        if change.moved:
            sources, targets = torch.tensor([*change.moved.items()], device=decoder.device).unbind(1)
            decoder.move(sources, targets)
            answers.move(sources, targets)
    return answers.result()


def _prefill(decoder: Decoder, rows: Tensor, request: RolloutRequest, tick: Callable[[], None]) -> Tensor | None:
    """The prompts of `request`, longest first, enter `rows` [n]: those alike in length together. The logits of all."""
    start, found = 0, []
    for pack in by_length(request.lengths.tolist(), PREFILL_TOKENS, unit=1):
        tick()
        end = start + len(pack.rows)  # of prompts in this order a pack is a run
        tokens, lengths = request.tokens[start:end, : pack.width], request.lengths[start:end]
        logits = decoder.prefill(rows[start:end], tokens.to(decoder.device), lengths.to(decoder.device))
        found += [] if logits is None else [logits]
        start = end
    return torch.cat(found) if found else None


class _Answers:
    """What has been drawn: the cells of all answers, one behind the other, and in which cell each row goes on."""

    def __init__(self, request: RolloutRequest, config: Rollout, eos: int, seed: int, decoder: Decoder) -> None:
        self.config, self.eos, self.decoder = config, eos, decoder
        num, device = len(request.sample) * config.max_response, decoder.device
        self.uniforms = uniforms(request, config.max_response, seed).flatten().to(device)
        self.tokens = torch.zeros(num, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(num, device=device)
        self.cells = torch.zeros(len(decoder.rows), dtype=torch.int64, device=device)

    def enter(self, rows: Tensor, prompts: Tensor) -> None:
        """The answers to `prompts` [n] begin in `rows` [n]."""
        self.cells[rows] = prompts.to(rows.device) * self.config.max_response

    def newest(self, rows: Tensor) -> Tensor:
        """The last token drawn in each of `rows`."""
        return self.tokens[self.cells[rows] - 1]

    def draw(self, rows: Tensor, logits: Tensor | None) -> list[int]:
        """One token more in each of `rows`, by `logits` where this is the last stage; returns the rows that end."""
        config, cells = self.config, self.cells[rows]
        token = torch.zeros_like(cells)
        if logits is not None:
            token, logprob = draw(logits, self.uniforms[cells], config.temperature, config.top_k, config.top_p)
            self.logprobs[cells] = logprob
        self.tokens[cells] = token = self.decoder.share(token)
        self.cells[rows] = cells = cells + 1
        ended = (token == self.eos) | (cells % config.max_response == 0)
        return rows[ended].tolist()

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """The answers in the rows `sources` go on in the rows `targets`."""
        self.cells[targets] = self.cells[sources]

    def result(self) -> RolloutResult:
        """All answers. The end token is the last of an answer, and in an answer without one every cell is filled."""
        tokens, logprobs = (part.view(-1, self.config.max_response).cpu() for part in (self.tokens, self.logprobs))
        ends = tokens == self.eos
        lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, tokens.shape[1])
        return RolloutResult(tokens, lengths, logprobs)

"""The rows of a step: dealt out by length where micro-batches are, and then with the same number on every replica."""

import pytest
import torch

from ftppo.config import Config, Parallel, Train
from ftppo.driver.minibatch import mini_batch
from ftppo.plan.packing import by_length
from ftppo.types import Batch, lengths_of

NUM, SEQ, MINI = 48, 64, 24


def batch() -> Batch:
    """Rows that differ, of lengths from 2 to 60."""
    draw = torch.Generator().manual_seed(0)
    end = torch.randint(2, 60, (NUM, 1), generator=draw)
    place = torch.arange(SEQ)
    response = ((place >= 1) & (place < end)).float()
    numbers = torch.arange(NUM)[:, None].expand(NUM, SEQ)
    a, b, c, d, e = (torch.randn(NUM, SEQ, generator=draw) for _ in range(5))
    return Batch(numbers, response, a, b, c, d, e, float(response.sum()), NUM)


def config(dp: int, micro_tokens: int | None) -> Config:
    train = Train(mini_batch=MINI, prompts=NUM, micro_tokens=micro_tokens)
    return Config(seed=3, train=train, parallel=Parallel(dp=dp, tp=2))


def numbers(found: Batch) -> list[int]:
    return found.tokens[:, 0].tolist()


@pytest.mark.parametrize("dp", [1, 2, 3])
def test_the_same_rows_make_a_step_whether_or_not_they_are_dealt_out(dp: int) -> None:
    for number in range(4):
        plain, dealt = (mini_batch(batch(), number, 7, config(dp, tokens), dp) for tokens in (None, 128))
        assert sorted(numbers(plain)) == sorted(numbers(dealt)) and len(numbers(plain)) == MINI
        assert (plain.num_tokens, plain.num_sequences) == (dealt.num_tokens, dealt.num_sequences)
        assert plain.num_micro == 0 and torch.equal(
            plain.tokens, mini_batch(batch(), number, 7, config(1, None), 1).tokens
        )


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 6])
def test_every_replica_has_as_many_micro_batches(dp: int) -> None:
    for number in range(4):
        found = mini_batch(batch(), number, 7, config(dp, 128), dp)
        packs = [by_length(lengths_of(share.response), 128, 2, share.num_micro) for share in found.split(dp)]
        assert {len(one) for one in packs} == {found.num_micro} and found.num_micro > 1


def test_rows_keep_together() -> None:
    whole, found = batch(), mini_batch(batch(), 1, 7, config(2, 128), 2)
    for name in ("response", "logprobs", "ref_logprobs", "values", "advantages", "returns"):
        assert torch.equal(getattr(found, name), getattr(whole, name)[numbers(found)]), name


def test_a_sequence_ends_with_its_response() -> None:
    response = torch.tensor([[0.0, 1, 1, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]])
    assert lengths_of(response) == [3, 5, 1]

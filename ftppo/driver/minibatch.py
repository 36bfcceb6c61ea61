"""The rows of an optimizer step. Comes in: an iteration's Batch and the number of a step; goes out: its mini-batch.

Each epoch shuffles anew, by a seed that hangs on nothing but the run, the iteration and the epoch.
"""

import dataclasses

import torch

from ftppo.config import Config
from ftppo.plan.packing import by_length, dealt
from ftppo.rng import generator
from ftppo.types import Batch, lengths_of


def mini_batch(batch: Batch, number: int, iteration: int, config: Config, dp: int) -> Batch:
    """The mini-batch of step `number` of the iteration, rows in the order in which `dp` replicas share them out.

    With `train.micro_tokens` they are dealt out by length, and every replica is told into how many micro-batches it is
    to split its own: as many as the one needs that needs most.
    """
    num_rows, train = batch.tokens.shape[0], config.train
    epoch, mini = divmod(number, num_rows // train.mini_batch)
    order = torch.randperm(num_rows, generator=generator(config.seed, iteration, "shuffle", epoch))
    rows = order[mini * train.mini_batch : (mini + 1) * train.mini_batch]
    if train.micro_tokens is None:
        return batch.rows(rows)
    found = batch.rows(rows[dealt(lengths_of(batch.response[rows]), dp)])
    shares = [lengths_of(share.response) for share in found.split(dp)]
    num_micro = max(len(by_length(share, train.micro_tokens, config.length_unit)) for share in shares)
    return dataclasses.replace(found, num_micro=num_micro)

"""Which sequences run together. Comes in: their lengths; goes out: micro-batches, each padded to its own longest.

Pure and the same wherever it is asked, so that ranks which share rows agree without a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ftppo.config import Config

MOST_PADDING = 0.08  # of a pack
SMALL = 1 / 8  # of the budget


@dataclass(frozen=True)
class Pack:
    """One micro-batch: `rows` of a batch, each cut or padded to `width` tokens.

    Example: Pack(rows=(4, 0), width=24), of sequences with 21 and 17 tokens where widths are multiples of 8
    """

    rows: tuple[int, ...]
    width: int


def packs_of(lengths: Sequence[int], config: Config, at_least: int = 1) -> list[Pack]:
    """The micro-batches of sequences of these `lengths`, as `config` wants them."""
    train, sizes = config.train, config.rollout
    if train.micro_tokens is None:
        return even(len(lengths), train.micro_batch, sizes.max_prompt + sizes.max_response)
    return by_length(lengths, train.micro_tokens, config.length_unit, at_least)


def even(num_rows: int, most: int, width: int) -> list[Pack]:
    """Packs of as many rows each: the largest number, up to `most`, that divides them."""
    size = next(size for size in range(min(most, num_rows), 0, -1) if num_rows % size == 0)
    return [Pack(tuple(range(start, start + size)), width) for start in range(0, num_rows, size)]


def by_length(lengths: Sequence[int], budget: int, unit: int, at_least: int = 1) -> list[Pack]:
    """The longest sequences first, in packs of up to `budget` tokens, padding included; widths are multiples of `unit`.

    A pack ends before more than MOST_PADDING of it is padding, unless it is SMALL. There are `at_least` so many packs,
    where there are as many rows: who has fewer long rows than others makes as many packs as they. A row beyond the
    budget by itself has a pack of its own.
    """
    groups: list[list[int]] = []
    num_tokens = 0  # in the last of them
    for row in _longest_first(lengths):
        num_tokens += lengths[row]
        size = (len(groups[-1]) + 1) * _padded(lengths[groups[-1][0]], unit) if groups else budget + 1
        if size <= budget and (num_tokens >= (1 - MOST_PADDING) * size or size <= SMALL * budget):
            groups[-1].append(row)
        else:
            groups.append([row])
            num_tokens = lengths[row]
    while len(groups) < min(at_least, len(lengths)):
        fullest = max(range(len(groups)), key=lambda place: len(groups[place]))
        rows = groups[fullest]
        groups[fullest : fullest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return [Pack(tuple(rows), _padded(lengths[rows[0]], unit)) for rows in groups]


def dealt(lengths: Sequence[int], parts: int) -> list[int]:
    """All rows, part by part, so that every part has its share of long ones and of short ones: dealt out like cards."""
    order = _longest_first(lengths)
    return [row for part in range(parts) for row in order[part::parts]]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])


def _padded(length: int, unit: int) -> int:
    return -(-length // unit) * unit

"""A task from datasets. Comes in: the entries of one or several; goes out: an endless stream of prompts.

Which prompt stands at an index hangs on the seed and the index alone: a run that goes on from its cursor, in whatever
layout, meets every prompt that it would have met.
"""

import functools
import random
from collections.abc import Sequence
from itertools import accumulate

from ftppo.errors import TaskError
from ftppo.rng import seed_for
from ftppo.tasks.base import Asked
from ftppo.tasks.entries import Entry
from ftppo.tasks.reward import Scorer
from ftppo.types import Prompt

CACHED_EPOCHS = 2
BLOCK = 1000  # prompts, about, within which several datasets have their exact shares


class DatasetTask:
    """Entries of several datasets, mixed; an answer is worth what `scorer` says of it."""

    def __init__(
        self,
        parts: Sequence[Sequence[Entry]],
        weights: Sequence[float],
        scorer: Scorer,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self._streams = [_Stream(part, (seed, "dataset", number), shuffle) for number, part in enumerate(parts)]
        self._mixture = Mixture(weights, seed)
        self.scorer = scorer

    def prompt(self, index: int) -> Prompt:
        part, place = self._mixture.at(index)
        entry = self._streams[part].at(place)
        return Prompt(index=index, text=entry.text, entry=entry.fields)

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        return self.scorer(asked)

    def answer(self, prompt: Prompt) -> str:
        if "answer" not in prompt.entry:
            raise TaskError(
                "there are no reference answers to warm up on (task.answer_column): set train.warmup_steps=0"
            )
        return str(prompt.entry["answer"])


class Mixture:
    """Which dataset is asked at an index, and for its how-manieth prompt.

    Block after block, each dataset has as many places as its weight makes of BLOCK, in an order of the block's own.
    Weights that are whole numbers with a sum up to BLOCK are kept exactly.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self._shares, self._seed = _shares(weights), seed
        self._block = functools.lru_cache(maxsize=CACHED_EPOCHS)(self._order)

    def at(self, index: int) -> tuple[int, int]:
        """(number of the dataset, place in its own endless stream)."""
        block, place = divmod(index, sum(self._shares))
        part, before = self._block(block)[place]
        return part, block * self._shares[part] + before

    def _order(self, block: int) -> list[tuple[int, int]]:
        order = [part for part, share in enumerate(self._shares) for _ in range(share)]
        random.Random(seed_for(self._seed, "mixture", block)).shuffle(order)
        taken = [0] * len(self._shares)
        found = []
        for part in order:
            found.append((part, taken[part]))
            taken[part] += 1
        return found


class _Stream:
    """The entries of one dataset without end; where they are shuffled, every epoch has an order of its own."""

    def __init__(self, entries: Sequence[Entry], seed: tuple[object, ...], shuffle: bool) -> None:
        self._entries, self._seed, self._shuffle = entries, seed, shuffle
        self._order = functools.lru_cache(maxsize=CACHED_EPOCHS)(self._shuffled)

    def at(self, index: int) -> Entry:
        epoch, place = divmod(index, len(self._entries))
        return self._entries[self._order(epoch)[place] if self._shuffle else place]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._entries)))
        random.Random(seed_for(*self._seed, epoch)).shuffle(order)
        return order


def divide(entries: Sequence[Entry | None], share: float, seed: int, number: int) -> tuple[list[Entry], list[Entry]]:
    """(entries to train on, entries held out) of dataset `number`: `share` of them, drawn by the seed, at least one.

    Drawn among all rows, those left out included: what is held out does not hang on rollout.max_prompt.
    """
    num_held = max(1, round(share * len(entries))) if share else 0
    held = set(random.Random(seed_for(seed, "held out", number)).sample(range(len(entries)), num_held))
    train = [entry for place, entry in enumerate(entries) if entry is not None and place not in held]
    return train, [entries[place] for place in sorted(held) if entries[place] is not None]  # type: ignore[misc]


def _shares(weights: Sequence[float]) -> list[int]:
    """Places of each dataset in a block, in the proportion of the weights, at least one each."""
    total = sum(weights)
    if all(weight == int(weight) for weight in weights) and total <= BLOCK:
        return [int(weight) * int(BLOCK // total) for weight in weights]
    ends = [round(BLOCK * reach / total) for reach in accumulate(weights)]
    return [max(1, end - start) for start, end in zip([0, *ends], ends, strict=False)]

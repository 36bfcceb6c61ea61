"""Verifiable tasks by name from the reasoning-gym library, which is imported only when a task of this kind is built.

Comes in: a dataset's name, its arguments and a seed; goes out: endless prompts with the dataset's own scorer.
"""

import dataclasses
import difflib
import functools
import importlib
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ftppo.errors import ConfigError, TaskError
from ftppo.rng import seed_for
from ftppo.tasks.base import Asked, render
from ftppo.types import Prompt

DEFAULT_BLOCK = 1000  # prompts; as `size` in the arguments it can be changed
CACHED_BLOCKS = 4
HELD_OUT_FROM = 2**30  # the prompt from which on training never comes: the first half of the seeds is its own

_log = logging.getLogger(__name__)


class GymTask:
    """A reasoning-gym dataset without its end: block after block of `size` prompts, each block seeded anew.

    The template's fields are those of the entry's metadata, and `question`.
    """

    def __init__(self, name: str, args: Mapping[str, Any], template: str, seed: int) -> None:
        """Raises ConfigError for an unknown dataset or argument, TaskError where the dataset cannot score itself."""
        self._name, self._args, self._template = name, dict(args), template
        self._first_seed = seed_for(name, seed) % 2**30
        self._warned = False
        if "seed" in self._args:
            raise ConfigError("task.args.seed", self._args["seed"], "leave it out: prompts are seeded by the key seed")
        self._size = self._args.pop("size", DEFAULT_BLOCK)
        if not isinstance(self._size, int) or self._size < 1:
            raise ConfigError("task.args.size", self._size, "is the prompts of a block: give a whole number above 0")
        self._factory = _factory()
        if name not in self._factory.DATASETS:
            near = difflib.get_close_matches(name, self._factory.DATASETS, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "see reasoning_gym.factory.DATASETS for the names"
            raise ConfigError("task.name", name, f"reasoning-gym has no dataset of this name; {hint}")
        self._block = functools.lru_cache(maxsize=CACHED_BLOCKS)(self._build_block)
        self._check_first()

    def prompt(self, index: int) -> Prompt:
        block, place = divmod(index, self._size)
        dataset = self._block(block)
        try:
            entry = dict(dataset[place])
        except Exception as error:
            raise TaskError(f"task {self._name}: prompt {index} cannot be made: {error!r}; check task.args") from error
        fields = {**entry["metadata"], "question": entry["question"]}
        return Prompt(index=index, text=render(self._template, fields), entry=entry)

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        return [self.score(prompt, answer) for prompt, answer in asked]

    def score(self, prompt: Prompt, answer: str) -> float:
        """The dataset's own score. An answer on which the scorer stumbles is worth 0: some parse without care."""
        try:
            score = float(self._block(prompt.index // self._size).score_answer(answer, prompt.entry))
        except Exception as error:
            if not self._warned:
                _log.warning("task %s: its scorer raised %r on %r; such answers count 0", self._name, error, answer)
            self._warned = True
            return 0.0
        if not math.isfinite(score):
            raise TaskError(f"task {self._name}: scored {score} for the answer {answer!r} to prompt {prompt.index}")
        return score

    def answer(self, prompt: Prompt) -> str:
        answer = prompt.entry["answer"]
        if not isinstance(answer, str):
            raise TaskError(f"task {self._name} has no reference answers to warm up on: set train.warmup_steps=0")
        return answer

    def _build_block(self, block: int) -> Any:
        dataset_class, config_class = self._factory.DATASETS[self._name]
        # Datasets seed item i with seed + i, so blocks stand side by side; numpy takes no seed above 32 bits.
        seed = (self._first_seed + block * self._size) % 2**31
        try:
            return dataset_class(config_class(**self._args, seed=seed, size=self._size))
        except Exception as error:  # a config class raises what it likes; here it always means the arguments
            known = sorted({field.name for field in dataclasses.fields(config_class)} - {"seed"})
            remedy = f"{self._name} refuses this ({type(error).__name__}: {error}); its arguments: {', '.join(known)}"
            raise ConfigError("task.args", self._args, remedy) from error

    def _check_first(self) -> None:
        """A template or a scorer that cannot work shows at start, not in the first iteration."""
        first = self.prompt(0)
        try:
            self._block(0).score_answer(first.entry["answer"], first.entry)
        except Exception as error:
            raise TaskError(f"task {self._name}: its scorer fails on its own answer: {error!r}") from error


def _factory() -> Any:
    """reasoning_gym.factory, with all datasets registered. It takes a second or two, and only the driver needs it."""
    try:
        importlib.import_module("reasoning_gym")
        return importlib.import_module("reasoning_gym.factory")
    except ImportError as error:
        raise ConfigError("task.kind", "reasoning_gym", f"{error}: install the package reasoning-gym") from error

"""From the config to a task's objects. Comes in: the config and what reads datasets; goes out: Tasks, a Tokenizer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ftppo import config
from ftppo.config_task import Dataset
from ftppo.errors import TaskError
from ftppo.tasks.base import Later, Task
from ftppo.tasks.chat import ChatTemplate
from ftppo.tasks.dataset import DatasetTask, divide
from ftppo.tasks.entries import EntryMaker
from ftppo.tasks.gym import HELD_OUT_FROM, GymTask
from ftppo.tasks.pretrained import PretrainedTokenizer
from ftppo.tasks.reward import RewardedTask, Scorer, scorer_of
from ftppo.tasks.rows import Row
from ftppo.tasks.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

type ReadRows = Callable[[Dataset], Iterable[Row]]


@dataclass(frozen=True)
class Tasks:
    """What is trained on, and what is kept from training; `notes` are to be told once."""

    train: Task
    held_out: Task | None = None  # None: nothing is held out
    notes: tuple[str, ...] = ()


def build_tasks(config: config.Config, tokenizer: Tokenizer, read: ReadRows) -> Tasks:
    """The tasks of `config.task`, judged as it says. Raises ConfigError or TaskError."""
    scorer = scorer_of(config.task, config.judge)
    if config.task.kind == "reasoning_gym":
        return _gym(config, scorer)
    assert scorer is not None, "datasets do not judge"
    try:
        return _datasets(config, tokenizer, read, scorer)
    except BaseException:
        scorer.close()
        raise


def build_tokenizer(task: config.Task, model: config.Model) -> Tokenizer:
    """The tokenizer of `model.path` where one is given, else of `task.tokenizer`. Raises ConfigError."""
    if model.path is not None:
        return PretrainedTokenizer(model)
    return ByteTokenizer() if task.tokenizer == "byte" else CharTokenizer(task.alphabet)


def _gym(config: config.Config, scorer: Scorer | None) -> Tasks:
    task: Task = GymTask(config.task.name, config.task.args, config.task.template, config.seed)
    if scorer is not None:
        task = RewardedTask(task, scorer)
    return Tasks(task, Later(task, HELD_OUT_FROM))


def _datasets(config: config.Config, tokenizer: Tokenizer, read: ReadRows, scorer: Scorer) -> Tasks:
    task, parts = config.task, config.task.parts()
    chat = ChatTemplate(config.model) if task.chat else None
    maker = EntryMaker(task, tokenizer, config.rollout.max_prompt, chat)
    train, held_out, notes = [], [], []
    for number, part in enumerate(parts):
        entries = maker.make(read(part), part)
        kept, held = divide(entries, task.held_out, config.seed, number)
        if not kept:
            raise TaskError(f"{part.path}: task.held_out={task.held_out} leaves nothing to train on: lower it")
        train.append(kept)
        held_out.append(held)
        if num_left := entries.count(None):
            limit = f"rollout.max_prompt={config.rollout.max_prompt}"
            notes.append(
                f"{part.path}: {num_left} of {len(entries)} prompts are left out, empty or above {limit} tokens"
            )
    weights = [part.weight for part in parts]
    return Tasks(
        DatasetTask(train, weights, scorer, config.seed, task.shuffle),
        DatasetTask(held_out, weights, scorer, config.seed, task.shuffle) if all(held_out) else None,
        tuple(notes),
    )

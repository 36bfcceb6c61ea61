"""From the config to a task's objects. Comes in: the config and what reads datasets; goes out: Tasks, a Tokenizer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ftppo import config
from ftppo.config_task import Dataset
from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.base import Later, Task
from ftppo.tasks.chat import ChatTemplate
from ftppo.tasks.dataset import DatasetTask, divide
from ftppo.tasks.entries import Entry, EntryMaker
from ftppo.tasks.gym import HELD_OUT_FROM, GymTask
from ftppo.tasks.pretrained import PretrainedTokenizer
from ftppo.tasks.reward import RewardedTask, Scorer, scorer_of
from ftppo.tasks.rows import Row, RowDigest
from ftppo.tasks.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

type ReadRows = Callable[[Dataset], Iterable[Row]]


@dataclass(frozen=True)
class Tasks:
    """What is trained on, and what is kept from training; `notes` are to be told once."""

    train: Task
    held_out: Task | None = None  # None: nothing is held out
    num_held_out: int | None = None  # its prompts before they come again; None: never
    notes: tuple[str, ...] = ()
    scorer: Scorer | None = None  # of both; None: they judge themselves
    digest: str | None = None  # of the rows that are trained on; None: there are none

    def close(self) -> None:
        """Let go of the processes that judge."""
        if self.scorer is not None:
            self.scorer.close()


def build_tasks(config: config.Config, tokenizer: Tokenizer, read: ReadRows) -> Tasks:
    """The tasks of `config.task`, judged as it says. Raises ConfigError or TaskError."""
    scorer = scorer_of(config.task, config.judge)
    try:
        if config.task.kind == "reasoning_gym":
            return _gym(config, scorer)
        assert scorer is not None, "datasets do not judge"
        return _datasets(config, tokenizer, read, scorer)
    except BaseException:
        if scorer is not None:
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
    return Tasks(task, Later(task, HELD_OUT_FROM), scorer=scorer)


def _datasets(config: config.Config, tokenizer: Tokenizer, read: ReadRows, scorer: Scorer) -> Tasks:
    task, notes = config.task, list[str]()
    chat = ChatTemplate(config.model) if task.chat else None
    maker = EntryMaker(task, tokenizer, config.rollout.max_prompt, chat)

    def load(part: Dataset, digest: RowDigest | None = None) -> list[Entry | None]:
        entries = maker.make(read(part) if digest is None else digest.of(read(part)), part)
        if num_left := entries.count(None):
            limit = f"empty or above rollout.max_prompt={config.rollout.max_prompt} tokens"
            notes.append(f"{part.path}: {num_left} of {len(entries)} prompts are left out, {limit}")
        return entries

    def mixed(entries: Sequence[Sequence[Entry]], parts: Sequence[Dataset]) -> DatasetTask:
        return DatasetTask(entries, [part.weight for part in parts], scorer, config.seed, task.shuffle)

    parts, others = task.parts(), _eval_parts(config)
    digest = RowDigest()
    divided = [divide(load(part, digest), task.held_out, config.seed, number) for number, part in enumerate(parts)]
    if task.digest not in (None, digest.text):
        remedy = f"the rows of task.path, or task.datasets, are others: their digest is {digest.text}"
        raise ConfigError("task.digest", task.digest, remedy)
    held = [one for _, one in divided] if others is None else [divide(load(part), 0.0, 0, 0)[0] for part in others]
    for part, (kept, _) in zip(parts, divided, strict=True):
        if not kept:
            raise TaskError(f"{part.path}: task.held_out={task.held_out} leaves nothing to train on: lower it")
    wanted = others is not None or task.held_out > 0
    if wanted and not all(held):
        raise TaskError(f"task.held_out={task.held_out} holds out none of the prompts that are short enough: raise it")
    held_out = mixed(held, others or parts) if wanted else None
    train = mixed([kept for kept, _ in divided], parts)
    return Tasks(train, held_out, sum(map(len, held)) or None, tuple(notes), scorer, digest.text)


def _eval_parts(config: config.Config) -> tuple[Dataset, ...] | None:
    """The datasets that are evaluated on; None: what is held out of the task's own."""
    knobs, task = config.eval, config.task
    if knobs.path is not None:
        return (task.completed(Dataset(path=knobs.path, split=knobs.split)),)
    if knobs.split is not None:
        return tuple(part.model_copy(update={"split": knobs.split}) for part in task.parts())
    return None

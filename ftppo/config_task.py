"""The sections task, judge, reward and eval of the configuration. Comes in: keys; goes out: where prompts come from,
what an answer is worth, who says so, and what is asked of prompts that training never sees.
"""

from typing import Any, Literal

from pydantic import Field

from ftppo.config_model import Section


class Dataset(Section):
    """One of several datasets that a task mixes. What is null here is as the task says."""

    path: str
    weight: float = Field(1.0, gt=0)  # its share of the prompts, beside the other datasets' weights
    prompt_column: str | None = None
    answer_column: str | None = None
    split: str | None = None


class Task(Section):
    """Where prompts come from and what an answer is worth.

    All kinds but reasoning_gym read datasets: `path`, or several in `datasets`.
    """

    kind: Literal["reasoning_gym", "jsonl", "parquet", "hub"] = "reasoning_gym"
    name: str = "spell_backward"  # reasoning-gym's dataset name
    args: dict[str, Any] = Field(default_factory=dict)  # passed to that dataset
    path: str | None = None  # a file, or a folder of them, here, at s3:// or gs://; hub: a name
    datasets: tuple[Dataset, ...] = ()  # instead of path: several, mixed by their weights
    digest: str | None = None  # of all rows; null: filled in when they are read. A run goes on with the same rows alone
    endpoint: str | None = None  # of the files: another S3 or GCS server than the cloud's own
    split: str = "train"  # hub: which part of the dataset
    prompt_column: str = "prompt"  # a text or, with chat, a list of messages, each {"role", "content"}
    answer_column: str | None = "answer"  # null: there are none, task.reward does without
    answer_pattern: str | None = None  # regular expression that finds the answer in its column, as response_pattern
    shuffle: bool = True  # every epoch in an order of its own; false: as the files have it
    held_out: float = Field(0.0, ge=0, lt=1)  # share of the entries that training never sees, for eval
    match: Literal["exact", "numeric", "regex", "math"] = "exact"  # how an answer is judged; regex: the entry's is one
    response_pattern: str | None = None  # regular expression: what it finds last, or its group, is judged; else all is
    template: str = "{question}"  # str.format over the entry and its metadata
    chat: bool = False  # put prompts into the chat template of the model's tokenizer
    system: str | None = None  # with chat: what is said before the prompt
    reward: str | None = (
        None  # dotted path of a function (answer: str, entry: dict) -> float, or a coroutine, instead of the task's own
    )
    tokenizer: Literal["byte", "char"] = "byte"  # of a model that comes without one
    alphabet: str | None = None  # char: the characters, in order of their ids

    def parts(self) -> tuple[Dataset, ...]:
        """The datasets to read, nothing in them null; none for reasoning_gym."""
        given = self.datasets or ((Dataset(path=self.path),) if self.path is not None else ())
        return tuple(map(self.completed, given))

    def completed(self, part: Dataset) -> Dataset:
        """`part` with the task's own keys in the place of what is null."""
        own = {
            "prompt_column": part.prompt_column or self.prompt_column,
            "answer_column": part.answer_column or self.answer_column,
            "split": part.split or self.split,
        }
        return part.model_copy(update=own)


class Judge(Section):
    """The processes, outside Ray, in which answers are judged by what may hang or crash; see ftppo/tasks/reward.py."""

    processes: int = Field(2, ge=1)  # answers judged at once
    timeout_s: float = Field(10.0, gt=0)  # of one answer; its process is killed then
    start_s: float = Field(60.0, gt=0)  # until a process has imported the function
    memory_mb: int | None = Field(None, ge=64)  # address space of a process: asking for more raises MemoryError in it
    on_error: Literal["zero", "fail"] = "zero"  # an answer without a score counts 0, or ends the run


class Reward(Section):
    """A model on the training actors that says what whole answers are worth, beside the task or in its place."""

    path: str | None = None  # folder or name of a Hugging Face sequence classifier with one label
    coef: float = Field(1.0, gt=0)  # of what it says
    task_coef: float = Field(1.0, ge=0)  # of what the task says; 0: the task is not asked


class Eval(Section):
    """What is asked of held-out prompts: of reasoning-gym's others, of `path`, or of the share `task.held_out`."""

    every_iterations: int = Field(0, ge=0)  # before the first iteration, after every n, and after the last; 0: never
    prompts: int = Field(64, ge=1)
    samples: int = Field(0, ge=0)  # answers drawn to each prompt besides the greedy one, for pass@k
    temperature: float = Field(1.0, gt=0)  # of those
    pass_reward: float = 1.0  # an answer that is worth this much is right
    path: str | None = None  # datasets: held-out prompts in the format of the task; hub: a name
    split: str | None = None  # hub: the part that is held out, of `path` or else of task.path

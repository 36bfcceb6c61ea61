"""The sections task and judge of the configuration. Comes in: keys; goes out: where prompts come from, what an answer
is worth, and who says so.
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
        return tuple(
            one.model_copy(
                update={
                    "prompt_column": one.prompt_column or self.prompt_column,
                    "answer_column": one.answer_column or self.answer_column,
                    "split": one.split or self.split,
                }
            )
            for one in given
        )


class Judge(Section):
    """The processes, outside Ray, in which all but exact and numeric matches and reasoning-gym's scorers run."""

    processes: int = Field(2, ge=1)  # answers judged at once
    timeout_s: float = Field(10.0, gt=0)  # of one answer; its process is killed then
    start_s: float = Field(60.0, gt=0)  # until a process has imported the function
    on_error: Literal["zero", "fail"] = "zero"  # an answer without a score counts 0, or ends the run

"""The checks of the sections task, reward and eval. Comes in: typed sections; goes out: nothing, or a ConfigError.

Files are only looked for here; what is in them is read by ftppo/tasks.
"""

import re
import string
from pathlib import Path

from ftppo.config_errors import require
from ftppo.config_model import Model
from ftppo.config_task import Eval, Reward, Task
from ftppo.errors import ConfigError

FILES = ("jsonl", "parquet")


def check_task(task: Task, model: Model, reward: Reward) -> None:
    """Raise ConfigError for the first combination of keys that cannot run."""
    if task.kind == "reasoning_gym":
        _gym(task)
    else:
        _datasets(task, reward)
    for key in ("answer_pattern", "response_pattern"):
        _pattern(f"task.{key}", getattr(task, key))
    _unused(task)
    _prompts(task, model)
    if task.tokenizer == "byte":
        remedy = "is for task.tokenizer=char: set that, or leave it out"
        require(task.alphabet is None, "task.alphabet", task.alphabet, remedy)


def check_reward(reward: Reward, found: Model | None, task: Task, model: Model) -> None:
    """Raise ConfigError where no model is `found` that could judge, or one that would misread the policy's tokens."""
    if found is None:
        for key in ("coef", "task_coef"):
            value, default = getattr(reward, key), getattr(Reward(), key)
            remedy = "weighs a reward model: give reward.path, or leave it out"
            require(value == default, f"reward.{key}", value, remedy)
        return
    remedy = "reads the tokens of a pretrained policy: give model.path, with the tokenizer that it was trained with"
    require(model.path is not None, "reward.path", reward.path, remedy)
    num, least = found.vocab or 0, model.vocab or 0
    remedy = f"has {num} tokens, the policy {least}: take a classifier with the tokenizer of model.path"
    require(num >= least, "reward.path", reward.path, remedy)
    remedy = "is not asked with reward.task_coef=0: leave one of the two out"
    require(task.reward is None or reward.task_coef > 0, "task.reward", task.reward, remedy)


def check_eval(knobs: Eval, task: Task) -> None:
    """Raise ConfigError where there is nothing to evaluate on, or more than one thing."""
    given = {"path": knobs.path, "split": knobs.split}
    for key, value in given.items():
        remedy = "reasoning-gym makes held-out prompts of its own: leave it out"
        require(value is None or task.kind != "reasoning_gym", f"eval.{key}", value, remedy)
        require(
            value is None or not task.held_out, f"eval.{key}", value, "task.held_out is evaluated on: leave one out"
        )
    require(knobs.split is None or task.kind == "hub", "eval.split", knobs.split, "is for task.kind=hub: leave it out")
    if knobs.path is not None and task.kind in FILES:
        check_place("eval.path", knobs.path)
    if knobs.every_iterations and task.kind != "reasoning_gym":
        remedy = "there are no prompts to evaluate on: hold some out, task.held_out=0.1, or give eval.path"
        require(any(given.values()) or task.held_out > 0, "task.held_out", task.held_out, remedy)


def check_endpoint(key: str, endpoint: str | None) -> None:
    """Raise ConfigError for what is no address of a server."""
    scheme, _, host = (endpoint or "http://-").partition("://")
    require("@" not in host, key, "...", "holds credentials; give them to the environment instead")
    remedy = "must be http://host[:port] or https://host[:port]"
    require(scheme in ("http", "https") and bool(host), key, endpoint, remedy)


def check_place(key: str, path: str) -> None:
    """Raise ConfigError for a file or folder that is not there, and for a URL that no store is for."""
    scheme, marker, rest = path.partition("://")
    if not marker or scheme == "file":
        require(Path(rest if marker else path).exists(), key, path, f"no such file (looked in {Path.cwd()})")
        return
    require("@" not in rest.partition("/")[0], key, "...", "holds credentials; give them to the environment instead")
    require(
        scheme in ("s3", "gs"), key, path, f"no store for {scheme}://; use a path, s3://bucket/key, gs://bucket/key"
    )
    bucket, _, name = rest.partition("/")
    require(bool(bucket and name), key, path, f"names no object: {scheme}://bucket/key")


def _gym(task: Task) -> None:
    given = {"path": task.path, "datasets": task.datasets, "digest": task.digest, "endpoint": task.endpoint}
    for key, value in given.items():
        remedy = f"is read by task.kind=jsonl, parquet and hub only: set one, or leave {key} out"
        require(not value, f"task.{key}", value, remedy)
    remedy = "reasoning-gym makes prompts without end, and others for eval: leave it out"
    require(not task.held_out, "task.held_out", task.held_out, remedy)


def _datasets(task: Task, reward: Reward) -> None:
    require(not task.args, "task.args", task.args, "arguments are for task.kind=reasoning_gym; leave them out")
    what = 'names a dataset: task.path="owner/name"' if task.kind == "hub" else 'reads a file: name it, task.path="..."'
    require(bool(task.path or task.datasets), "task.path", task.path, f"task.kind={task.kind} {what}")
    remedy = "task.datasets are read instead: leave one of the two out"
    require(not (task.path and task.datasets), "task.path", task.path, remedy)
    if task.kind in FILES:
        for place, part in enumerate(task.parts()):
            check_place(f"task.datasets.{place}.path" if task.datasets else "task.path", part.path)
    check_endpoint("task.endpoint", task.endpoint)
    remedy = "without answers only a function can judge, task.reward, or a model, reward.path with reward.task_coef=0"
    judged = task.answer_column is not None or task.reward is not None or not reward.task_coef
    require(judged, "task.answer_column", None, remedy)


def _unused(task: Task) -> None:
    """Where another judges, these would mislead."""
    other = "task.reward judges" if task.reward is not None else "reasoning-gym's own scorer judges"
    if task.reward is not None or task.kind == "reasoning_gym":
        remedy = f"{other}: leave it out"
        require(task.response_pattern is None, "task.response_pattern", task.response_pattern, remedy)


def _pattern(key: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(key, pattern, f"is no regular expression ({error}); see Python's re") from error


def _prompts(task: Task, model: Model) -> None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(task.template) if name is not None]
    except ValueError as error:
        raise ConfigError(
            "task.template", task.template, f"is no format string ({error}); write {{{{ for {{"
        ) from error
    remedy = "names no field of the entry, so all prompts would be equal; for example '{question}'"
    require(bool(names), "task.template", task.template, remedy)
    if task.chat:
        remedy = "takes the template of a pretrained model's tokenizer: give model.path, or leave chat out"
        require(model.path is not None, "task.chat", True, remedy)
    else:
        remedy = "is said in a chat: set task.chat=true, or write it into task.template"
        require(task.system is None, "task.system", task.system, remedy)

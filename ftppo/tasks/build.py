"""From the config to a task's objects. Comes in: config sections and the seed; goes out: a Task, a Tokenizer."""

from ftppo import config
from ftppo.tasks.base import Task
from ftppo.tasks.gym import GymTask
from ftppo.tasks.jsonl import JsonlTask
from ftppo.tasks.pretrained import PretrainedTokenizer
from ftppo.tasks.reward import RewardedTask, load_reward
from ftppo.tasks.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer


def build_task(task: config.Task, seed: int) -> Task:
    """The task of `task.kind`, with the user's reward where one is given. Raises ConfigError or TaskError."""
    reward = load_reward(task.reward) if task.reward else None
    built: Task
    match task.kind:
        case "reasoning_gym":
            built = GymTask(task.name, task.args, task.template, seed)
        case "jsonl":
            built = JsonlTask(task.path, task.match, task.template, seed)
    return RewardedTask(built, reward, task.reward) if reward and task.reward else built


def build_tokenizer(task: config.Task, model: config.Model) -> Tokenizer:
    """The tokenizer of `model.path` where one is given, else of `task.tokenizer`. Raises ConfigError."""
    if model.path is not None:
        return PretrainedTokenizer(model)
    return ByteTokenizer() if task.tokenizer == "byte" else CharTokenizer(task.alphabet)

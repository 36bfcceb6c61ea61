"""Tasks made from files. Comes in: keys of the task section; goes out: the Tasks that a run would have."""

import functools
import json
from pathlib import Path
from typing import Any

from ftppo.config import Config
from ftppo.driver.datafiles import read_rows
from ftppo.tasks.build import Tasks, build_tasks, build_tokenizer


def write_jsonl(path: Path, *rows: Any) -> str:
    """A file of JSON lines; what is text already is written as it is."""
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def numbered(path: Path, count: int, name: str = "p") -> str:
    """A file of prompts <name>0, <name>1, ..."""
    return write_jsonl(path, *({"prompt": f"{name}{i}", "answer": f"a{i}"} for i in range(count)))


def make_tasks(
    seed: int = 0,
    max_prompt: int = 200,
    judge: dict[str, Any] | None = None,
    evaluate: dict[str, Any] | None = None,
    **task: Any,
) -> Tasks:
    """The tasks of these keys, with the byte tokenizer."""
    keys = {"kind": "jsonl"} | task
    groups = {"task": keys, "judge": judge or {}, "eval": evaluate or {}, "rollout": {"max_prompt": max_prompt}}
    config = Config.model_validate({"seed": seed} | groups)
    tokenizer = build_tokenizer(config.task, config.model)
    return build_tasks(config, tokenizer, functools.partial(read_rows, config))

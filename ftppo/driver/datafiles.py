"""Where datasets lie. Comes in: a path, a URL or a name on the hub; goes out: the rows found there.

Files are read whole, through the stores that checkpoints use, with their retries and from the same credentials.
"""

from collections.abc import Iterator

from ftppo.checkpoint.stores import retrying_store_of
from ftppo.config import Config
from ftppo.config_task import Dataset
from ftppo.errors import ConfigError, NotFound, StorageError
from ftppo.storage.base import ObjectStore
from ftppo.tasks.rows import Row, read_hub, read_jsonl, read_parquet

KEY = "task.path"
_READERS = {"jsonl": read_jsonl, "parquet": read_parquet}


def read_rows(config: Config, part: Dataset) -> Iterator[Row]:
    """All rows of one dataset, file by file. Raises ConfigError where there is none, TaskError for a bad row."""
    if config.task.kind == "hub":
        assert part.split is not None, "Task.parts has filled it in"
        yield from read_hub(part.path, part.split)
        return
    read = _READERS[config.task.kind]
    root, _, name = part.path.rstrip("/").rpartition("/")
    if not root:
        root = "/" if part.path.startswith("/") else "."
    knobs = config.checkpoint.model_copy(update={"url": root, "endpoint": config.task.endpoint})
    try:
        store = retrying_store_of(knobs)
    except ConfigError as error:  # about the key that it usually comes from
        raise ConfigError(KEY, part.path, error.remedy) from error
    try:
        for key in _keys(store, name, f".{config.task.kind}", part.path):
            yield from read(f"{root}/{key}" if root != "." else key, store.get(key))
    except StorageError as error:
        raise ConfigError(KEY, part.path, f"cannot be read: {error}") from error
    finally:
        store.close()


def _keys(store: ObjectStore, name: str, suffix: str, path: str) -> list[str]:
    """The file of this name alone, or the files of a folder, by name."""
    try:
        store.stat(name)
    except NotFound:
        found = [info.key for info in store.list(f"{name}/") if info.key.endswith(suffix)]
        if not found:
            raise ConfigError(KEY, path, f"no such file, and no folder that holds any *{suffix}") from None
        return found
    return [name]

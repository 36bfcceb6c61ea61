"""What data files hold. Comes in: names and bytes of JSON-lines or Parquet files, or a name on the hub; goes out: rows.

Every row knows its place, "file, line 3", for whoever has to complain about it.
"""

import hashlib
import importlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ftppo.errors import ConfigError, TaskError


@dataclass(frozen=True)
class Row:
    """One row of a dataset. Example: Row("mine.jsonl, line 3", {"prompt": "2+2=", "answer": 4})"""

    where: str
    fields: dict[str, Any]


class RowDigest:
    """The digest of all rows that pass through."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def of(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows."""
        for row in rows:
            self._hash.update(repr(row.fields).encode())
            yield row
        self._hash.update(b"end")

    @property
    def text(self) -> str:
        """As hexadecimal digits."""
        return self._hash.hexdigest()


def read_jsonl(name: str, data: bytes) -> Iterator[Row]:
    """The objects of JSON lines, one a line; blank lines are left out. Raises TaskError naming file and line."""
    for number, line in enumerate(data.split(b"\n"), 1):  # only there: text may hold other characters that end a line
        if line.strip():
            where = f"{name}, line {number}"
            yield Row(where, _parse(line, where))


def read_parquet(name: str, data: bytes) -> Iterator[Row]:
    """The rows of a Parquet file, counted from 1. Raises TaskError naming the file where it is none."""
    import pyarrow
    from pyarrow import parquet

    try:
        batches = parquet.ParquetFile(io.BytesIO(data)).iter_batches()
        rows = (fields for batch in batches for fields in batch.to_pylist())
        yield from _numbered(name, rows)
    except pyarrow.ArrowException as error:
        raise TaskError(f"{name}: no Parquet file that can be read: {error}") from error


def read_hub(name: str, split: str) -> Iterator[Row]:
    """The rows of a dataset on the Hugging Face hub, "owner/name" or "owner/name:configuration". Raises ConfigError."""
    path, _, configuration = name.partition(":")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        remedy = "is read by the package datasets, which is not here: pip install datasets, or name files"
        raise ConfigError("task.kind", "hub", remedy) from error
    try:
        found = datasets.load_dataset(path, configuration or None, split=split)
    except Exception as error:  # of the hub, its HTTP client and the system: they have no root of their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = f"the hub does not give its split {split!r} ({reason}): see task.split, or name files"
        raise ConfigError("task.path", name, remedy) from error
    return _numbered(f"{name}:{split}", (dict(one) for one in found))


def _numbered(name: str, rows: Iterable[dict[str, Any]]) -> Iterator[Row]:
    return (Row(f"{name}, row {number}", fields) for number, fields in enumerate(rows, 1))


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode())
    except ValueError as error:
        raise TaskError(f"{where}: not JSON in UTF-8: {error}") from error
    if not isinstance(fields, dict):
        raise TaskError(f"{where}: a JSON object is wanted, not {type(fields).__name__}")
    return fields

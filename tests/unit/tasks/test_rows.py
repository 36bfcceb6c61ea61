"""Rows of Parquet files and of the hub: what is in them, and what is said where there are none."""

import datetime
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.rows import read_hub
from tests.unit.tasks.making import make_tasks


def write_parquet(path: Path, **columns: Any) -> str:
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return str(path)


def test_rows_of_parquet_are_entries_with_all_their_columns(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    path = write_parquet(tmp_path / "a.parquet", prompt=["a", "b", "c"], answer=[1, 2, 3], day=[day] * 3)
    task = make_tasks(kind="parquet", path=path, shuffle=False, match="numeric", template="{question} on {day}").train
    assert [task.prompt(index).text for index in range(4)] == [f"{name} on 2026-01-02" for name in "abca"]
    assert task.prompt(2).entry == {"prompt": "c", "answer": "3", "day": day}


def test_a_bad_row_of_parquet_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", prompt=["a", "b", None], answer=["1", "2", "3"])
    with pytest.raises(TaskError, match=r'a.parquet, row 3: "prompt" is to be a string, not None'):
        make_tasks(kind="parquet", path=path)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(TaskError, match=r"b\.parquet: no Parquet file"):
        make_tasks(kind="parquet", path=str(tmp_path / "b.parquet"))


def test_the_hub_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets, or name files") as caught:
        make_tasks(kind="hub", path="owner/name")
    assert caught.value.key == "task.kind"


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, configuration: str | None, split: str) -> list[dict[str, str]]:
        if path != "owner/name":
            raise ConnectionError("no network\nand more")
        return [{"prompt": f"{configuration} {split}", "answer": "a"}]

    stand_in = types.ModuleType("datasets")
    stand_in.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    tasks = make_tasks(kind="hub", path="owner/name:main", split="test")
    assert tasks.train.prompt(5).text == "main test"
    assert [row.where for row in read_hub("owner/name", "train")] == ["owner/name:train, row 1"]
    with pytest.raises(ConfigError, match=r"split 'train' \(no network\)") as caught:
        make_tasks(kind="hub", path="owner/other")
    assert caught.value.key == "task.path"

"""JSON that outlives a kill."""

import json
from pathlib import Path

import pytest

from ftppo.driver.jsonfiles import JsonLines, read_lines, to_json, write_atomic


def test_numbers_that_are_not_finite_become_null_at_any_depth() -> None:
    text = to_json({"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": (float("-inf"), 2)}})
    assert json.loads(text) == {"a": None, "b": [1.5, None], "c": {"d": [None, 2]}}


def test_each_line_is_on_disk_before_the_next(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.append({"n": 1})
    assert read_lines(tmp_path / "x.jsonl") == [{"n": 1}]
    lines.append({"n": 2, "text": "Zürich\n"})
    assert read_lines(tmp_path / "x.jsonl") == [{"n": 1}, {"n": 2, "text": "Zürich\n"}]
    lines.close()
    lines.close()


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2, "te')
    lines = JsonLines(path)
    lines.append({"n": 3})
    lines.close()
    assert read_lines(path) == [{"n": 1}, {"n": 3}]


def test_a_line_separator_inside_a_value_does_not_split_its_line(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.append({"text": "a\u2028b\x85c"})
    lines.close()
    assert read_lines(tmp_path / "x.jsonl") == [{"text": "a\u2028b\x85c"}]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \udc00")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]

"""The report: whole, self-contained, true to the files."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.driver.history import read_history
from ftppo.driver.record import IterationMetrics, Summary
from ftppo.driver.report import write_report
from ftppo.driver.runfiles import RunFiles

VOID = {"meta"}


class Page(HTMLParser):
    """Elements of a page with their attributes; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.elements if name in (attrs.get("class") or "").split()]


def page_of(folder: Path) -> tuple[Page, str]:
    text = write_report(folder).read_text()
    return Page(text), text


def test_it_needs_nothing_but_itself(run_folder: Path) -> None:
    page, text = page_of(run_folder)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "use", "image"}
    assert not any({"src", "href", "xlink:href", "style"} & attrs.keys() for _, attrs in page.elements)
    assert "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_it_escapes_what_it_did_not_write(run_folder: Path) -> None:
    _, text = page_of(run_folder)
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text
    assert "a&amp;b" in text


def test_charts_are_named_for_those_who_do_not_see_them(run_folder: Path) -> None:
    page, _ = page_of(run_folder)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    images = [attrs for tag, attrs in page.elements if tag == "svg" and attrs.get("role") == "img"]
    assert len(images) >= 5
    for attrs in images:
        assert set((attrs["aria-labelledby"] or "").split()) <= set(ids)


def test_recoveries_are_told_and_marked_where_they_fell(run_folder: Path) -> None:
    page, text = page_of(run_folder)
    assert len(page.of_class("recovery")) == 2
    assert "slot 3: crash in update" in text and "slots 0, 1: node_lost in rollout" in text
    reward = text[text.index('id="h-reward"') : text.index('id="h-recoveries"')]
    marks = re.findall(r'<line x1="([\d.]+)%" x2="\1%" y1="0" y2="100%"/>\s*<text[^>]*>([^<]*)<', reward)
    assert [(float(at), name) for at, name in marks] == [(28.57, "R1"), (57.14, "R2")]  # iterations 2 and 4 of 0..7


def test_the_last_attempt_counts_and_the_earlier_is_drawn_faint(run_folder: Path) -> None:
    history = read_history(run_folder)
    assert [one.iteration for one in history.iterations] == list(range(8))
    assert [one.reward_mean for one in history.iterations][4:6] == pytest.approx([0.42, 0.52])
    (lost,) = history.superseded
    assert [(one.iteration, one.reward_mean) for one in lost] == [(3, 0.3), (4, 0.4), (5, 0.5)]
    page, text = page_of(run_folder)
    assert page.of_class("faint")
    assert "run again from an older state" in text


def test_a_number_that_was_not_finite_is_a_gap(run_folder: Path) -> None:
    history = read_history(run_folder)
    assert [one.policy_grad_norm for one in history.iterations][1:4] == [1.0, None, 1.0]
    page_of(run_folder)


def test_it_shows_configuration_checkpoints_and_outcome(run_folder: Path, summary: Summary) -> None:
    _, text = page_of(run_folder)
    assert "<td>model.layers</td><td>2</td>" in text
    assert "<td>3.0 MiB</td>" in text
    assert 'class="pill finished"' in text
    assert summary.state_digest is not None and summary.state_digest in text


def test_a_run_that_has_only_begun_has_a_report_too(tmp_path: Path) -> None:
    with RunFiles(tmp_path / "young", FakeClock(), resume=False) as files:
        page, text = page_of(tmp_path / "young")
        assert "not finished" in text and "young" in text
        assert not page.of_class("chart")
        files.iteration(IterationMetrics(0, 4, reward_mean=0.5))
        page, _ = page_of(tmp_path / "young")
        assert len(page.of_class("chart")) == 1


def test_the_same_files_give_the_same_report(run_folder: Path) -> None:
    assert write_report(run_folder).read_bytes() == write_report(run_folder).read_bytes()
    assert not [path for path in run_folder.iterdir() if path.name.endswith(".tmp")]

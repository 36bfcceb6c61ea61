"""The driver's part of a call grows with the slots and no faster: lines run are counted, not time."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from ftppo.clock import FakeClock
from ftppo.driver.detect import survey
from ftppo.driver.dispatch import dispatch_of
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.types import Beacon, RolloutRequest, RolloutResult
from tests.work import work


def mesh(dp: int) -> Layout:
    return Layout(dp=dp, tp=4, pp=2)


def spread(dp: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Two rows a data shard are cut, every slot gets its shard, and the collectors' results are joined."""
    layout, dispatch = mesh(dp), dispatch_of("mesh_shared")
    tokens, each = torch.arange(2 * dp).unsqueeze(1), torch.ones(2 * dp).long()
    request = RolloutRequest(0, tokens, each, tokens[:, 0])

    def action() -> None:
        shards = dispatch.shards(layout, request)
        given = [shards[dispatch.shard_of(layout, slot)] for slot in range(layout.world)]
        answers = [given[slot] for slot in dispatch.collectors(layout)]
        merged = dispatch.merge([RolloutResult(one.tokens, one.lengths, one.tokens.float()) for one in answers])
        assert torch.equal(merged.tokens, tokens)

    return action


def sweep(dp: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Every actor answers at once."""
    layout = mesh(dp)
    roster = Roster(0, layout, tuple(f"a{slot}" for slot in range(layout.world)))

    class Reference:
        value = Beacon(0, 0, "update", 3, 1, 0.0)

    def at_once(references: Sequence[Reference], **_: Any) -> tuple[Sequence[Reference], list[Reference]]:
        return references, []

    def value(reference: Reference, **_: Any) -> Beacon:
        return reference.value

    monkeypatch.setattr(ray, "wait", at_once)
    monkeypatch.setattr(ray, "get", value)
    handle = SimpleNamespace(beacon=SimpleNamespace(remote=Reference))
    handles = dict.fromkeys(roster.slots, handle)
    return lambda: survey(roster, handles, {}, [], FakeClock(), 1.0)


@pytest.mark.parametrize("task", [spread, sweep], ids=lambda task: task.__name__)
def test_ten_times_the_slots_are_about_ten_times_the_work(
    task: Callable[[int, pytest.MonkeyPatch], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mesh(1250).world == 10_000
    small, large = work(task(125, monkeypatch)), work(task(1250, monkeypatch))
    assert small > mesh(125).world
    assert large < 12 * small + 1000

"""When replicas are compared: every so many steps, again after going back, and never where there is but one."""

from typing import Any, cast

import pytest

from ftppo.config import Config, Recovery, Snapshot
from ftppo.driver.comparison import Comparison
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout

TWO = Layout(dp=2)


class Told:
    """Files and a display that hear of events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record(self, event: str, reason: str) -> None:
        self.reasons.append(reason)

    def event(self, text: str) -> None: ...


class Replicas:
    """A mesh whose slots have these fingerprints."""

    def __init__(self, *fingerprints: int) -> None:
        self.fingerprints, self.calls = list(fingerprints), list[str]()
        self.roster = Roster(0, Layout(dp=len(fingerprints)), tuple(f"a{slot}" for slot in range(len(fingerprints))))

    def call(self, method: str, phase: str) -> Any:
        self.calls.append(method)
        return self.fingerprints if method == "fingerprint" else None


def comparison(every: int, snapshots: int = 1) -> Comparison:
    config = Config(recovery=Recovery(compare_every_steps=every), snapshot=Snapshot(every_steps=snapshots))
    told = Told()
    return Comparison(config, cast(RunFiles, told), cast(Display, told))


def run(own: Comparison, mesh: Replicas, num_steps: int) -> None:
    own.run_if_due(cast(Mesh, mesh), num_steps)


def test_every_so_many_steps() -> None:
    own, mesh = comparison(every=4), Replicas(7, 7)
    for num_steps in range(13):
        run(own, mesh, num_steps)
    assert mesh.calls == ["fingerprint"] * 3
    assert not own.due(15, TWO) and own.due(16, TWO)


def test_after_going_back_at_once() -> None:
    own, mesh = comparison(every=4), Replicas(7, 7)
    run(own, mesh, 8)
    assert own.due(6, TWO)
    run(own, mesh, 6)
    assert not own.due(7, TWO) and own.due(8, TWO)


@pytest.mark.parametrize(("every", "snapshots", "layout"), [(0, 1, TWO), (1, 0, TWO), (1, 1, Layout(tp=2, pp=2))])
def test_never_without_replicas_or_copies(every: int, snapshots: int, layout: Layout) -> None:
    assert not comparison(every, snapshots).due(100, layout)


@pytest.mark.parametrize(("fingerprints", "odd"), [((7, 8), []), ((7, 8, 7), [1])])
def test_a_difference_spoils_the_newest_version(fingerprints: tuple[int, ...], odd: list[int]) -> None:
    own, mesh = comparison(every=1), Replicas(*fingerprints)
    with pytest.raises(GenerationBroken) as broken:
        run(own, mesh, 1)
    assert broken.value.spoilt and [one.slot for one in broken.value.observations] == odd
    assert all(one.corrupt for one in broken.value.observations)
    assert mesh.calls == ["fingerprint", "settle"]
    assert own.due(1, TWO), "what was found wrong is looked at again"

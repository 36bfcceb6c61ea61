"""Between two steps: what of a save is done before slots move or the mesh grows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftppo.clock import FakeClock
from ftppo.config import Config
from ftppo.driver.boundary import Boundary
from ftppo.driver.mesh import GenerationBroken
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout


def boundary_of(done: list[str], pending: bool, publishing: bool, leaves: bool, grows: bool) -> Boundary:
    """`done` gets a word for whatever the boundary does."""
    saver = SimpleNamespace(pending=object() if pending else None, publishing=publishing)
    standbys = SimpleNamespace(can_grow=lambda roster: grows, knock=lambda: None, pool=None)
    unused = cast(Any, None)

    def go_on_saving() -> None:
        done.append("save")
        saver.publishing = not saver.publishing  # what was written is published, what was published is over

    def leave(mesh: object, version: int) -> None:
        done.extend(["leave"] if leaves else [])

    found = Boundary(Config(), cast(Any, standbys), cast(Any, saver), go_on_saving, unused, unused, FakeClock())
    found.departures = cast(Any, SimpleNamespace(due=lambda mesh: leaves, run_if_due=leave))
    found.comparison = cast(Any, SimpleNamespace(due=lambda *_: False, run_if_due=lambda *_: None))
    return found


def mesh_of(done: list[str], writing: bool) -> Any:
    roster = Roster(1, Layout(dp=2), ("a0", "a1"))
    return SimpleNamespace(roster=roster, writing=writing, call=lambda method, version, phase: done.append(method))


@pytest.mark.parametrize("writing", [False, True])
def test_what_is_being_published_is_waited_for_before_slots_leave(writing: bool) -> None:
    done = list[str]()
    boundary_of(done, pending=True, publishing=True, leaves=True, grows=False).run(mesh_of(done, writing), 1, version=1)
    assert done == ["save", "leave"]


def test_what_has_just_been_written_is_published_to_the_end_before_the_mesh_grows() -> None:
    done = list[str]()
    with pytest.raises(GenerationBroken):
        boundary_of(done, pending=True, publishing=False, leaves=False, grows=True).run(
            mesh_of(done, False), 1, version=1
        )
    assert done == ["save", "save", "hand_over"]


def test_else_training_does_not_wait_for_what_is_being_written_or_published() -> None:
    done = list[str]()
    boundary_of(done, pending=True, publishing=True, leaves=False, grows=False).run(mesh_of(done, True), 1, version=1)
    boundary_of(done, pending=True, publishing=False, leaves=False, grows=False).run(mesh_of(done, True), 1, version=1)
    assert done == []
    boundary_of(done, pending=True, publishing=False, leaves=False, grows=False).run(mesh_of(done, False), 1, version=1)
    assert done == ["save"]

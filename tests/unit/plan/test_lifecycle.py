"""States are values that carry what the next one needs."""

import dataclasses

import pytest

from ftppo.plan.lifecycle import Failed, Finished, Recovering, Running, Starting, State
from ftppo.plan.recovery import Wait
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout

ROSTER = Roster(0, Layout(), ("a",))
STATES: list[State] = [
    Starting(Layout(), 1),
    Running(ROSTER),
    Recovering(ROSTER, (), Wait(1, "short"), 3.0, "update"),
    Finished(ROSTER),
    Failed(RuntimeError("gone")),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_state_cannot_be_changed(state: State) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(state, dataclasses.fields(state)[0].name, None)

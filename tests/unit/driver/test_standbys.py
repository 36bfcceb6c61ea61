"""Those who stand by on a node that is about to go are ended; the others stay, and are made up for elsewhere."""

from types import SimpleNamespace
from typing import Any, cast

from ftppo.clock import FakeClock
from ftppo.config import Config
from ftppo.driver.display import Display
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.standbys import Standbys
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout


class FakePool:
    """Standbys a1 and a2 on two nodes; each that is missing is started as b."""

    def __init__(self) -> None:
        self.config, self.clock = Config(), FakeClock()
        self.members: dict[str, Any] = dict.fromkeys(("a0", "a1", "a2"))
        self.draining_nodes: dict[str, float | None] = {}

    def poll(self, timeout_s: float) -> list[Any]:
        return []

    def draining(self) -> dict[str, float | None]:
        return self.draining_nodes

    def node_of(self, name: str) -> str | None:
        return {"a0": "n1", "a1": "n1", "a2": "n2"}.get(name)

    def retire(self, name: str) -> None:
        del self.members[name]

    def refill(self) -> list[str]:
        fresh = ["b"] if len(self.members) < 3 else []
        self.members |= dict.fromkeys(fresh)
        return fresh


def test_a_node_that_is_about_to_go_has_none() -> None:
    pool, events = FakePool(), list[tuple[str, str]]()
    files = SimpleNamespace(record=lambda event, reason=None: events.append((event, reason)))
    display = SimpleNamespace(event=lambda text: None)
    own = Standbys(cast(Pool, pool), cast(RunFiles, files), cast(Display, display), begun=True)
    roster = Roster(0, Layout(), ("a0",), ("a1", "a2"))
    assert own.tend(roster) == roster and events == []
    pool.draining_nodes = {"n1": None}
    roster = own.tend(roster)
    assert roster.slots == ("a0",), "slots leave at the next boundary, and not here"
    assert roster.standby == ("a2", "b")
    assert events == [("standby_ended", "a1: its node is about to go"), ("standby_started", "b")]
    assert own.tend(roster) == roster and len(events) == 2

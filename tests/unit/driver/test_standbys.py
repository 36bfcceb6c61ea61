"""Those who stand by on a node that is about to go are ended; the others stay, and are made up for elsewhere."""

import socket
from types import SimpleNamespace
from typing import Any, cast

from ftppo.clock import FakeClock
from ftppo.config import Config, Snapshot
from ftppo.driver.display import Display
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.standbys import Standbys
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout


class FakePool:
    """Standbys a1 and a2 on two nodes; each that is missing is started as b."""

    def __init__(self) -> None:
        self.config, self.clock, self.cluster = Config(), FakeClock(), SimpleNamespace(kind="cpu")
        self.members: dict[str, Any] = dict.fromkeys(("a0", "a1", "a2"))
        self.draining_nodes: dict[str, float | None] = {}
        self.layout = Layout(dp=2)
        self.warm, self.warming = list[str](), list[str]()
        self.listening: dict[str, tuple[str, int]] = {}

    def warm_up(self, names: list[str]) -> None:
        self.warming += names

    def addresses(self, names: list[str]) -> dict[str, tuple[str, int]]:
        return {name: self.listening[name] for name in names}

    def promotable(self) -> list[str]:
        return [name for name in self.warm if self.node_of(name) not in self.draining_nodes]

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


def standbys_of(pool: FakePool, events: list[tuple[str, str]], begun: bool) -> Standbys:
    files = SimpleNamespace(record=lambda event, reason=None: events.append((event, reason)))
    display = SimpleNamespace(event=lambda text: None)
    return Standbys(cast(Pool, pool), cast(RunFiles, files), cast(Display, display), begun=begun)


def test_those_that_are_warm_or_gone_are_not_warmed() -> None:
    pool = FakePool()
    own = standbys_of(pool, [], begun=False)
    pool.warm = ["a2"]  # it has held a slot that is no more
    for _ in range(2):
        own.begin(Roster(0, Layout(), ("a0",), ("a1", "a2", "gone")))
    assert pool.warming == ["a1"]


def test_a_mesh_grows_by_those_that_could_take_a_slot() -> None:
    pool, roster = FakePool(), Roster(0, Layout(), ("a0",), ("a1", "a2"))
    own = standbys_of(pool, [], begun=True)
    assert not own.can_grow(roster)
    pool.warm = ["a1"]
    assert own.can_grow(roster)
    pool.draining_nodes = {"n1": None}
    assert not own.can_grow(roster), "a1 is on a node that is about to go"
    pool.draining_nodes = {}
    assert not own.can_grow(Roster(0, Layout(dp=2), ("a0", "a3"), ("a1",))), "it is whole"
    pool.config = Config(snapshot=Snapshot(every_steps=0))
    assert not own.can_grow(roster), "there is nothing in memory to grow by"


def test_a_node_that_is_about_to_go_has_none() -> None:
    pool, events = FakePool(), list[tuple[str, str]]()
    own = standbys_of(pool, events, begun=True)
    roster = Roster(0, Layout(), ("a0",), ("a1", "a2"))
    assert own.tend(roster) == roster and events == []
    pool.draining_nodes = {"n1": None}
    roster = own.tend(roster)
    assert roster.slots == ("a0",), "slots leave at the next boundary, and not here"
    assert roster.standby == ("a2", "b")
    assert events == [("standby_ended", "a1: its node is about to go"), ("standby_started", "b")]
    assert own.tend(roster) == roster and len(events) == 2


def test_a_warm_standby_at_whose_address_nobody_listens_is_ended() -> None:
    pool, events = FakePool(), list[tuple[str, str]]()
    own = standbys_of(pool, events, begun=True)
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        pool.warm, pool.listening = ["a1", "a2"], {"a1": there.getsockname(), "a2": gone.getsockname()}
        gone.close()
        own.knock()
    assert sorted(pool.members) == ["a0", "a1"]
    assert events == [("standby_failed", "a2: nobody listens at its address any more")]

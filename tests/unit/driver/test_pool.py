"""Standbys are built for the slots least covered; what actors were built for is known, or they build again."""

from dataclasses import replace
from typing import Any

import pytest
import ray

from ftppo.clock import FakeClock
from ftppo.config import Config, Parallel
from ftppo.driver import pool as pool_module
from ftppo.driver.cluster import Cluster
from ftppo.driver.pool import Member, Pool
from ftppo.errors import DeviceFault
from ftppo.plan.topology import Layout
from ftppo.worker.whereabouts import Whereabouts


class Handle:
    """An actor that is told things and has not answered yet: it remembers the slots it was to be built for."""

    def __init__(self) -> None:
        self.built: list[int] = []

    def __getattr__(self, method: str) -> Any:
        handle = self

        class Method:
            @staticmethod
            def remote(*args: Any) -> object:
                if method == "build":
                    handle.built.append(args[1])
                return object()

        return Method


@pytest.fixture
def pool() -> Pool:
    return Pool(
        Config(parallel=Parallel(dp=2)), Cluster("cpu", 8.0, 0.0, own=True), vocab_size=16, eos=3, clock=FakeClock()
    )


def join(pool: Pool, **built_for: int | None) -> list[str]:
    for name, slot in built_for.items():
        pool.members[name] = Member(name, Handle(), bundle=len(pool.members), built_for=slot)
    return list(built_for)


def test_standbys_are_built_for_the_slots_least_covered(pool: Pool) -> None:
    pool.warm_up(join(pool, a=None, b=None, c=None))
    assert [pool.members[name].built_for for name in "abc"] == [0, 1, 0]
    assert [pool.members[name].handle.built for name in "abc"] == [[0], [1], [0]]
    pool.promote(["a", "c"])
    assert [pool.members[name].built_for for name in "abc"] == [None, 1, None]
    pool.warm_up(join(pool, d=None))
    assert pool.members["d"].built_for == 0


def test_who_is_promoted_stands_by_no_more(pool: Pool) -> None:
    join(pool, a=0, b=1)
    pool.warm = ["a", "b"]
    pool.promote(["a"])
    assert pool.warm == ["b"]


def test_what_an_actor_is_about_to_be_built_for_is_not_known_before_it_is(pool: Pool) -> None:
    small, large = Layout(dp=1), Layout(dp=2)
    pool.settle(small, ["a"])
    assert pool.to_build(small, ["a"]) == []
    assert pool.to_build(large, ["a", "b"]) == [0, 1]
    assert pool.to_build(small, ["a"]) == [0], "it may have been built for the larger one"
    pool.settle(small, ["a"])
    assert pool.to_build(small, ["a"]) == []


def test_a_standby_in_a_place_that_came_free_counts_for_the_node_of_the_one_before(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle, no_restart: None)
    monkeypatch.setattr(pool_module.Pool, "_end_process", lambda *_: None)
    for name in join(pool, a=None, b=None):
        pool.members[name] = replace(pool.members[name], place=Whereabouts(f"node-of-{name}", "", 0, 1, 0.0))
    pool.settle(Layout(dp=2), ["a", "b"])
    pool.retire("a")
    pool.members["c"] = Member("c", Handle(), bundle=0)
    pool.settle(Layout(dp=2), ["c", "b"])
    pool.members["c"] = replace(pool.members["c"], place=Whereabouts("node-of-a", "", 0, 1, 0.0))
    pool.members["d"] = Member("d", Handle(), bundle=0)
    pool.warm_up(["d"])
    assert pool.members["d"].built_for == 1


class FailedCall(Exception):
    """As Ray hands out what an actor raised."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


@pytest.mark.parametrize(("cause", "free"), [(DeviceFault("wrong"), []), (MemoryError("short"), [0])])
def test_a_device_that_failed_its_test_is_not_used_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, cause: Exception, free: list[int]
) -> None:
    def get(reference: Any) -> Any:
        raise FailedCall(cause)

    monkeypatch.setattr(ray, "wait", lambda references, **_: (references, []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda handle, no_restart: None)
    join(pool, a=None)
    pool.warm_up(["a"])
    [(name, error)] = pool.poll()
    assert name == "a" and isinstance(error, FailedCall)
    assert pool._bundles.free == free and pool.members == {}

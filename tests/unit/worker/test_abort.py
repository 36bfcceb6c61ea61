"""Groups that are aborted say so to who has waited in them; gloo's are left to end by themselves."""

import threading
from typing import Any, cast

import pytest

from ftppo.worker.groups import Groups


class Group:
    def __init__(self) -> None:
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()


def groups_of(backend: str) -> tuple[Groups, list[Group]]:
    made, live = Groups(), [Group(), Group()]
    made._backend, made.live = backend, cast(Any, list(live))
    return made, live


def test_nccls_are_aborted_and_what_came_out_of_them_is_not_believed() -> None:
    own, live = groups_of("nccl")
    own.check()
    for thread in own.abort():
        thread.join(10.0)
    assert all(group.aborted.is_set() for group in live)
    with pytest.raises(RuntimeError, match="aborted"):
        own.check()


@pytest.mark.parametrize("backend", ["gloo", "fake"])
def test_others_are_not(backend: str) -> None:
    own, live = groups_of(backend)
    assert own.abort() == [] and not any(group.aborted.is_set() for group in live)
    own.check()

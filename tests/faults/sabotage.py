"""The program, with faults in the middle of its recoveries. Comes in: PLACE:WHOM for each recovery, then overrides.

PLACE is a part of a recovery. At its beginning WHOM is killed: the `survivor` in slot 0, the `buddy` of slot 3, or the
`newcomer` that takes the slot.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ftppo.__main__ import main
from ftppo.driver import recovery
from ftppo.driver.recovery import Recovery

SLOTS = {"survivor": 0, "buddy": 1}
PARTS: dict[str, tuple[Any, str]] = {
    "detect": (recovery, "find_faults"),
    "fence": (Recovery, "_fence"),
    "build": (Recovery, "_build"),
    "groups": (Recovery, "form"),
    "state": (Recovery, "_restore"),
}


class Saboteur:
    """Strikes once in each recovery for as long as there are plans."""

    def __init__(self, plans: list[str]) -> None:
        self.plans = [plan.split(":") for plan in plans]
        self.now: list[str] = []
        self.victims: dict[str, int] = {}  # process ids
        _around(Recovery, "run", self._begin)
        _around(Recovery, "_carry_out", self._see_plan)
        for part, (owner, name) in PARTS.items():
            _around(owner, name, functools.partial(self._strike, part))

    def _begin(self, itself: Recovery, mesh: Any, *_: Any) -> None:
        self.now = self.plans.pop(0) if self.plans else []
        places = {whom: itself.pool.members[mesh.roster.actor(slot)].place for whom, slot in SLOTS.items()}
        self.victims = {whom: place.pid for whom, place in places.items() if place is not None}

    def _see_plan(self, itself: Recovery, plan: Any, *_: Any) -> None:
        for actor in plan.takers.values():
            place = itself.pool.members[actor].place
            assert place is not None
            self.victims["newcomer"] = place.pid

    def _strike(self, part: str, *_: Any) -> None:
        if self.now and self.now[0] == part:
            os.kill(self.victims[self.now[1]], signal.SIGKILL)
            self.now = []


def _around(owner: Any, name: str, before: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    split = sys.argv.index("--")
    Saboteur(sys.argv[1:split])
    sys.argv[1:] = sys.argv[split + 1 :]
    sys.exit(main())

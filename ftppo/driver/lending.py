"""Actors that outlive their driver. Comes in: a run on a cluster that is not its own; goes out: whose its actors are.

They are detached and named after the run, and lent to the driver that they hear from (worker/lease.py). A driver that
others have taken for dead, and that wakes up again, finds that its actors are another's, and does them no harm.
"""

import contextlib
import hashlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray
from ray.util import get_placement_group, remove_placement_group

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.errors import ClusterError, Superseded
from ftppo.worker.lease import Terms

ANSWER_S = 5.0  # for an actor that is well to say whose it is
AGAIN_S = 0.5


class Lending:
    """This driver's hold on the run's actors. `terms` are theirs."""

    def __init__(self, config: Config) -> None:
        # One run is one place for its checkpoints.
        self.run = f"{config.run.name}-{hashlib.sha256(str(config.checkpoint.url).encode()).hexdigest()[:12]}"
        driver = f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(4)}"
        self.terms = Terms(driver, config.recovery.orphan_s)
        self._ended = threading.Event()
        self._handles: Callable[[], Iterable[Any]] | None = None

    def options(self, name: str, bundle: int) -> dict[str, Any]:
        """Ray's options for an actor that outlives this driver and is found by the next one."""
        return {"name": f"{self.run}/{name}/{bundle}", "lifetime": "detached"}

    def find(self) -> dict[str, tuple[int, Any]]:
        """The run's actors that are alive: name -> bundle and handle."""
        found = {}
        for full in ray.util.list_named_actors():
            run, _, rest = full.partition("/")
            if run == self.run:
                name, _, bundle = rest.partition("/")
                with contextlib.suppress(ValueError):  # gone since
                    found[name] = int(bundle), ray.get_actor(full)
        return found

    def claim(self, handles: Mapping[str, Any], clock: Clock) -> list[str]:
        """Take these actors over from a driver that is not heard from any more. Returns those that are ours now.

        Raises ClusterError where another driver is at work. One actor decides: of two drivers only one gets any.
        """
        names, until = sorted(handles), clock.monotonic() + 2 * self.terms.fresh_s
        while names:
            holder = _ask(handles[names[0]].claim.remote(self.terms.driver))
            if holder == self.terms.driver:
                break
            if holder is None:
                names.pop(0)
            elif clock.monotonic() > until:
                raise ClusterError(
                    f"another driver is at work on this run ({holder}): end it, or take another run.name"
                )
            else:
                clock.sleep(AGAIN_S)
        claimed, left = list[str](), names
        while left:  # some have heard the other driver a little later than others
            asked = {handles[name].claim.remote(self.terms.driver): name for name in left}
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
            said = {asked[reference]: _ask(reference) for reference in ready}
            claimed += [name for name, holder in said.items() if holder == self.terms.driver]
            left = [name for name, holder in said.items() if holder not in (None, self.terms.driver)]
            if left and clock.monotonic() > until:
                break
            clock.sleep(AGAIN_S if left else 0.0)
        return claimed

    @property
    def has_bundles(self) -> bool:
        """Whether bundles are reserved for this run."""
        try:
            get_placement_group(self.run)
        except ValueError:
            return False
        return True

    def clear(self, handles: Iterable[Any]) -> None:
        """End actors that are of no use, and give their bundles back."""
        for handle in handles:
            ray.kill(handle, no_restart=True)
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(self.run))

    def hold(self, handles: Callable[[], Iterable[Any]]) -> None:
        """Give these actors word, in a thread, until `let_go`; again: those from now on."""
        begun, self._handles = self._handles is not None, handles
        if not begun:
            threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def check(self, handles: Iterable[Any]) -> None:
        """Raise Superseded where these actors are another driver's by now: nothing may be done to them."""
        asked = [handle.renew.remote(self.terms.driver) for handle in handles]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        for holder in filter(None, map(_ask, ready)):
            if holder != self.terms.driver:
                raise Superseded(f"another driver has taken this run over ({holder}), as this one was not heard from")

    def let_go(self) -> None:
        """No more word from here."""
        self._ended.set()

    def _renew(self) -> None:
        while not self._ended.wait(self.terms.renew_s):
            for handle in self._handles() if self._handles is not None else ():
                handle.renew.remote(self.terms.driver)


def _ask(reference: Any) -> Any:
    """The answer; None from an actor that is gone, or says nothing."""
    with contextlib.suppress(ray.exceptions.RayError):
        return ray.get(reference, timeout=ANSWER_S)
    return None

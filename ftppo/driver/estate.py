"""What a driver that is gone has left in its actors' memory. Comes in: a Lending; goes out: an Estate to go on from."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ray

from ftppo.clock import Clock
from ftppo.config import Config
from ftppo.driver.iteration import Iteration, Workshop
from ftppo.driver.lending import ANSWER_S, Lending
from ftppo.plan.roster import Roster
from ftppo.types import DriverState, StepResult
from ftppo.worker.actor import Account

LOOK_S = 0.2
UNKNOWN = StepResult(*(math.nan,) * 8)  # of a step that nobody is left to tell of


@dataclass(frozen=True)
class Estate:
    """Actors, by name, that are this driver's now, what they say of themselves, and what they were given to keep."""

    handles: Mapping[str, Any]
    bundles: Mapping[str, int]
    accounts: Mapping[str, Account]
    keepsake: dict[str, Any] | None  # of the iteration that was under way, see Iteration.keepsake
    results: Mapping[int, StepResult]  # of its steps, by version

    @cached_property
    def roster(self) -> Roster:
        """Who held the slots of the newest generation, and who stands by; a slot that nobody holds any more has a name.

        Of those that stand by only who is ready counts, and was not told to leave.
        """
        newest = max(account.generation for account in self.accounts.values())
        holders = {one.slot: name for name, one in self.accounts.items() if one.generation == newest}
        layout = self.accounts[next(iter(holders.values()))].layout
        slots = tuple(holders.get(slot, f"slot-{slot}-gone") for slot in range(layout.world))
        ready = [name for name, one in self.accounts.items() if one.built and not one.leaving]
        standby = tuple(name for name in ready if name not in slots)
        return Roster(newest, layout, slots, standby)

    @property
    def start(self) -> DriverState | None:
        """Where the run stood when the iteration began that was under way."""
        return self.keepsake["state"] if self.keepsake else None

    def iteration(self, shop: Workshop, version: int) -> Iteration:
        """The iteration that was under way, with the steps done that lead to `version`."""
        assert self.keepsake is not None and self.start is not None
        done = [self.results.get(at, UNKNOWN) for at in range(self.start.version + 1, version + 1)]
        return Iteration(shop, **self.keepsake, results=done)


def find_estate(lending: Lending, config: Config, clock: Clock) -> Estate | None:
    """Take over what an earlier driver of this run has left; None where that is nothing that this run can go on from.

    Raises ClusterError while that driver is alive.
    """
    found = lending.find()
    if not found and lending.has_bundles:
        clock.sleep(lending.terms.fresh_s)  # they may be of a driver that has just begun
        found = lending.find()
    names = lending.claim({name: handle for name, (_, handle) in found.items()}, clock)
    if not names:
        if not found:
            lending.clear([])  # bundles without actors
        return None
    handles = {name: found[name][1] for name in names}
    lending.hold(handles.values)
    accounts = _wait_for_calls(handles, config, clock)
    for name in found.keys() - accounts.keys():
        ray.kill(found[name][1], no_restart=True)  # nobody would give it word, and nobody else may have it
    for name in accounts:
        handles[name].close_store.remote()  # who waits at a meeting that will not be would not hear what comes next
    at_work = [one for one in accounts.values() if one.generation >= 0]
    if not at_work or any(_work_of(one.config) != _work_of(config) for one in at_work):
        lending.clear(handles.values())  # they were made for other work; storage may still have what this one needs
        return None
    kept = _asked({name: handles[name].kept.remote() for name in accounts}).values()
    keepsakes = [keepsake for keepsake, _ in kept if keepsake is not None]
    newest = max(keepsakes, key=lambda one: one["state"].version, default=None)
    results = {version: result for _, known in kept for version, result in known.items()}
    return Estate(handles, {name: found[name][0] for name in names}, accounts, newest, results)


def _work_of(config: Config | None) -> dict[str, Any] | None:
    """The keys that actors are made for."""
    if config is None:
        return None
    return config.model_dump(exclude={"run": True, "chaos": True, "cluster": {"address", "standby", "start_s"}})


def _wait_for_calls(handles: Mapping[str, Any], config: Config, clock: Clock) -> dict[str, Account]:
    """Let the slots finish what they were asked for by the driver before.

    All take part in a step: who is idle twice was not asked for it, and others that are busy with it wait in vain.
    """
    until, idle = clock.monotonic() + config.recovery.hang_s, set[str]()
    while True:
        accounts = _asked({name: handle.account.remote() for name, handle in handles.items()})
        newest = max((account.generation for account in accounts.values()), default=-1)
        slots = {name for name, account in accounts.items() if account.generation == newest}
        now_idle = {name for name in slots if not accounts[name].busy}
        in_vain = all(accounts[name].busy == "update" for name in slots - now_idle)
        if not accounts or (now_idle & idle and in_vain) or clock.monotonic() > until:
            return accounts
        idle = now_idle
        clock.sleep(LOOK_S)


def _asked(references: Mapping[str, Any]) -> dict[str, Any]:
    """The answers of those that gave one."""
    ray.wait(list(references.values()), num_returns=len(references), timeout=ANSWER_S) if references else None
    found = {}
    for name, reference in references.items():
        with contextlib.suppress(ray.exceptions.RayError):
            found[name] = ray.get(reference, timeout=0)
    return found

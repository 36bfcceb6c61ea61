"""The slots of one generation as one callable thing. Comes in: a method and its arguments; goes out: its result.

Every wait ends: a call whose rank fails, or in which nothing moves for the configured time, raises GenerationBroken.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
import torch

from ftppo.clock import Clock
from ftppo.config import Fault, FaultPhase
from ftppo.driver.detect import Watch, from_error, from_silence
from ftppo.driver.dispatch import Dispatch, dispatch_of
from ftppo.errors import FtppoError
from ftppo.plan.chaos import targets
from ftppo.plan.faults import Observation
from ftppo.plan.roster import Roster
from ftppo.types import Work
from ftppo.worker.actor import Stamp

# What a call is for: a phase that faults are configured for, a part of one after a dot, or what no fault is meant for.
CallPhase = FaultPhase | Literal["update.other", "save.publish", "warmup", "load", "digest", "idle"]

CAUSE_S = 0.5  # the cause of a broken collective is heard of within this time of its first victim, or by the survey
INLINE_BYTES = 64 * 1024  # a call carries up to 100 KB by itself, all arguments together


class GenerationBroken(FtppoError):
    """The mesh cannot go on in this generation. `observations` are what showed it; there may be more to see.

    `spoilt`: the newest version of the weights is not to be trusted. `in_order`: nothing went wrong, slots are to move.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        phase: CallPhase,
        roster: Roster,
        spoilt: bool = False,
        in_order: bool = False,
    ) -> None:
        super().__init__(observations, phase, roster)
        self.observations, self.phase, self.roster = tuple(observations), phase, roster
        self.spoilt, self.in_order = spoilt, in_order

    def __str__(self) -> str:
        return f"generation {self.roster.generation} broke in {self.phase}: {self.observations}"


@dataclass(frozen=True)
class Call:
    """What the slots have been asked to do, each after what it was asked before."""

    phase: CallPhase
    dispatch: Dispatch
    references: Mapping[Any, int]  # -> slot


class Mesh:
    """`handles` are the actors by name. `delivered` is, by slot, the newest version that its buddy is known to hold."""

    def __init__(self, roster: Roster, handles: Mapping[str, Any], clock: Clock, hang_s: float) -> None:
        self.roster, self.handles, self.clock, self.hang_s = roster, handles, clock, hang_s
        self.faults: Callable[[CallPhase], tuple[Fault, ...]] = lambda phase: ()
        self.delivered: dict[int, int] = {}
        self.leaving: set[int] = set()  # slots that were told to go
        self.buddy_of: Mapping[int, int] = {}  # slot -> the one that keeps its copies; empty where none are made
        self.work: dict[int, Work] = {}  # by slot, of the optimizer step that has ended last
        self.writing = False  # whether any slot was still writing a checkpoint when it answered last

    @property
    def committed(self) -> int | None:
        """The newest version that every slot's buddy is known to hold; None where there is none."""
        return min(self.delivered.values()) if len(self.delivered) == self.roster.layout.world else None

    def call(
        self,
        method: str,
        *shared: Any,
        rows: Any = None,
        via: str = "pass_through",
        phase: CallPhase,
        deadline_s: float | None = None,
    ) -> Any:
        """Run Engine.`method`(*shared, this slot's share of `rows`) on every slot. Raises GenerationBroken.

        With `deadline_s` it must end by then; without, it must keep moving. Either way no slot may leave the control
        group without an answer for longer than `hang_s`.
        """
        return self.finish(self.start(method, *shared, rows=rows, via=via, phase=phase), deadline_s)

    def leave(self, keepsake: Any) -> None:
        """Give two slots, far from each other, something to keep for another driver. Does not wait for them."""
        reference = ray.put(keepsake)
        for slot in {0, self.roster.layout.world - 1}:
            self.handles[self.roster.actor(slot)].keep.remote(reference)

    def start(self, method: str, *shared: Any, rows: Any = None, via: str = "pass_through", phase: CallPhase) -> Call:
        """Ask for what `call` runs, and do not wait for it."""
        dispatch, layout = dispatch_of(via), self.roster.layout
        shards = [_argument(shard) for shard in dispatch.shards(layout, rows)] if rows is not None else []
        collectors = set(dispatch.collectors(layout))
        faults = self.faults(phase)
        references = {}
        for slot, name in enumerate(self.roster.slots):
            mine = tuple(fault for fault in faults if slot in targets(fault, layout))
            stamp = Stamp(self.roster.generation, slot in collectors, mine)
            arguments = (*shared, shards[dispatch.shard_of(layout, slot)]) if shards else shared
            references[self.handles[name].call.remote(stamp, method, *arguments)] = slot
        return Call(phase, dispatch, references)

    def finish(self, call: Call, deadline_s: float | None = None) -> Any:
        """The result of what was started. Raises as `call` does."""
        replies = self.wait(call.references, call.phase, deadline_s)
        self.delivered |= {slot: reply.delivered for slot, reply in replies.items() if reply.delivered is not None}
        self.leaving = {slot for slot, reply in replies.items() if reply.leaving}
        self.work = {slot: reply.work for slot, reply in replies.items() if reply.work is not None}
        self.writing = any(not reply.idle for reply in replies.values())
        return call.dispatch.merge([replies[slot].result for slot in call.dispatch.collectors(self.roster.layout)])

    def wait(self, references: Mapping[Any, int], phase: CallPhase, deadline_s: float | None) -> dict[int, Any]:
        """All results by slot. The first that fails breaks the generation, and so does silence."""
        results: dict[int, Any] = {}
        pending, started = dict(references), self.clock.monotonic()
        until, look = started + (deadline_s or math.inf), started + self.hang_s / 2
        watch = Watch(self.roster, self.handles, self.clock, self.hang_s)
        while pending:
            timeout = max(min(until, look) - self.clock.monotonic(), 0.0)
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=timeout)
            if ready:
                # take all that are there: asking for many at once is cheaper
                ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0.0)
                answers = {pending[reference]: self._answer(reference, pending.pop(reference)) for reference in ready}
                failed = [answer for answer in answers.values() if isinstance(answer, Observation)]
                if failed:
                    raise GenerationBroken(failed + self._causes(failed, pending), phase, self.roster)
                results |= answers
                continue
            # Half of the time that may pass without a move has passed: from here on the beacons are watched.
            if self.clock.monotonic() < until:
                watch.look(sorted(pending.values()))
                if not watch.silent() and (watch.moves() or deadline_s is not None):
                    look = self.clock.monotonic() + watch.interval_s
                    continue
            waited_s = self.clock.monotonic() - started
            silent_s = watch.silent() or dict.fromkeys(sorted(pending.values()), waited_s)
            silent = [from_silence(slot, self.roster.actor(slot), seconds) for slot, seconds in silent_s.items()]
            raise GenerationBroken(silent, phase, self.roster)
        return results

    def _causes(self, failed: Sequence[Observation], pending: Mapping[Any, int]) -> list[Observation]:
        """Where only victims have answered so far: what the others have to say, until one of them names a cause."""
        found: list[Observation] = []
        until = self.clock.monotonic() + CAUSE_S
        left = dict(pending)
        while left and all(one.peer_lost for one in (*failed, *found)):
            ready, _ = ray.wait(list(left), num_returns=1, timeout=max(until - self.clock.monotonic(), 0.0))
            if not ready:
                break
            answer = self._answer(ready[0], left.pop(ready[0]))
            found += [answer] if isinstance(answer, Observation) else []
        return found

    def _answer(self, reference: Any, slot: int) -> Any:
        """A call's result, or the Observation that its failure is. Raises what concerns no rank (storage)."""
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            observed = from_error(slot, self.roster.actor(slot), error)
            if observed is None:
                raise error.cause from None  # type: ignore[attr-defined]
            return observed


def _argument(shard: Any) -> Any:
    """`shard` as it is where a call can carry it, which saves milliseconds; else a reference that replicas share."""
    fields = getattr(shard, "__dict__", {}).values()
    num_bytes = sum(field.nbytes for field in fields if isinstance(field, torch.Tensor))
    return shard if num_bytes <= INLINE_BYTES else ray.put(shard)

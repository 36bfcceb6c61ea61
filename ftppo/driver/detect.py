"""What can be seen of the actors. Comes in: Ray's errors, silence, beacons; goes out: Observations, not judged."""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ray

from ftppo.clock import Clock
from ftppo.errors import FtppoError, PeerLost, StaleGeneration, WorkerError
from ftppo.plan.faults import BeaconView, ErrorView, ExitKind, Observation
from ftppo.plan.roster import Roster

OUT_OF_MEMORY = "Ray's memory monitor ended it, as its node ran short"  # Ray's own words fill pages
SURVEY_S = 1.0  # a living actor answers on its control group in milliseconds, unless its machine is starved
_KNOCKING = 32  # at so many doors at a time


def from_error(slot: int, actor: str, error: ray.exceptions.RayError) -> Observation | None:
    """What a failed call shows; None where the actor is well and the error is for the caller (storage, checkpoints)."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, WorkerError):
        name, _, message = cause.message.partition(": ")
        view = ErrorView(name, cause.phase, message, cause.trace)
        return Observation(slot, actor, process_dead=False, error=view, peer_lost=isinstance(cause, PeerLost))
    if isinstance(cause, FtppoError) and not isinstance(cause, StaleGeneration):
        return None
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return Observation(slot, actor, process_dead=True, exit_kind=ExitKind.OOM, exit_detail=OUT_OF_MEMORY)
    if isinstance(error, ray.exceptions.RayActorError):
        return Observation(slot, actor, process_dead=True, exit_kind=_exit_kind(error), exit_detail=_detail(error))
    view = ErrorView(type(cause or error).__name__, "idle", str(cause or error), str(error))
    return Observation(slot, actor, error=view)


def from_silence(slot: int, actor: str, waited_s: float) -> Observation:
    """A call that gave no answer within its deadline."""
    return Observation(slot, actor, silent_s=waited_s)


class Watch:
    """Tells, during a long call, whether the mesh goes on: by the beacons of the slots that owe an answer."""

    def __init__(self, roster: Roster, handles: Mapping[str, Any], clock: Clock, hang_s: float) -> None:
        self._roster, self._handles, self._clock, self._hang_s = roster, handles, clock, hang_s
        self.interval_s = min(max(hang_s / 20, 0.1), 5.0)
        self._moved: float | None = None  # the latest move heard of, seconds since the epoch
        self._heard: dict[int, float] = {}  # slot -> when it answered last, or was asked first; monotonic

    def look(self, slots: Sequence[int]) -> None:
        """Ask `slots`. Half of the time that may pass without a move, or an answer, has passed at the first look."""
        asked = {self._handles[self._roster.actor(slot)].beacon.remote(): slot for slot in slots}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=self.interval_s)
        if self._moved is None:
            self._moved = self._clock.now() - self._hang_s / 2
        heard = self._clock.monotonic()
        self._heard = {slot: self._heard.get(slot, heard - self._hang_s / 2) for slot in slots}
        for reference in ready:
            try:
                beacon = ray.get(reference)
            except ray.exceptions.RayError:
                beacon = None  # its own call says what happened to it
            self._heard[asked[reference]] = heard
            if beacon is not None:
                self._moved = max(self._moved, beacon.time)

    def moves(self) -> bool:
        """Whether any slot asked has moved within the time that may pass without."""
        return self._moved is not None and self._clock.now() - self._moved < self._hang_s

    def silent(self) -> dict[int, float]:
        """The slots asked last that have not answered for longer than may pass, and for how many seconds."""
        silent_s = {slot: self._clock.monotonic() - heard for slot, heard in self._heard.items()}
        return {slot: seconds for slot, seconds in silent_s.items() if seconds >= self._hang_s}


def survey(
    roster: Roster,
    handles: Mapping[str, Any],
    addresses: Mapping[str, tuple[str, int]],
    known: Sequence[Observation],
    clock: Clock,
    timeout_s: float,
) -> list[Observation]:
    """Ask every slot for its beacon on the control group; one Observation a slot, with what was `known` kept.

    Who does not answer is knocked at by its address: Ray takes its time to tell that a node is gone.
    """
    before = {seen.slot: seen for seen in known}
    asked = {handles[name].beacon.remote(): slot for slot, name in enumerate(roster.slots) if name in handles}
    ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
    ended = [seen for seen in known if seen.actor not in handles]
    found = [_merge(before.get(slot), slot, roster.actor(slot), reference, clock) for reference, slot in asked.items()]
    silent = {seen.actor for seen in found if seen.answered_control is False and seen.actor in addresses}
    gone = nobody_at({name: addresses[name] for name in silent}, timeout_s)
    return ended + [replace(seen, process_dead=True) if seen.actor in gone else seen for seen in found]


def nobody_at(addresses: Mapping[str, tuple[str, int]], timeout_s: float) -> set[str]:
    """Those of the actors at whose address nobody listens any more: their process is gone, whatever else is known."""
    if not addresses:
        return set()
    with ThreadPoolExecutor(min(len(addresses), _KNOCKING)) as pool:
        refused = pool.map(lambda address: _refuses(address, timeout_s), addresses.values())
        return {name for name, gone in zip(addresses, refused, strict=True) if gone}


def _refuses(address: tuple[str, int], timeout_s: float) -> bool:
    try:
        socket.create_connection(address, timeout_s).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # no answer is no evidence
    return False


def _merge(known: Observation | None, slot: int, actor: str, reference: Any, clock: Clock) -> Observation:
    fields: dict[str, Any] = dict(vars(known)) if known else {"slot": slot, "actor": actor}
    try:
        beacon = ray.get(reference, timeout=0)
        fields["answered_control"] = True
        if beacon is not None:
            age_s = max(0.0, clock.now() - beacon.time)
            fields["beacon"] = BeaconView(beacon.phase, beacon.step, beacon.micro, age_s)
    except ray.exceptions.GetTimeoutError:
        fields["answered_control"] = False
    except ray.exceptions.ActorUnavailableError:
        fields["answered_control"] = False
    except ray.exceptions.OutOfMemoryError:
        fields |= {"process_dead": True, "exit_kind": ExitKind.OOM, "exit_detail": OUT_OF_MEMORY}
    except ray.exceptions.RayActorError as error:
        fields |= {"process_dead": True, "exit_kind": _exit_kind(error), "exit_detail": _detail(error)}
    return Observation(**fields)


def _exit_kind(error: ray.exceptions.RayActorError) -> ExitKind | None:
    return ExitKind.PREEMPTED if error.preempted else None


def _detail(error: ray.exceptions.RayActorError) -> str:
    """The sentence of Ray's message that says how the process ended, for people; without its general advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines else ""
    return said.partition("Worker exit detail: ")[2].partition(". Some common causes")[0] or said.partition(". ")[0]

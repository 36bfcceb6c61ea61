"""Whether another recovery may begin. Comes in: those that have begun, this one included; goes out: why not, if so."""

from collections.abc import Collection, Sequence

from ftppo.plan.faults import FaultKind

HOUR_S = 3600.0


def refusal(begun: Sequence[tuple[float, Collection[FaultKind]]], most: int, an_hour: int) -> str | None:
    """Why the last of `begun` is one too many; None where it may be.

    `begun` are seconds on any clock, and the kinds of fault that were to be recovered from, in order. There may be
    `most` in all, and of one kind `an_hour` within an hour; 0: as many as come.
    """
    remedy = "see events.jsonl for what keeps failing, or raise it"
    if len(begun) > most:
        return f"no recovery is left of recovery.max_recoveries={most}: {remedy}"
    now, kinds = begun[-1]
    for kind in sorted(kinds) if an_hour else ():
        num = sum(kind in those and now - at < HOUR_S for at, those in begun)
        if num > an_hour:
            return f"{num} times {kind} within an hour, and recovery.max_per_hour={an_hour}: {remedy}"
    return None

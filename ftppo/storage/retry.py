"""When to try again. Comes in: one attempt as a function; goes out: its result, or why there is no point in another.

Only errors that say of themselves that they are transient are tried again; every other one passes through untouched.
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ftppo.clock import Clock, SystemClock
from ftppo.errors import RetriesExhausted, StorageError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long. Delays double from `first_s` to `cap_s`; each is then drawn from its upper half."""

    retries: int = 5  # of one operation: one object or one part of it
    first_s: float = 0.2
    cap_s: float = 10.0
    deadline_s: float = 120.0  # after which an operation is not tried again
    budget: int = 500  # retries of all operations together

    def delay_s(self, attempt: int, generator: random.Random) -> float:
        """Seconds to wait after attempt number `attempt` (from 1) has failed."""
        return min(self.cap_s, self.first_s * 2.0 ** (attempt - 1)) * generator.uniform(0.5, 1.0)


@dataclass(frozen=True)
class RetryEvent:
    """An attempt has failed and another will follow. `part` is 0 where the object is not sent in parts."""

    what: str
    part: int
    attempt: int
    delay_s: float
    error: str


def log_event(event: RetryEvent) -> None:
    """Write the event to the log."""
    what = f"{event.what}, part {event.part}" if event.part else event.what
    log.warning("%s: attempt %d failed, next in %.2f s: %s", what, event.attempt, event.delay_s, event.error)


class Retrier:
    """One RetryPolicy at work, for one save or load: it holds the budget. May be shared by threads."""

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Clock | None = None,
        seed: int = 0,
        on_event: Callable[[RetryEvent], None] = log_event,
    ) -> None:
        self.policy = policy
        self.clock = clock or SystemClock()
        self.num_retries = 0
        self._generator = random.Random(seed)
        self._on_event = on_event
        self._lock = threading.Lock()

    def call[T](self, attempt_once: Callable[[], T], what: str, part: int = 0) -> T:
        """The result of `attempt_once`, tried again while its error is transient.

        Raises RetriesExhausted, with the last error as its cause, when the policy allows no further attempt.
        """
        started_s, attempt = self.clock.monotonic(), 1
        while True:
            try:
                return attempt_once()
            except StorageError as error:
                if not error.transient:
                    raise
                delay_s = self._next_delay_s(attempt, started_s, what, error)
                self._on_event(RetryEvent(what, part, attempt, delay_s, f"{type(error).__name__}: {error}"))
            self.clock.sleep(delay_s)
            attempt += 1

    def _next_delay_s(self, attempt: int, started_s: float, what: str, error: StorageError) -> float:
        with self._lock:
            delay_s = self.policy.delay_s(attempt, self._generator)
            passed_s = self.clock.monotonic() - started_s
            if attempt > self.policy.retries:
                reason = f"{self.policy.retries} retries"
            elif passed_s + delay_s > self.policy.deadline_s:
                reason = f"a deadline of {self.policy.deadline_s:g} s"
            elif self.num_retries >= self.policy.budget:
                reason = f"a budget of {self.policy.budget} retries for all objects"
            else:
                self.num_retries += 1
                return delay_s
        tried = f"gave up after {attempt} attempts in {passed_s:.1f} s ({reason})"
        raise RetriesExhausted(f"{what}: {tried}: {error}") from error

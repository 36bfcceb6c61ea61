"""Whose an actor is. Comes in: word from drivers; goes out: yes or no, and the end of an actor that nobody wants.

An actor of a cluster that outlives its driver is lent to one driver at a time. While that one is heard from nobody else
gets it; then another one may claim it; and after `orphan_s` it is an orphan, which ends itself.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ftppo.clock import Clock

FRESH_SHARE = 1 / 3  # of orphan_s, but not more than FRESH_S: for so long after its last word a driver counts as alive
FRESH_S = 10.0
WORDS = 4  # that a driver gives in this time


@dataclass(frozen=True)
class Terms:
    """What an actor is lent under."""

    driver: str  # who it is lent to, in words for people: host, process, and a number that no other driver has
    orphan_s: float

    @property
    def fresh_s(self) -> float:
        """Seconds for which a driver counts as alive after its last word."""
        return min(FRESH_S, FRESH_SHARE * self.orphan_s)

    @property
    def renew_s(self) -> float:
        """Seconds from one word of a driver to the next."""
        return self.fresh_s / WORDS


class Lease:
    """One actor's. Thread-safe. `on_orphaned` is called once, in a thread of its own."""

    def __init__(self, terms: Terms, clock: Clock, on_orphaned: Callable[[], None]) -> None:
        self._terms, self._clock, self._on_orphaned = terms, clock, on_orphaned
        self._holder, self._heard = terms.driver, clock.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self, driver: str) -> str:
        """`driver` is alive. Returns whose this actor is: another's, where it has been claimed meanwhile."""
        with self._lock:
            if driver == self._holder:
                self._heard = self._clock.monotonic()
            return self._holder

    def claim(self, driver: str) -> str:
        """`driver` wants this actor. Returns whose it is now: who holds it keeps it while it counts as alive."""
        with self._lock:
            if self._silent_s() > self._terms.fresh_s:
                self._holder, self._heard = driver, self._clock.monotonic()
            return self._holder

    @property
    def orphaned(self) -> bool:
        """Whether nobody has been heard from for too long."""
        with self._lock:
            return self._silent_s() > self._terms.orphan_s

    def close(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _silent_s(self) -> float:
        return self._clock.monotonic() - self._heard

    def _watch(self) -> None:
        while not self._ended.wait(self._terms.renew_s):
            if self.orphaned:
                return self._on_orphaned()

"""An actor belongs to one driver at a time; one that nobody is heard from is an orphan."""

import threading
from collections.abc import Iterator

import pytest

from ftppo.clock import FakeClock
from ftppo.worker.lease import Lease, Terms

ORPHAN_S = 0.9
FRESH_S = 0.3


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def orphaned() -> threading.Event:
    return threading.Event()


@pytest.fixture
def lease(clock: FakeClock, orphaned: threading.Event) -> Iterator[Lease]:
    lease = Lease(Terms("first", ORPHAN_S), clock, orphaned.set)
    yield lease
    lease.close()


def test_times_follow_from_one_key() -> None:
    assert Terms("one", ORPHAN_S).fresh_s == pytest.approx(FRESH_S)
    assert Terms("one", 300.0).fresh_s == 10.0
    assert Terms("one", 300.0).renew_s == 2.5


def test_nobody_gets_it_while_its_driver_is_heard_from(lease: Lease, clock: FakeClock) -> None:
    for _ in range(5):
        clock.sleep(FRESH_S * 0.9)
        assert lease.claim("second") == "first"
        assert lease.renew("first") == "first"


def test_after_a_silence_the_first_to_ask_gets_it(lease: Lease, clock: FakeClock) -> None:
    clock.sleep(FRESH_S * 1.1)
    assert lease.claim("second") == "second"
    assert lease.claim("third") == "second"
    assert lease.renew("first") == "second"


def test_word_of_a_driver_that_it_is_not_lent_to_counts_for_nothing(lease: Lease, clock: FakeClock) -> None:
    clock.sleep(FRESH_S * 0.6)
    assert lease.renew("second") == "first"
    clock.sleep(FRESH_S * 0.6)
    assert lease.claim("third") == "third"


def test_an_orphan_ends_itself(lease: Lease, clock: FakeClock, orphaned: threading.Event) -> None:
    clock.sleep(ORPHAN_S * 0.9)
    lease.renew("first")
    clock.sleep(ORPHAN_S * 0.9)
    assert not orphaned.wait(FRESH_S)
    clock.sleep(ORPHAN_S * 0.2)
    assert orphaned.wait(30)

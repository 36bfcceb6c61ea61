"""The account of a recovery: when the fault struck, where the time went, and when it is over."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.driver import account
from ftppo.driver.account import Accounts, Stopwatch, phase_of, record_of
from ftppo.driver.display import PlainDisplay
from ftppo.driver.mesh import CallPhase, GenerationBroken
from ftppo.driver.record import RECOVERY_PHASES, RecoveryRecord
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.faults import Fault, FaultKind
from ftppo.plan.recovery import Grow, Substitute
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.worker.actor import FAULT_TIME_KEY

START_S = 1_000.0
PLAN = Substitute({}, Roster(4, Layout(), ("a0",)), "peer", "no slot is to blame")
CRASH = Fault(3, FaultKind.CRASH, "slot 3: process died")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_S)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def accounts(tmp_path: Path, clock: FakeClock, stream: io.StringIO) -> Iterator[Accounts]:
    with RunFiles(tmp_path / "run", clock, resume=False) as files:
        yield Accounts(files, PlainDisplay(clock, stream), clock)


@pytest.fixture
def word(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """What injectors have left in the cluster's store."""
    left: dict[bytes, bytes] = {}

    def find(key: bytes, namespace: bytes) -> bytes | None:
        assert namespace == b"ftppo"
        return left.get(key)

    def remove(key: bytes, namespace: bytes) -> int:
        assert namespace == b"ftppo"
        return int(left.pop(key, None) is not None)

    monkeypatch.setattr(account, "_internal_kv_get", find)
    monkeypatch.setattr(account, "_internal_kv_del", remove)
    return left


def record(clock: FakeClock, began: float | None = None) -> RecoveryRecord:
    watch = Stopwatch(clock)
    return record_of([CRASH], PLAN, "peer", "update", 1, watch, watch.started if began is None else began)


def test_laps_add_up_to_the_time_that_passed(clock: FakeClock) -> None:
    watch = Stopwatch(clock)
    for name, seconds in [("detect", 1.0), ("fence", 2.0), ("detect", 4.0), ("state", 0.0)]:
        clock.advance(seconds)
        watch.lap(name)
    clock.advance(100.0)  # of no lap
    assert watch.laps == {"detect": 5.0, "fence": 2.0, "state": 0.0}


def test_detection_begins_at_the_fault_where_the_injector_left_word(
    accounts: Accounts, clock: FakeClock, word: dict[bytes, bytes]
) -> None:
    word[FAULT_TIME_KEY] = f"{START_S - 7.5:.6f}".encode()
    began = accounts.fault_time(noticed=clock.monotonic())
    assert began == START_S - 7.5
    assert word == {}  # the next fault is another
    watch = Stopwatch(clock)
    clock.advance(2.0)
    watch.lap("detect")
    assert record_of([CRASH], PLAN, "peer", "update", 0, watch, began).seconds.detect == 9.5


def test_a_fault_that_nobody_injected_begins_when_it_is_noticed(
    accounts: Accounts, clock: FakeClock, word: dict[bytes, bytes]
) -> None:
    assert accounts.fault_time(noticed=990.0) == 990.0


def test_the_monotonic_clock_need_not_agree_with_the_time_of_day(
    accounts: Accounts, clock: FakeClock, word: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now", lambda: 5e9)
    word[FAULT_TIME_KEY] = b"4999999997.0"
    assert accounts.fault_time(noticed=clock.monotonic()) == START_S - 3.0


def test_a_fault_does_not_strike_after_it_is_noticed(
    accounts: Accounts, clock: FakeClock, word: dict[bytes, bytes]
) -> None:
    word[FAULT_TIME_KEY] = f"{START_S + 60.0}".encode()  # the clock of another machine
    assert accounts.fault_time(noticed=START_S) == START_S


def test_a_record_says_who_why_and_where_the_time_went(clock: FakeClock) -> None:
    watch = Stopwatch(clock)
    for name in RECOVERY_PHASES[:-1]:
        clock.advance(1.0)
        watch.lap(name)
    faults = [CRASH, Fault(5, FaultKind.HANG, "slot 5: stands still")]
    found = record_of(faults, PLAN, "checkpoint", "save", 6, watch, began=START_S - 0.5)
    assert found.cause == "crash: slot 3: process died; hang: slot 5: stands still"
    assert (found.slots, found.generation, found.source, found.phase, found.lost_steps) == (
        (3, 5), 4, "checkpoint", "save", 6,
    )  # fmt: skip
    assert found.seconds.detect == 1.5
    assert found.seconds.fence == found.seconds.promote == found.seconds.groups == found.seconds.state == 1.0


def test_groups_that_broke_without_a_culprit_are_said_so(clock: FakeClock) -> None:
    found = record_of([], PLAN, "peer", "update", 0, Stopwatch(clock), START_S)
    assert found.slots == () and found.cause == "no slot is to blame" and found.plan == "substitute"


def test_a_growth_names_the_slots_that_are_back(clock: FakeClock) -> None:
    grow = Grow({2: "b", 3: "c"}, PLAN.roster, "peer", "2 standbys warm")
    found = record_of([], grow, "peer", "idle", 0, Stopwatch(clock), START_S)
    assert (found.plan, found.slots, found.cause) == ("grow", (2, 3), "2 standbys warm")


def test_a_recovery_is_over_when_the_interrupted_step_is_committed(
    accounts: Accounts, clock: FakeClock, stream: io.StringIO
) -> None:
    one = record(clock)
    clock.advance(6.0)  # the recovery itself
    accounts.open(one, began=START_S - 1.0, until_step=8)
    clock.advance(2.0)
    accounts.step_committed(7)
    assert accounts.files.recoveries() == () and not stream.getvalue()
    clock.advance(3.0)
    accounts.step_committed(8)
    (found,) = accounts.files.recoveries()
    assert found.seconds.first_step == 5.0 and found.seconds.total == 12.0
    assert (found.cause, found.generation) == (one.cause, one.generation)
    assert accounts.files.reasons("recovered") == (one.cause,)
    assert "recovered in" in stream.getvalue()
    accounts.step_committed(9)
    assert len(accounts.files.recoveries()) == 1


def test_recoveries_that_overlap_are_each_accounted_for(accounts: Accounts, clock: FakeClock) -> None:
    accounts.open(record(clock), began=clock.monotonic(), until_step=8)
    clock.advance(1.0)
    accounts.open(record(clock), began=clock.monotonic(), until_step=8)  # again before the step was done
    accounts.open(record(clock), began=clock.monotonic(), until_step=9)
    clock.advance(1.0)
    accounts.step_committed(8)
    assert [one.seconds.total for one in accounts.files.recoveries()] == [2.0, 1.0]
    clock.advance(1.0)
    accounts.close_all()
    assert [one.seconds.total for one in accounts.files.recoveries()] == [2.0, 1.0, 2.0]
    accounts.close_all()
    assert len(accounts.files.recoveries()) == 3


@pytest.mark.parametrize(
    ("call", "phase"),
    [
        ("rollout", "rollout"),
        ("score", "score"),
        ("update", "update"),
        ("update.other", "update"),
        ("save", "save"),
        ("save.publish", "save"),
        ("warmup", "idle"),
        ("load", "idle"),
        ("digest", "idle"),
        ("idle", "idle"),
    ],
)
def test_a_broken_call_belongs_to_a_phase_of_the_iteration(call: CallPhase, phase: str) -> None:
    assert phase_of(GenerationBroken([], call, Roster(0, Layout(), ("a0",)))) == phase

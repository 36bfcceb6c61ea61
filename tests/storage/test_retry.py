"""Which errors are tried again, how often, how late, and what is left of the first error."""

import logging
import random
from collections.abc import Callable

import pytest

from ftppo.clock import FakeClock
from ftppo.errors import (
    AlreadyExists,
    NotFound,
    PermissionDenied,
    RetriesExhausted,
    StorageError,
    TransientStorageError,
)
from ftppo.storage.memory import MemoryStore
from ftppo.storage.retry import Retrier, RetryEvent, RetryPolicy
from ftppo.storage.retrying import RetryingStore


def failing(times: int, error: BaseException | None = None) -> tuple[Callable[[], str], list[int]]:
    """A function that fails `times` times and then succeeds, and the list of its calls."""
    calls: list[int] = []

    def attempt() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error or TransientStorageError(f"busy {len(calls)}")
        return "done"

    return attempt, calls


@pytest.mark.parametrize("times", [0, 1, 3])
def test_transient_errors_cost_exactly_one_retry_each(retrier: Retrier, clock: FakeClock, times: int) -> None:
    attempt, calls = failing(times)
    assert retrier.call(attempt, "put k") == "done"
    assert len(calls) == times + 1
    assert retrier.num_retries == times == len(clock.slept)


def test_exhausted_retries_keep_the_last_error_as_cause(retrier: Retrier) -> None:
    attempt, calls = failing(100)
    with pytest.raises(RetriesExhausted, match=r"put s/k: gave up after 4 attempts .*3 retries.* busy 4") as caught:
        retrier.call(attempt, "put s/k")
    assert len(calls) == 4
    assert isinstance(caught.value.__cause__, TransientStorageError) and not caught.value.transient


@pytest.mark.parametrize("kind", [NotFound, AlreadyExists, PermissionDenied, StorageError, RetriesExhausted, KeyError])
def test_permanent_errors_pass_at_once_and_unchanged(
    retrier: Retrier, clock: FakeClock, kind: type[BaseException]
) -> None:
    original = kind("no")
    attempt, calls = failing(1, original)
    with pytest.raises(kind) as caught:
        retrier.call(attempt, "put k")
    assert caught.value is original and len(calls) == 1 and clock.slept == []


def test_delays_double_up_to_the_cap_with_seeded_jitter() -> None:
    policy = RetryPolicy(first_s=1.0, cap_s=5.0)
    delays = [policy.delay_s(attempt, random.Random(7)) for attempt in (1, 2, 3, 4, 5)]
    share = random.Random(7).uniform(0.5, 1.0)
    assert delays == pytest.approx([share, 2 * share, 4 * share, 5 * share, 5 * share])

    def slept(seed: int) -> list[float]:
        clock = FakeClock()
        Retrier(RetryPolicy(retries=4), clock, seed).call(failing(4)[0], "put k")
        return clock.slept

    assert slept(1) == slept(1) != slept(2)


def test_no_attempt_begins_after_the_deadline(clock: FakeClock) -> None:
    retrier = Retrier(RetryPolicy(retries=100, first_s=1.0, cap_s=1.0, deadline_s=10.0), clock)
    started_s = clock.monotonic()
    with pytest.raises(RetriesExhausted, match="deadline of 10 s"):
        retrier.call(failing(1000)[0], "put k")
    assert clock.monotonic() - started_s <= 10.0


def test_the_budget_is_shared_by_all_calls(clock: FakeClock) -> None:
    retrier = Retrier(RetryPolicy(retries=3, budget=4), clock)
    retrier.call(failing(3)[0], "put a")
    with pytest.raises(RetriesExhausted, match="budget of 4 retries"):
        retrier.call(failing(3)[0], "put b")
    assert retrier.num_retries == 4


def test_each_retry_is_an_event(clock: FakeClock) -> None:
    events: list[RetryEvent] = []
    Retrier(RetryPolicy(), clock, on_event=events.append).call(failing(2)[0], "put s/k", part=7)
    assert [(event.what, event.part, event.attempt, event.delay_s, event.error) for event in events] == [
        ("put s/k", 7, 1, clock.slept[0], "TransientStorageError: busy 1"),
        ("put s/k", 7, 2, clock.slept[1], "TransientStorageError: busy 2"),
    ]


def test_each_retry_is_logged(retrier: Retrier, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        retrier.call(failing(1)[0], "put s/k", part=7)
    (record,) = caplog.records
    assert "put s/k, part 7: attempt 1 failed, next in" in record.getMessage()


class Flaky(MemoryStore):
    """Carries out what it is told and then loses the answer, `losses` times."""

    losses = 1

    def create(self, key: str, data: object) -> None:
        super().create(key, data)  # type: ignore[arg-type]
        if self.losses:
            self.losses -= 1
            raise TransientStorageError("answer lost")


def test_a_create_whose_answer_was_lost_is_ours_if_the_content_is(retrier: Retrier) -> None:
    store = RetryingStore(Flaky(), retrier)
    store.create("m", b"ours")
    assert store.get("m") == b"ours" and retrier.num_retries == 1


def test_a_create_that_another_won_meanwhile_is_not_ours(retrier: Retrier) -> None:
    class Beaten(Flaky):
        def create(self, key: str, data: object) -> None:
            try:
                super().create(key, data)
            except TransientStorageError:
                self.put(key, b"theirs")
                raise

    with pytest.raises(AlreadyExists):
        RetryingStore(Beaten(), retrier).create("m", b"ours")


def test_a_create_of_what_was_there_before_is_refused_even_if_equal(retrier: Retrier) -> None:
    store = Flaky()
    store.put("m", b"same")
    with pytest.raises(AlreadyExists):
        RetryingStore(store, retrier).create("m", b"same")


def test_every_operation_of_a_retrying_store_is_retried(clock: FakeClock) -> None:
    inner, retrier = MemoryStore(), Retrier(RetryPolicy(), clock)
    store = RetryingStore(inner, retrier)

    def once(target: object, name: str) -> None:
        original, armed = getattr(target, name), [True]

        def flaky(*args: object) -> object:
            if armed.pop() if armed else False:
                raise TransientStorageError(name)
            return original(*args)

        setattr(target, name, flaky)

    names = ["put", "create", "get", "stat", "list", "delete", "start_upload", "sweep_uploads"]
    for name in names:
        once(inner, name)
    store.put("a", b"12")
    store.create("b", b"3")
    assert store.get("a", 1, 1) == b"2" and store.stat("a").size_bytes == 2
    assert [info.key for info in store.list("")] == ["a", "b"]
    store.delete("b")
    upload = store.start_upload("c", 4)
    upload.part(1, b"abcd")
    upload.complete()
    assert inner.get("c") == b"abcd" and store.sweep_uploads("", 0.0) == 0
    assert retrier.num_retries == len(names)

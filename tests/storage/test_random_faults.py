"""Saves and loads while a tenth of all that is asked of a store fails at random: they succeed, and bytes are equal.

They take little longer, too.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.clock import FakeClock
from ftppo.errors import TransientStorageError
from ftppo.storage import parts
from ftppo.storage.base import ObjectStore
from ftppo.storage.local import LocalStore
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store
from tests.storage.proxy import Fault, FaultProxy
from tests.storage.saves import loaded, save
from tests.storage.script import Script

SHARE = 0.1
ROWS = 64  # of each writer: 77 KB, nineteen parts
KINDS = (
    Fault("status", status=503),
    Fault("status", status=429),
    Fault("status", status=500),
    Fault("reset", after_bytes=100),
    Fault("lose"),
    Fault("truncate", after_bytes=5),
)


class Unreliable(FaultProxy):
    """Fails `SHARE` of all requests, drawn by `seed`."""

    def __init__(self, upstream: str, seed: int) -> None:
        super().__init__(upstream)
        self._draw, self.num_failed = random.Random(seed), 0

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            if self._draw.random() >= SHARE:
                return None
            self.num_failed += 1
            return self._draw.choice(KINDS)


@pytest.fixture
def patience(clock: FakeClock) -> Retrier:
    return Retrier(RetryPolicy(retries=8, deadline_s=1e6), clock)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_save_and_a_load_get_through_a_server_that_fails(
    kind: str, request: pytest.FixtureRequest, patience: Retrier, seed: int
) -> None:
    bucket, endpoint = request.getfixturevalue(f"{kind}_bucket"), request.getfixturevalue(f"{kind}_endpoint")
    url = f"{'gs' if kind == 'gcs' else kind}://{bucket}/run"
    with Unreliable(endpoint, seed) as proxy:
        raw = open_store(url, endpoint=proxy.url)
        manifest = save(raw, 1, ROWS, patience)
        assert loaded(RetryingStore(raw, patience), ROWS) == 1
        raw.close()
    assert patience.num_retries >= manifest.retries > 0 and proxy.num_failed > 2
    direct = open_store(url, endpoint=endpoint)
    assert loaded(direct, ROWS) == 1 and Catalog(direct).verify(1, deep=True) == []
    direct.close()


@pytest.fixture
def unreliable_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """unreliable_disk(seed): from then on a tenth of the calls that write fail; their names as they do."""

    def begin(seed: int) -> list[str]:
        draw, failed = random.Random(seed), list[str]()

        def failing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if draw.random() < SHARE:
                    failed.append(name)
                    raise OSError(errno.EIO, "the disk says no")
                return original(*args, **kwargs)

            return call

        calls = [(os, name) for name in ("pwrite", "fsync", "ftruncate", "replace", "link")]
        for owner, name in [*calls, (parts, "sync_range")]:
            monkeypatch.setattr(owner, name, failing(name, getattr(owner, name)))
        return failed

    yield begin


@pytest.mark.parametrize("seed", range(5))
def test_a_save_gets_through_a_disk_that_fails(
    tmp_path: Path, patience: Retrier, unreliable_disk: Callable[[int], list[str]], seed: int
) -> None:
    store: ObjectStore = LocalStore(tmp_path)
    failed = unreliable_disk(seed)
    save(store, 1, ROWS, patience)
    assert len(failed) > 2 and patience.num_retries > 0
    assert loaded(store, ROWS) == 1 and Catalog(store).verify(1, deep=True) == []


class Slow(Script):
    """Takes `ANSWER_S` for each part and each object; a `share` of them, drawn by `seed`, fails after that."""

    ANSWER_S = 0.02

    def __init__(self, clock: FakeClock, share: float, seed: int) -> None:
        super().__init__()
        self.clock, self._share, self._draw, self.num_failed = clock, share, random.Random(seed), 0

    def step(self, operation: str, part: int) -> None:
        self.clock.sleep(self.ANSWER_S)
        super().step(operation, part)
        if self._draw.random() < self._share:
            self.num_failed += 1
            raise TransientStorageError("busy")


@pytest.mark.parametrize("seed", range(20))
def test_a_save_of_which_a_tenth_fails_takes_at_most_half_as_long_again(seed: int) -> None:
    def timed(store: Slow) -> float:
        retrier = Retrier(RetryPolicy(retries=8, first_s=Slow.ANSWER_S), store.clock)
        started = store.clock.monotonic()
        save(store, 1, ROWS, retrier)
        assert retrier.num_retries == store.num_failed and loaded(store, ROWS) == 1
        return store.clock.monotonic() - started

    calm, busy = Slow(FakeClock(), 0.0, seed), Slow(FakeClock(), SHARE, seed)
    assert timed(busy) <= 1.5 * timed(calm)
    assert busy.num_failed > 0 and len(busy.sent) == len(calm.sent) + busy.num_failed
    data = [{info.key.split("/")[-1]: store.get(info.key) for info in store.list()} for store in (calm, busy)]
    assert all(data[0][name] == data[1][name] for name in ("__0_0.distcp", "__1_0.distcp"))

"""Where a Saver is tested: two ranks in this process that write and read as an Engine does, and no Ray."""

from collections.abc import Callable
from typing import Any

import torch

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import ShardRecord
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.publish import publish
from ftppo.checkpoint.shards import read_shards, write_shards
from ftppo.clock import FakeClock
from ftppo.driver.dispatch import dispatch_of
from ftppo.errors import FtppoError
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.types import Written

SIZE = 3  # numbers that a rank holds


class Rank:
    """Holds its half of a tensor."""

    def __init__(self, slot: int, store: ObjectStore) -> None:
        self.slot, self.store = slot, store
        self.values = torch.zeros(SIZE)
        self._saving: Callable[[], ShardRecord] | None = None
        self._publishing: Callable[[], Manifest | None] | None = None

    def begin_save(self, prefix: str) -> None:
        pieces = [Piece("w", (2 * SIZE,), (self.slot * SIZE,), self.values.clone())]
        retrier = Retrier(RetryPolicy(retries=0), FakeClock())
        self._saving = lambda: write_shards(pieces, self.store, prefix, self.slot, retrier)

    def end_save(self) -> Written:
        assert self._saving is not None
        return Written(self._saving().to_bytes(), 0.0)

    def begin_publish(self, header: Header, written: list[Written] | None) -> None:
        records = [ShardRecord.from_bytes(one.record, "") for one in written or ()]
        self._publishing = lambda: publish(self.store, header, records, 2, FakeClock()) if records else None

    def end_publish(self) -> Manifest | None:
        assert self._publishing is not None
        return self._publishing()

    def load(self, manifest: Manifest) -> None:
        index = Catalog(self.store).index(manifest)
        piece = Piece("w", (2 * SIZE,), (self.slot * SIZE,), self.values)
        read_shards([piece], index, self.store, manifest.prefix)


class Ranks:
    """Calls both ranks and, as a Mesh does, raises the first error; `fails` has one rank's next such call fail."""

    def __init__(self, store: ObjectStore) -> None:
        self.roster = Roster(3, Layout(dp=2), ("a0", "a1"))
        self.ranks = [Rank(slot, store) for slot in range(2)]
        self.fails: dict[tuple[str, int], Exception] = {}
        self.calls: list[str] = []

    def call(
        self, method: str, *shared: Any, rows: Any = None, via: str = "pass_through", phase: str, deadline_s: float
    ) -> Any:
        self.calls.append(method)
        dispatch, layout = dispatch_of(via), self.roster.layout
        shards = dispatch.shards(layout, rows) if rows is not None else []
        own = [(shards[dispatch.shard_of(layout, rank.slot)],) if shards else () for rank in self.ranks]
        answers = [self._answer(rank, method, (*shared, *more)) for rank, more in zip(self.ranks, own, strict=True)]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return dispatch.merge([answers[slot] for slot in dispatch.collectors(layout)])

    def move_to(self, value: float) -> None:
        """Every number of the state is `value` now."""
        for rank in self.ranks:
            rank.values.fill_(value)

    @property
    def value(self) -> float:
        """What every number of the state is."""
        (found,) = set(torch.cat([rank.values for rank in self.ranks]).tolist())
        return float(found)

    def _answer(self, rank: Rank, method: str, shared: Any) -> Any:
        failure = self.fails.pop((method, rank.slot), None)
        if failure is not None:
            return failure
        try:
            return getattr(rank, method)(*shared)
        except FtppoError as error:
            return error

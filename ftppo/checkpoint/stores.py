"""The store and the retries that the config asks for.

Comes in: the checkpoint section; goes out: an ObjectStore, a Retrier.
"""

import hashlib

from ftppo.config import Checkpoint, Config
from ftppo.storage.base import ObjectStore
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.storage.retrying import RetryingStore
from ftppo.storage.url import open_store


def store_of(knobs: Checkpoint) -> ObjectStore:
    """The store at `knobs.url`, which must be given. Raises ConfigError."""
    assert knobs.url is not None, "the driver fills in the default"
    return open_store(knobs.url, endpoint=knobs.endpoint, checksums=knobs.checksums)


def retrying_store_of(knobs: Checkpoint, slot: int = 0) -> ObjectStore:
    """The same store for all that is not written through a BufferedWriter, which retries by itself."""
    return RetryingStore(store_of(knobs), make_retrier(knobs, slot))


def make_retrier(knobs: Checkpoint, slot: int) -> Retrier:
    """Retries for one save or load of one rank; ranks that fail together do not try again together."""
    policy = RetryPolicy(knobs.retries, knobs.retry_first_s, knobs.retry_cap_s, knobs.retry_deadline_s)
    return Retrier(policy, seed=slot)


def config_digest(config: Config) -> str:
    """A short name for what a checkpoint hangs on: where it is another, the run cannot go on from it.

    Rates, batch sizes and the layout may change from one part of a run to the next; seed, model, task and reward may
    not. The folder of a pretrained model may move, and what counts is its shape; so may that of a reward model, and
    what counts is how much it does.
    """
    shaping = config.model_dump_json(include={"seed", "model", "task"}, exclude={"model": {"path", "weights"}})
    if config.reward.path is not None:
        shaping += config.model_dump_json(include={"reward"}, exclude={"reward": {"path"}})
    return hashlib.sha256(shaping.encode()).hexdigest()[:16]

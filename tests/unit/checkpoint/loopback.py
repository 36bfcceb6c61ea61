"""Where the exchange is tested: servers and couriers on this machine. Closing it fails for what is left."""

import os
import socket
import threading
import time
from typing import Self

import numpy as np

from ftppo.checkpoint.exchange import Address, Courier, Exchange, fetch
from ftppo.checkpoint.snapshot import Buffer, Holdings, Tag

TOKEN = "this-run"
HOST = "127.0.0.1"
SHORT_S, LONG_S = 0.2, 40.0  # of a deadline that is to pass, and of one that must not be waited for
GOODBYE_S = 5.0  # what was told to end is given a moment to


class Loopback:
    """Servers and couriers of one run, unless told otherwise, in generation 1."""

    def __init__(self) -> None:
        self._exchanges: list[Exchange] = []
        self._couriers: list[Courier] = []

    def __enter__(self) -> Self:
        self._before = _sockets()
        return self

    def __exit__(self, *_: object) -> None:
        for courier in self._couriers:
            courier.close()
            courier.settle()
        for exchange in self._exchanges:
            exchange.close()
        until = time.monotonic() + GOODBYE_S
        while (threads() or _sockets() - self._before) and time.monotonic() < until:
            time.sleep(0.005)
        assert not threads() and not _sockets() - self._before

    def exchange(self, generation: int = 1, timeout_s: float = LONG_S) -> Exchange:
        """A server that holds nothing."""
        self._exchanges.append(Exchange(Holdings(), TOKEN, HOST, timeout_s))
        self._exchanges[-1].generation = generation
        return self._exchanges[-1]

    def courier(self, address: Address, generation: int = 1, token: str = TOKEN, timeout_s: float = LONG_S) -> Courier:
        """A courier to `address`."""
        self._couriers.append(Courier(token, generation, address, timeout_s))
        return self._couriers[-1]


def take(courier: Courier, *tags: Tag) -> None:
    """Send what belongs to each of `tags`, one after the other, and wait until none is on its way."""
    for tag in tags:
        courier.send(tag, content(tag))
        courier.settle()


def content(tag: Tag, num_bytes: int = 1000) -> Buffer:
    """Bytes that no other tag has."""
    return np.random.default_rng([tag.slot, tag.version + 1]).integers(0, 256, num_bytes, dtype=np.uint8)


def get(holder: Exchange, tag: Tag, generation: int = 1, token: str = TOKEN) -> bytes:
    """What `holder` gives out under `tag`."""
    return fetch(token, generation, holder.address, tag, LONG_S).tobytes()


def threads() -> set[str]:
    """Names of the exchange's threads that run."""
    return {one.name for one in threading.enumerate() if one.name.startswith("snapshot-")}


def closed_port() -> Address:
    """Where nobody listens any more."""
    with socket.create_server((HOST, 0)) as listener:
        address: Address = listener.getsockname()
    return address


def _sockets() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # that of the listing itself
    return {name for name in found if name.startswith("socket:")}

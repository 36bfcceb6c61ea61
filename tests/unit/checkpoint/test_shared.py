"""Memory that two processes map: found again, kept when its owner is gone, of no use once it is filled anew."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftppo.checkpoint import exchange as exchange_module
from ftppo.checkpoint.shared import Place, SharedBuffer, find, share
from ftppo.checkpoint.snapshot import Holdings, Tag
from ftppo.errors import CheckpointError
from ftppo.storage.crc import crc32
from tests.unit.checkpoint.loopback import Loopback, get

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory to share by descriptor"),
]

SIZE = 100_000
OWNER = """
import sys
from ftppo.checkpoint.shared import share
buffer = share(int(sys.argv[1]))
buffer[:] = 7
place = buffer.seal()
print(place["pid"], place["fd"], place["stamp"], flush=True)
sys.stdin.readline()
"""


def filled(value: int, size: int = SIZE) -> SharedBuffer:
    buffer = share(size)
    assert buffer is not None
    buffer[:] = value
    buffer.seal()
    return buffer


def found(buffer: SharedBuffer) -> SharedBuffer | None:
    return find(buffer.place, buffer.nbytes, crc32(buffer))


def sound(buffer: SharedBuffer) -> bool:
    return buffer.sound


def test_what_another_process_has_filled_outlives_it() -> None:
    command = [sys.executable, "-c", OWNER, str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, fd, stamp = map(int, owner.stdout.readline().split())
        content = np.full(SIZE, 7, dtype=np.uint8)
        seen = find(Place(pid=pid, fd=fd, stamp=stamp), SIZE, crc32(content))
        owner.kill()
    assert seen is not None and not seen.flags.writeable
    assert seen.sound and (seen == 7).all()


def test_it_is_of_no_use_once_it_is_filled_anew() -> None:
    buffer = filled(1)
    seen = found(buffer)
    assert seen is not None and sound(seen)
    buffer.unseal()
    assert found(buffer) is None and not sound(seen)
    buffer[:] = 2
    buffer.seal()
    again = found(buffer)
    assert not sound(seen), "another content, another stamp"
    assert again is not None and sound(again) and (again == 2).all()


def test_harm_that_its_owner_does_shows() -> None:
    buffer = filled(1)
    seen = found(buffer)
    buffer[SIZE // 2] ^= 1
    assert seen is not None and seen.intact and not seen.sound


def test_what_is_not_there_or_something_else_is_not_found(tmp_path: Path) -> None:
    buffer, pid = filled(1), os.getpid()
    place, crc = buffer.place, crc32(buffer)
    wrong: list[Any] = [
        place | {"stamp": place["stamp"] + 1},
        place | {"fd": 10**6},
        place | {"pid": 2**22 + 1},
        {},
        None,
        "x",
    ]
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # whose other end nobody opens: to wait for that would be for ever
    plain = os.open(__file__, os.O_RDONLY)
    try:
        wrong += [{"pid": pid, "fd": fd, "stamp": place["stamp"]} for fd in (pipe, plain)]
        assert [find(one, SIZE, crc) for one in wrong] == [None] * len(wrong)
        assert find(place, SIZE - 1, crc) is None
    finally:
        os.close(pipe)
        os.close(plain)


def test_memory_and_descriptors_are_given_back() -> None:
    def used() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("ftppo-snapshot")

    before = used()
    for value in range(20):
        buffer = filled(value)
        assert found(buffer) is not None
    del buffer
    assert used() == before


def test_a_buffer_that_others_map_is_used_again_and_theirs_is_not_written_to() -> None:
    own, buddys, addresses = Holdings(), Holdings(), set()
    for version in range(9):
        buffer = own.blank(SIZE, shared=True)
        assert isinstance(buffer, SharedBuffer)
        addresses.add(buffer.ctypes.data)
        buffer[:] = version
        buffer.seal()
        own.put(Tag(0, version), buffer)
        seen = found(buffer)
        assert seen is not None
        buddys.put(Tag(0, version), seen)
    assert len(addresses) == 3 and own.num_bytes == 3 * SIZE and buddys.num_bytes == 0
    assert buddys.tags() == own.tags() == [Tag(0, 7), Tag(0, 8)]
    received = buddys.blank(SIZE)
    assert not isinstance(received, SharedBuffer) and received.flags.writeable
    own.blank(SIZE, shared=True)[:] = 99
    assert buddys.tags() == [Tag(0, 7), Tag(0, 8)], "the spare one was filled"
    kept = buddys.get(Tag(0, 8))
    assert kept is not None and (kept == 8).all()
    newest = own.get(Tag(0, 8))
    assert isinstance(newest, SharedBuffer)
    newest.unseal()
    assert buddys.tags() == [Tag(0, 7)] and buddys.get(Tag(0, 8)) is None


@pytest.mark.parametrize("maps", [True, False])
def test_a_buddy_on_this_machine_maps_it_or_gets_the_bytes(
    maps: bool, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not maps:
        monkeypatch.setattr(exchange_module, "find", lambda *_: None)
    buddy, tag, buffer = loopback.exchange(), Tag(3, 7), filled(5)
    courier = loopback.courier(buddy.address)
    courier.send(tag, buffer)
    courier.settle()
    assert courier.delivered == {3: 7}
    held = buddy.holdings.get(tag)
    assert isinstance(held, SharedBuffer) is maps and held is not None and held.tobytes() == buffer.tobytes()
    assert get(buddy, tag) == buffer.tobytes()
    buffer.unseal()
    if maps:
        with pytest.raises(CheckpointError, match="does not hold"):
            get(buddy, tag)
    else:
        assert len(get(buddy, tag)) == SIZE


def test_a_buddy_elsewhere_gets_the_bytes(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "_is_near", lambda connection: False)
    buddy, tag, buffer = loopback.exchange(), Tag(0, 1), filled(5)
    courier = loopback.courier(buddy.address)
    courier.send(tag, buffer)
    courier.settle()
    held = buddy.holdings.get(tag)
    assert held is not None and not isinstance(held, SharedBuffer) and courier.delivered == {0: 1}


def test_what_came_to_harm_in_its_owners_memory_is_not_handed_out(loopback: Loopback) -> None:
    buddy, tag, buffer = loopback.exchange(), Tag(0, 1), filled(5)
    courier = loopback.courier(buddy.address)
    courier.send(tag, buffer)
    courier.settle()
    buffer[-1] ^= 1
    with pytest.raises(CheckpointError, match="does not hold"):
        get(buddy, tag)

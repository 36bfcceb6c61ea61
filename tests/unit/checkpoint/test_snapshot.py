"""Copies in host memory: bounded, by version; tensors of any kind as one run of bytes, and back, bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.snapshot import FROZEN, Buffer, Flat, Holdings, Tag


def taken(holdings: Holdings, slot: int, version: int, num_bytes: int = 8) -> Buffer:
    buffer = holdings.blank(num_bytes)
    buffer[:] = version % 251
    holdings.put(Tag(slot, version), buffer)
    return buffer


def versions(holdings: Holdings, slot: int) -> list[int]:
    return [tag.version for tag in holdings.tags() if tag.slot == slot]


def test_the_two_newest_of_each_slot_are_held() -> None:
    holdings = Holdings()
    for version in range(5):
        taken(holdings, 0, version)
        taken(holdings, 1, version + 10)
    assert versions(holdings, 0) == [3, 4] and versions(holdings, 1) == [13, 14]
    for slot, version in [(0, 3), (0, 4), (1, 13), (1, 14)]:
        held = holdings.get(Tag(slot, version))
        assert held is not None and (held == version).all()
    assert holdings.get(Tag(0, 2)) is None and holdings.get(Tag(2, 4)) is None


def test_memory_stays_three_buffers_a_slot_however_long_the_run() -> None:
    holdings, seen, sizes = Holdings(), [], {0: 100, 1: 64}
    for version in range(50):
        for slot, size in sizes.items():
            seen.append(taken(holdings, slot, version, size))
        assert holdings.num_bytes <= 3 * sum(sizes.values())
    assert len({id(buffer) for buffer in seen}) == 3 * len(sizes)  # `seen` keeps them: an id is one buffer's


def test_spare_buffers_are_only_used_for_their_size() -> None:
    holdings = Holdings()
    for version in range(4):
        taken(holdings, 0, version, 10)
    assert holdings.blank(11).nbytes == 11 and holdings.blank(9).nbytes == 9
    assert holdings.num_bytes == 30  # the spare one is still there


def test_spare_buffers_that_nobody_can_use_do_not_pile_up() -> None:
    holdings = Holdings()
    for version in range(20):
        taken(holdings, 0, version, 100 + version)
    assert holdings.num_bytes == 119 + 118 + 117 + 116  # two are held, two are spare


def test_what_never_changes_is_kept_beside_the_versions() -> None:
    holdings = Holdings()
    taken(holdings, 0, FROZEN)
    for version in range(4):
        taken(holdings, 0, version)
    assert versions(holdings, 0) == [FROZEN, 2, 3]
    taken(holdings, 0, FROZEN)
    assert versions(holdings, 0) == [FROZEN, 2, 3]
    holdings.forget(newer_than=0)
    assert versions(holdings, 0) == [FROZEN]


def test_forgetting_leaves_what_is_as_old_and_makes_the_rest_spare() -> None:
    holdings = Holdings()
    dropped = [taken(holdings, slot, version) for slot in (0, 1) for version in (4, 5)][1::2]
    holdings.forget(newer_than=4)
    assert holdings.tags() == [Tag(0, 4), Tag(1, 4)]
    again = [holdings.blank(8) for _ in dropped]
    assert {id(buffer) for buffer in again} == {id(buffer) for buffer in dropped}


def test_a_run_that_went_far_back_holds_where_it_is_now() -> None:
    """A checkpoint may be older than all that is held."""
    holdings = Holdings()
    for version in (8, 9):
        taken(holdings, 0, version)
        taken(holdings, 1, version)
    taken(holdings, 0, 5)
    assert versions(holdings, 0) == [5] and versions(holdings, 1) == [8, 9]
    taken(holdings, 0, 6)
    assert versions(holdings, 0) == [5, 6]


def test_taking_a_version_again_replaces_it() -> None:
    holdings = Holdings()
    taken(holdings, 0, 3)
    taken(holdings, 0, 4)
    again = taken(holdings, 0, 4)
    assert versions(holdings, 0) == [3, 4] and holdings.get(Tag(0, 4)) is again


def tensors() -> list[Tensor]:
    """One of every kind that a model or an optimizer may hold; sizes such that what follows is not aligned."""
    torch.manual_seed(1)
    whole = torch.randn(6, 8)
    return [
        torch.randn(3, dtype=torch.bfloat16),
        torch.tensor([2**62, -(2**62)], dtype=torch.int64),
        torch.tensor([True, False, True]),
        torch.tensor(3.5),
        torch.tensor(7, dtype=torch.int64),
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.bfloat16),
        torch.tensor([float("nan"), float("inf"), -0.0]),
        whole.t(),
        whole[1::2, 2:7],
        torch.randn(4, dtype=torch.float64),
        torch.nn.Parameter(torch.randn(2, 2)),
    ]


def raw(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_tensors_become_bytes_in_order_and_come_back_bit_for_bit() -> None:
    first, second = tensors(), tensors()
    flat = Flat(first)
    buffer = np.full(flat.num_bytes, 0xAA, dtype=np.uint8)
    flat.pack(buffer)
    wanted = b"".join(map(raw, first))
    assert buffer.tobytes() == wanted and flat.num_bytes == len(wanted)
    for tensor in second:
        tensor.detach().zero_()
    Flat(second).unpack(buffer)
    assert [raw(tensor) for tensor in second] == [raw(tensor) for tensor in first]


def test_the_tensors_are_live_views() -> None:
    whole = torch.zeros(4, 4)
    flat = Flat([whole[:, 1]])
    whole[:, 1] = torch.arange(4.0)
    buffer = np.empty(flat.num_bytes, dtype=np.uint8)
    flat.pack(buffer)
    whole.fill_(-1.0)
    assert (whole == -1.0).all()
    flat.unpack(buffer)
    assert whole[:, 1].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (whole[:, [0, 2, 3]] == -1.0).all()


def test_a_copy_does_not_follow_the_tensors() -> None:
    tensor = torch.ones(3)
    flat, buffer = Flat([tensor]), np.empty(12, dtype=np.uint8)
    flat.pack(buffer)
    tensor.fill_(5.0)
    assert buffer.tobytes() == raw(torch.ones(3))


@pytest.mark.parametrize("seed", range(5))
def test_same_tensors_same_bytes_in_any_strides(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    plain = [torch.randn([draw.randint(0, 4) for _ in range(draw.randint(0, 3))]) for _ in range(6)]
    strided = [torch.stack([one, one], dim=-1)[..., 0] for one in plain]
    found = []
    for flat in (Flat(plain), Flat(strided)):
        buffer = np.empty(flat.num_bytes, dtype=np.uint8)
        flat.pack(buffer)
        found.append(buffer.tobytes())
    assert found[0] == found[1]


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(AssertionError, match="8 bytes for 12"):
        Flat([torch.zeros(3)]).unpack(np.zeros(8, dtype=np.uint8))


def test_nothing_to_copy_is_no_bytes() -> None:
    flat = Flat([])
    assert flat.num_bytes == 0
    flat.pack(np.empty(0, dtype=np.uint8))
    flat.unpack(np.empty(0, dtype=np.uint8))


def test_copies_of_slots_that_others_back_go_and_the_rest_stays() -> None:
    holdings = Holdings()
    for tag in (Tag(0, 7), Tag(0, 8), Tag(1, 2), Tag(1, FROZEN), Tag(2, FROZEN), Tag(3, 8), Tag(3, FROZEN)):
        holdings.put(tag, np.zeros(4, dtype=np.uint8))
    holdings.drop_stale(oldest=7)
    assert holdings.tags() == [Tag(0, 7), Tag(0, 8), Tag(2, FROZEN), Tag(3, FROZEN), Tag(3, 8)]

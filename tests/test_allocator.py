# chapter 4
"""The caching allocator: sizes, splitting and merging of blocks."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from allocator_blocks import (
    KIB,
    MIB,
    CloseGate,
    around,
    block_of,
    counters,
    current,
    new,
    segment_of,
    segments,
    stat,
)
from allocator_blocks import device as device  # the fixture
from conftest import Run
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")


@pytest.mark.parametrize(
    ("size", "block", "segment", "kind"),
    [
        (1, 512, 2 * MIB, "small"),
        (512, 512, 2 * MIB, "small"),
        (513, 1024, 2 * MIB, "small"),
        (MIB - 1, MIB, 2 * MIB, "small"),
        (MIB, MIB, 2 * MIB, "small"),
        (MIB + 1, MIB + 512, 20 * MIB, "large"),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, "large"),
        (10 * MIB, 10 * MIB, 10 * MIB, "large"),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB, "large"),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB, "large"),  # the rest is more than 1 MiB: another large request fits
        (11 * MIB, 12 * MIB, 12 * MIB, "large"),  # the rest is not: it stays with the block
        (33 * MIB, 34 * MIB, 34 * MIB, "large"),
    ],
)
def test_sizes(size: int, block: int, segment: int, kind: str, device: torch.device) -> None:
    x = new(size, device)
    assert block_of(x)["size"] == block
    assert block_of(x)["requested_size"] == size
    assert segment_of(x)["total_size"] == segment
    assert segment_of(x)["segment_type"] == kind
    assert x.data_ptr() % 512 == 0
    assert stat("allocated_bytes.all.allocated", device) == block
    assert stat("requested_bytes.all.allocated", device) == size
    assert counters(device)[0] == 1


def test_a_small_device_gets_small_segments(run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        x = torch.empty(3 << 20, dtype=torch.uint8, device="cookbook")
        y = torch.empty(1000, dtype=torch.uint8, device="cookbook")
        print(sorted(s["total_size"] >> 20 for s in cookbook_backend.memory_snapshot()))
    """,
        COOKBOOK_DEVICE_MEMORY="128M",
    )
    assert done.stdout == "[2, 4]\n", done.stderr


def test_a_freed_block_is_reused_at_once_without_the_driver(device: torch.device, gate: CloseGate) -> None:
    first = new(1000, device)
    address = first.data_ptr()
    _C.reset_counters(device.index)
    closed = gate(current(device))  # its kernels have not run, and need not
    first.fill_(1)
    del first
    for _ in range(100):
        x = new(1000, device)
        assert x.data_ptr() == address
        del x
    assert counters(device) == (0, 0, 0)
    closed.open()


def test_the_driver_is_asked_only_when_no_free_block_is_large_enough(device: torch.device) -> None:
    """Whatever the cache holds: a free block that fits is found, also in the long list of a full size class."""
    random.seed(1)
    held = [new(random.randrange(1, 700) * 512, device) for _ in range(200)]
    for _ in range(200):
        index = random.randrange(len(held))
        held[index] = held[-1]
        held.pop()
        size = random.randrange(1, 2048) * 512
        free = [b["size"] for s in segments(device) if s["segment_type"] == "small" for b in s["blocks"]
                if b["state"] == "inactive"]  # fmt: skip
        before = counters(device)[0]
        held.append(new(size, device))
        assert counters(device)[0] - before == (0 if max(free, default=0) >= size else 1)
        used = block_of(held[-1])["size"]
        assert used == size


@pytest.mark.parametrize("size", [256 * KIB, 4 * MIB])
def test_neighbours_join_in_every_order(size: int, device: torch.device) -> None:
    for order in itertools.permutations(range(4)):
        parts: list[Tensor | None] = [new(size, device) for _ in range(4)]
        assert len({segment_of(p)["address"] for p in parts if p is not None}) == 1
        address = segment_of(parts[0])["address"]  # type: ignore[arg-type]
        for i in order:
            parts[i] = None
            states = [b["state"] for b in around(address, device)[0]["blocks"]]
            assert ("inactive", "inactive") not in list(itertools.pairwise(states))
        assert len(around(address, device)[0]["blocks"]) == 1
    assert counters(device)[0] == 1


def test_fragments_do_not_serve_larger_requests_until_they_join(device: torch.device) -> None:
    before = stat("inactive_split.all.current", device)
    parts = [new(64 * KIB, device) for _ in range(32)]  # one small segment
    assert counters(device)[0] == 1
    del parts[::2]
    assert stat("inactive_split.all.current", device) == before + 16
    larger = new(128 * KIB, device)
    assert counters(device)[0] == 2
    del parts[:]
    larger_still = [new(MIB, device) for _ in range(3)]
    assert counters(device)[0] == 2
    assert stat("inactive_split.all.current", device) == before + 1
    del larger, larger_still
    assert stat("inactive_split.all.current", device) == before


def test_empty_cache_gives_back_whole_segments_only(device: torch.device) -> None:
    before = torch.accelerator.get_memory_info(device.index)[0]
    small, other, large = new(1000, device), new(1000, device), new(30 * MIB, device)
    assert torch.accelerator.memory_reserved(device.index) >= 32 * MIB
    del other, large
    reserved = torch.accelerator.memory_reserved(device.index)
    assert torch.accelerator.get_memory_info(device.index)[0] == before - 32 * MIB
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(device.index) == reserved - 30 * MIB
    assert torch.accelerator.get_memory_info(device.index)[0] == before - 2 * MIB
    del small
    torch.accelerator.empty_cache()
    assert torch.accelerator.get_memory_info(device.index)[0] == before
    assert (stat("num_device_alloc", device), stat("num_device_free", device)) == counters(device)[:2] == (2, 2)


def test_empty_cache_waits_for_nobody(device: torch.device, gate: CloseGate) -> None:
    """It runs with the GIL. A segment goes back in its stream's order, so work that still uses it keeps it."""
    x = torch.full((3 * MIB,), 7.0, device=device)  # has a segment of its own
    closed = gate(current(device))
    y = x.clone()
    del x
    torch.accelerator.empty_cache()
    assert counters(device)[1:] == (1, 0)
    side = torch.Stream(device)
    with side:
        z = torch.full((3 * MIB,), 9.0, device=device)  # must not be what x was yet
    side.synchronize()
    closed.open()
    current(device).synchronize()
    assert (y.cpu() == 7).all()
    assert (z.cpu() == 9).all()

# chapter 4
"""What the tests of the caching allocator share: blocks and segments by address, statistics, a device with an empty cache."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import cookbook_backend
from cookbook_backend.memory import Block, Segment

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
KIB, MIB = 1 << 10, 1 << 20


def new(size: int, device: torch.device) -> Tensor:
    """A tensor of `size` bytes."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def segments(device: torch.device) -> list[Segment]:
    return cookbook_backend.memory_snapshot(device)


def around(address: int, device: torch.device) -> tuple[Segment, Block]:
    """The segment and the block that hold an address."""
    for segment in segments(device):
        for block in segment["blocks"]:
            if block["address"] <= address < block["address"] + block["size"]:
                return segment, block
    raise AssertionError(f"no block holds {address:#x}")


def block_of(tensor: Tensor) -> Block:
    return around(tensor.data_ptr(), tensor.device)[1]


def segment_of(tensor: Tensor) -> Segment:
    return around(tensor.data_ptr(), tensor.device)[0]


def counters(device: torch.device) -> tuple[int, int, int]:
    """The driver's allocations, frees and waits since the last reset of its counters."""
    now = _C.counters(device.index)
    return now["allocations"], now["frees"], now["synchronizations"]


def current(device: torch.device) -> torch.Stream:
    return cookbook_backend.current_stream(device)


def stat(name: str, device: torch.device) -> int:
    return torch.accelerator.memory_stats(device.index)[name]


@pytest.fixture(params=["cookbook:0", "cookbook:1"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each device in turn, current, on a stream that nobody has used, with an empty cache and all counters at 0."""
    device = torch.device(request.param)
    cookbook_backend.set_device(device)
    gc.collect()
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(device.index)
    torch.accelerator.reset_accumulated_memory_stats(device.index)
    with cookbook_backend.external_stream(_C.driver_stream_create(device.index, 0)):
        _C.reset_counters(device.index)
        yield device


NAMES = (
    "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split", "inactive_split_bytes",
    "requested_bytes", "reserved_bytes", "segment",
)  # fmt: skip
POOLS = ("all", "small_pool", "large_pool")


def seen(device: torch.device) -> dict[str, int]:
    """The current value of every statistic, computed from a snapshot; and what must hold for any snapshot."""
    now = {f"{name}.{pool}": 0 for name in NAMES for pool in POOLS}

    def count(name: str, pool: str, amount: int) -> None:
        now[f"{name}.all"] += amount
        now[f"{name}.{pool}"] += amount

    for segment in segments(device):
        pool = f"{segment['segment_type']}_pool"
        count("segment", pool, 1)
        count("reserved_bytes", pool, segment["total_size"])
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            assert block["size"] % 512 == 0 < block["size"]
            address += block["size"]
            free, live = block["state"] == "inactive", block["state"] == "active_allocated"
            assert block["requested_size"] <= block["size"]
            if live:
                count("allocation", pool, 1)
                count("allocated_bytes", pool, block["size"])
                count("requested_bytes", pool, block["requested_size"])
            if not free:
                count("active", pool, 1)
                count("active_bytes", pool, block["size"])
            if free and len(segment["blocks"]) > 1:
                count("inactive_split", pool, 1)
                count("inactive_split_bytes", pool, block["size"])
        assert address == segment["address"] + segment["total_size"]
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in list(itertools.pairwise(states))
    return now

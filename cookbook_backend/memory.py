# chapter 4
# %% memory
"""The memory of the device: what the cache holds, and how much of the device it may take.

The statistics are PyTorch's own, `torch.accelerator.memory_stats` and its relatives; libraries look for them on
`torch.<device>` too.
"""

from __future__ import annotations

from typing import Literal, TypedDict

import torch
from torch.accelerator import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch.accelerator import get_memory_info as mem_get_info

from . import _C, _index, current_device

__all__ = [
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


# %% memory-fraction
def set_per_process_memory_fraction(fraction: float, device: int | str | torch.device | None = None) -> None:
    """Limit what this process may take of a device's memory (default: of the current one).

    What it has taken already stays; a request beyond the limit is out of memory.

    Args:
        fraction: a part of the device's capacity, from 0 to 1.
        device: an index or a device of type `cookbook`.

    Raises:
        ValueError: the fraction is not between 0 and 1.
    """
    _C.set_memory_fraction(_index(device, default=current_device()), fraction)


def get_per_process_memory_fraction(device: int | str | torch.device | None = None) -> float:
    """Return the limit that `set_per_process_memory_fraction` has set, 1.0 when it has not."""
    return _C.memory_fraction(_index(device, default=current_device()))


# %% memory-snapshot
class Block(TypedDict):
    """A part of a segment. Sizes are in bytes."""

    address: int
    size: int
    requested_size: int
    """What the program asked for; 0 when the block is free."""
    state: Literal["active_allocated", "active_pending_free", "inactive"]
    """Owned by a tensor; freed, but in use by a stream that `record_stream` has named; free."""


class Segment(TypedDict):
    """What the driver gave at once. The keys are those of `torch.cuda.memory_snapshot`, so that its readers work."""

    device: int
    address: int
    total_size: int
    allocated_size: int
    active_size: int
    requested_size: int
    stream: int
    """The native handle of the stream that the segment belongs to."""
    segment_type: Literal["small", "large"]
    segment_pool_id: tuple[int, int]
    """The private pool, (0, 0) when it is none."""
    is_expandable: bool
    blocks: list[Block]


def memory_snapshot(device: int | str | torch.device | None = None) -> list[Segment]:
    """Return the segments that the cache holds (of the current device by default), by address, with their blocks."""
    return _C.memory_snapshot(_index(device, default=current_device()))

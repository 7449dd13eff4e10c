# chapter 6
# %% memory-summary
"""The statistics of the cache as a table for people. FSDP logs it by the name `memory_summary`."""

from __future__ import annotations

import torch
from torch.accelerator import memory_stats

from . import _index, current_device

_BYTES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
_COUNTS = ("allocation", "active", "segment", "inactive_split")


def memory_summary(device: int | str | torch.device | None = None, abbreviated: bool = False) -> str:
    """Return a table of `torch.accelerator.memory_stats` (default: of the current device), bytes in KiB.

    Args:
        device: an index or a device of type `cookbook`.
        abbreviated: leave out the rows for large and small blocks.
    """
    index = _index(device, default=current_device())
    stats = memory_stats(index)
    columns = ("current", "peak", "allocated", "freed")
    lines = [f"cookbook:{index}, {stats['num_ooms']} times out of memory, {stats['num_alloc_retries']} retries"]
    lines.append(" ".join([f"{'':34}", *(f"{column:>13}" for column in columns)]))
    for name in (*_BYTES, *_COUNTS):
        for pool in ("all",) if abbreviated else ("all", "large_pool", "small_pool"):
            values = [int(stats[f"{name}.{pool}.{column}"]) for column in columns]
            cells = [f"{value // 1024:>9} KiB" if name in _BYTES else f"{value:>13}" for value in values]
            lines.append(" ".join([f"{name + '.' + pool:34}", *cells]))
    return "\n".join(lines)

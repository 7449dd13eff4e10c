# chapter 4
# %% host-memory
"""What the cache of pinned host memory holds, and how well it serves."""

from __future__ import annotations

from . import _C


def empty_host_cache() -> None:
    """Give pinned memory that is free back to the system, as `torch.accelerator.empty_host_cache` does.

    Giving back waits for all devices. Here other Python threads run meanwhile; PyTorch's function holds the GIL.
    """
    _C.empty_host_cache()


def host_memory_stats() -> dict[str, int]:
    """Return the statistics of the cache of pinned host memory, under the names that `torch.cuda.host_memory_stats` uses.

    * `allocations.*`, `allocated_bytes.*`: blocks that the cache has from the driver, in use or not.
    * `active_requests.*`, `active_bytes.*`: blocks in use. A freed block counts until the streams that used it have
      passed and a later allocation has noticed.
    * `num_host_alloc`, `num_host_free`: blocks asked of the driver and given back to it.
    * `host_alloc_time.*`, `host_free_time.*`: microseconds in these calls: `total`, `max`, `min`, `count`, `avg`.

    Behind a dot stands `current`, `peak`, `allocated` or `freed`; the last two are sums since the start or the last
    reset. Bytes count whole blocks: a request is rounded up to a power of two. `active_*.peak` is the sum of the peaks of
    each block size, so an upper bound. Source: `at::HostStats` in ATen/core/CachingHostAllocator.h.
    """
    flat: dict[str, int] = {}
    for name, value in _C.host_memory_stats().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{part}": number for part, number in value.items()})
        else:
            flat[name] = value
    return dict(sorted(flat.items()))


def reset_accumulated_host_memory_stats() -> None:
    """Set the sums of `host_memory_stats` to zero: `allocated`, `freed` and what is derived from them."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Set the peaks of `host_memory_stats` to the current values."""
    _C.reset_peak_host_memory_stats()

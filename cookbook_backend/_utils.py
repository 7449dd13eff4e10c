# chapter 6
# %% device-index-lookup
"""`torch.load` looks for `torch.<device>._utils._get_device_index`; so do libraries that were written for CUDA."""

from __future__ import annotations

import torch

from . import _index, current_device


def _get_device_index(device: int | str | torch.device | None, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index that a device argument means.

    Args:
        device: an index, a device of type `cookbook`, or None.
        optional: whether None, or a device without an index, means the current device.
        allow_cpu: whether the CPU is fine; its index is -1.

    Raises:
        ValueError: the device is of another type, or has no index and `optional` is False.
    """
    if allow_cpu and device is not None and not isinstance(device, int) and torch.device(device).type == "cpu":
        return -1
    index = _index(device, default=-1)
    if index >= 0:
        return index
    if not optional:
        raise ValueError(f"expected a cookbook device with an index, got {device!r}")
    return current_device()

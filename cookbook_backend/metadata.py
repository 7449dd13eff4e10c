# chapter 6
# %% tensor-metadata
"""Names and values that stay with a tensor on the device, also in a file: what only the backend knows about it.

A chip that keeps matrices in a layout of its own, or a scale beside integers, has something to remember for each
tensor. PyTorch carries it (`c10::BackendMeta`) and asks the backend how to save it.
"""

from __future__ import annotations

import torch

from . import _C

# PyTorch has room for one backend here too, so a refusal must be an exception: not a static initializer.
_C.register_serialization()


def set_metadata(tensor: torch.Tensor, metadata: dict[str, str]) -> None:
    """Attach metadata to a tensor, in place of what it had; an empty dictionary removes it.

    `torch.save`, `torch.load` and pickle keep it on this device, `detach()` and `.data` share it. What computes or
    copies a tensor makes one without: operators, `.to()`, `copy.deepcopy`, queues between processes.

    Args:
        tensor: a tensor on the device.
        metadata: names without `=`, and any text.

    Raises:
        ValueError: the tensor is elsewhere, or a name is empty or contains `=`.
    """
    _C.set_metadata(tensor, metadata)


def get_metadata(tensor: torch.Tensor) -> dict[str, str]:
    """Return a copy of a tensor's metadata, empty when it has none."""
    return _C.metadata(tensor)

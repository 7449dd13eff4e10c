# chapter 4
# %% graphs
"""What graph capture needs on the Python side; the graphs themselves are `torch.accelerator.Graph`."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import _C


def is_current_stream_capturing() -> bool:
    """Return whether this thread's current stream of the current device is being captured."""
    return _C.is_current_stream_capturing()


# %% graphs-optimizers
def _check_capturable(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
    """Refuse to capture a step whose bias correction is a number of the host's.

    Source: `Optimizer._accelerator_graph_capture_health_check` (torch/optim/optimizer.py) asks this of CUDA and XPU
    only. Without it the step would be captured with its step count as a constant, and each replay would use it again.

    Raises:
        RuntimeError: a parameter group of the optimizer has `capturable=False`.
    """
    if not _C.is_current_stream_capturing():
        return
    groups: list[dict[str, Any]] = optimizer.param_groups
    if not all(group.get("capturable", True) for group in groups):
        raise RuntimeError(
            f"Attempting cookbook graph capture of step() for an instance of {type(optimizer).__name__} but "
            "param_groups' capturable is False: make the optimizer with capturable=True"
        )


register_optimizer_step_pre_hook(_check_capturable)

# chapter 6
# %% amp
"""Mixed precision for the device without naming it: `torch.amp` with "cookbook" filled in.

`torch.amp.GradScaler()` does not know which device you mean: it takes "cuda", warns that there is none, and is disabled.
The names here mean this device. They are those that `torch.cuda.amp` has (torch/cuda/amp/__init__.py), for programs that
ask for `torch.get_device_module(device).amp`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast):
    """`torch.autocast("cookbook", ...)`, a context manager and a decorator.

    Args:
        enabled: whether operators are cast inside.
        dtype: `torch.bfloat16` or `torch.float16`; None takes `torch.get_autocast_dtype("cookbook")`. Another one warns
            and casts nothing.
        cache_enabled: whether the cast of a parameter is kept until the outermost block ends.
    """

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__("cookbook", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


# %% amp-scaler
class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("cookbook", ...)`.

    Args:
        init_scale: the first factor of the loss.
        growth_factor: multiplies the scale after `growth_interval` steps in a row with finite gradients; above 1.
        backoff_factor: multiplies the scale after a step with an infinite or NaN gradient; below 1.
        growth_interval: a number of steps.
        enabled: False makes `scale` and `update` do nothing and `step` a plain optimizer step.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cookbook", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


# %% amp-functions
custom_fwd: Callable[..., Any] = functools.partial(torch.amp.custom_fwd, device_type="cookbook")
"""`torch.amp.custom_fwd` for this device: the forward of an autograd function that runs in one dtype."""

custom_bwd: Callable[..., Any] = functools.partial(torch.amp.custom_bwd, device_type="cookbook")
"""`torch.amp.custom_bwd` for this device: a backward under the autocast state of its forward."""

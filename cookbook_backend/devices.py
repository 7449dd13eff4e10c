# chapter 6
# %% device-properties
"""What a device is, and a kernel that keeps it busy: the functions that libraries expect on `torch.<device>`."""

from __future__ import annotations

import dataclasses

import torch

from . import _C, _index, current_device, device


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What the driver says of a device. The names are those of `torch.cuda.get_device_properties`."""

    name: str
    total_memory: int
    """In bytes."""
    major: int
    """With `minor`, the capability."""
    minor: int


def get_device_properties(device: int | str | torch.device | None = None) -> DeviceProperties:
    """Return the properties of a device (default: the current one).

    Raises:
        torch.AcceleratorError: there is no such device.
    """
    properties = _C.properties(_index(device, default=current_device()))
    return DeviceProperties(properties["name"], properties["total_memory"], *properties["capability"])


def get_device_capability(device: int | str | torch.device | None = None) -> tuple[int, int]:
    """Return a device's capability as major and minor number (default: of the current one).

    `torch.accelerator.get_device_capability` says which dtypes the device stores; it asks the guard.
    """
    return _C.properties(_index(device, default=current_device()))["capability"]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether the current device computes in bfloat16.

    Args:
        including_emulation: makes no difference here, since nothing is emulated.
    """
    return torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


# %% device-of
class device_of(device):
    """Make the device of a tensor or storage current inside a `with` block; one that is elsewhere changes nothing."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        index = obj.device.index if obj.device.type == "cookbook" else None
        super().__init__(-1 if index is None else index)


# %% device-sleep
def _sleep(cycles: int) -> None:
    """Queue a kernel that takes its time on the current stream; for tests of what must wait and what must not.

    Args:
        cycles: how long, in cycles of the simulated clock, which are nanoseconds.

    Raises:
        ValueError: `cycles` is negative.
    """
    if cycles < 0:
        raise ValueError(f"expected a number of cycles that is not negative, got {cycles}")
    _C.sleep(cycles)

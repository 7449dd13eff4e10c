# chapter 1
# %% autoload
"""The Python side of the `cookbook` device: `import torch` makes it known, `torch.cookbook` is this package."""

from __future__ import annotations


def _autoload() -> None:
    """Do nothing: PyTorch's entry point for backends calls it, and importing this package has done the work.

    It stands above `import torch` because `import cookbook_backend` runs first in some programs: importing PyTorch then
    comes back here for the entry point while this module is only half made.
    """


# %% import-torch
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

_BUILT_FOR = "2.13"
if torch.__version__.split("+")[0].rsplit(".", 1)[0] != _BUILT_FOR:
    raise ImportError(
        f"cookbook_backend was built for torch {_BUILT_FOR}.*, this is torch {torch.__version__}: "
        f"install torch {_BUILT_FOR} or build the backend again"
    )

try:
    from . import _C
except ImportError as error:
    raise ImportError(
        f"cookbook_backend's native module does not load: {error}. If this is the source folder, build it first "
        "(pip install --no-build-isolation .), or start Python elsewhere. TORCH_DEVICE_BACKEND_AUTOLOAD=0 lets you "
        "import torch without it."
    ) from error

# %% device-functions
__all__ = ["current_device", "device", "device_count", "get_device_name", "is_available", "set_device", "synchronize"]


def device_count() -> int:
    """Return how many devices there are; 0 when the driver has none or fails."""
    return _C.device_count()


def is_available() -> bool:
    """Return whether there is a device. Brings none to life."""
    return device_count() > 0


def current_device() -> int:
    """Return the index of this thread's current device."""
    return _C.current_device()


def set_device(device: int | str | torch.device) -> None:
    """Make a device this thread's current one.

    Args:
        device: an index, or a device of type `cookbook`; without an index it changes nothing.

    Raises:
        torch.AcceleratorError: there is no device with this index.
    """
    _C.set_device(_index(device, default=-1))


def synchronize(device: int | str | torch.device | None = None) -> None:
    """Wait until all work queued on a device (default: the current one) has finished.

    Raises:
        torch.AcceleratorError: a kernel failed since; the text names it.
    """
    _C.synchronize(_index(device, default=current_device()))


def get_device_name(device: int | str | torch.device | None = None) -> str:
    """Return the name the driver gives a device (default: the current one)."""
    return _C.properties(_index(device, default=current_device()))["name"]


# %% device-index
def _index(device: int | str | torch.device | None, default: int) -> int:
    """Return the index a device argument means; `default` when it names none."""
    if device is None:
        return default
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cookbook":
        raise ValueError(f"expected a cookbook device, got {device}")
    return default if device.index is None else device.index


# %% device-context
class device:
    """Make a device current inside a `with` block and restore the one before, also after an exception.

    Args:
        device: an index or a device of type `cookbook`; a negative index, or a device without one, changes nothing.
    """

    def __init__(self, device: int | str | torch.device) -> None:
        self.index = _index(device, default=-1)
        self._previous: list[int] = []  # a stack: one object may be entered again while it is active

    def __enter__(self) -> device:
        self._previous.append(_C.maybe_exchange_device(self.index))
        return self

    def __exit__(self, *_: object) -> None:
        _C.maybe_exchange_device(self._previous.pop())


# %% lazy-init
# PyTorch asks for these by name before it lets a factory function reach the device.
def _lazy_init() -> None:
    if _C.is_forked_child():
        raise RuntimeError(
            "Cannot re-initialize the cookbook device in a forked subprocess: its threads did not survive the fork. "
            "Use the 'spawn' start method of multiprocessing."
        )


def is_initialized() -> bool:
    """Return whether the device can be used: always, but in a forked child."""
    return not _C.is_forked_child()


def _is_in_bad_fork() -> bool:
    return _C.is_forked_child()


# %% register
def _register() -> None:
    # The name first: everything after it looks the device up by its name.
    rename_privateuse1_backend("cookbook")
    # Then the hooks. They are registered by a call and not by a static initializer: PyTorch accepts one set in a
    # process, and only a call can turn a refusal into an exception; a static initializer would end the process.
    _C.register_hooks()
    # Then `torch.cookbook`: factory functions import a module of this name on their first call.
    import sys

    torch._register_device_module("cookbook", sys.modules[__name__])  # type: ignore[no-untyped-call]


_register()

# %% exit
import atexit

# Streams have threads. They are joined while the interpreter is whole; a static destructor would be too late.
atexit.register(_C.shutdown)
# if COOKBOOK_CHAPTER >= 3
# %% fallback
from . import fallback as fallback

__all__ += ["fallback"]

# Handlers run in reverse order: this one before the streams' threads are joined, since it still runs kernels.
atexit.register(_C.flush_autograd)
# endif

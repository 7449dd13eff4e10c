# chapter 1
# %% import-torch
"""The Python side of the `cookbook` device: `import torch` makes it known, `torch.cookbook` is this package."""

from __future__ import annotations

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
        "(pip install --no-build-isolation .), or start Python elsewhere"
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
    # if COOKBOOK_CHAPTER >= 6
    _lazy_init()  # as CUDA does: whoever has chosen a device keeps it (torch.distributed's DeviceMesh asks)
    # endif


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
    # if COOKBOOK_CHAPTER >= 6
    global _asked_for
    _asked_for = True
    # endif


def is_initialized() -> bool:
    """Return whether the device is in use and can be used. A forked child cannot use what its parent has used."""
    # if COOKBOOK_CHAPTER >= 6
    if not (is_available() and (_asked_for or any(map(_C.has_context, range(device_count()))))):
        return False
    # endif
    return not _C.is_forked_child()


def _is_in_bad_fork() -> bool:
    return _C.is_forked_child()


# if COOKBOOK_CHAPTER >= 6
_asked_for = False


def init() -> None:
    """Make the device ready, which its first use does by itself; code written for CUDA calls this.

    Raises:
        RuntimeError: this is a forked child of a process that has used the device.
    """
    _lazy_init()


# endif
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
# if COOKBOOK_CHAPTER >= 4
# %% streams
from .streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    external_stream,
    set_stream,
    stream,
    stream_priority,
    stream_priority_range,
)

__all__ += ["Event", "Stream", "current_stream", "default_stream", "external_stream", "set_stream", "stream"]
__all__ += ["stream_priority", "stream_priority_range"]
# %% memory
from . import _gpu_trace as _gpu_trace
from . import memory as memory
from .memory import *  # noqa: F403

__all__ += ["memory", *memory.__all__]
# %% random
from . import random as random
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)

__all__ += ["default_generators", "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed"]
__all__ += ["manual_seed_all", "random", "seed", "seed_all", "set_rng_state", "set_rng_state_all"]

# %% checkpointing
# torch.utils.checkpoint looks for this name before it saves a device's random state. Without it it saves nothing, says
# nothing, and dropout draws another mask when the forward runs again in the backward.
_initialized = True


_amp_dtypes: list[torch.dtype] = []


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that `torch.autocast("cookbook", dtype=...)` takes; with another one it warns and stays off.

    Checkpointing enters autocast in every backward, also where it is off, and needs this function to be there.
    """
    return list(_amp_dtypes)


# %% pinned-memory
from .host_memory import (
    empty_host_cache,
    host_memory_stats,
    reset_accumulated_host_memory_stats,
    reset_peak_host_memory_stats,
)

__all__ += ["empty_host_cache", "host_memory_stats"]
__all__ += ["reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats"]
# %% between-processes
from .multiprocessing import ipc_collect, ipc_stats

__all__ += ["ipc_collect", "ipc_stats"]
# %% graphs
from .graphs import is_current_stream_capturing

__all__ += ["is_current_stream_capturing"]
# %% foreign-memory
from . import dlpack as dlpack
from .dlpack import from_dlpack, from_pointer

__all__ += ["dlpack", "from_dlpack", "from_pointer"]

# Before the streams' threads are joined: owners of memory that the streams still use are let go of behind them.
atexit.register(_C.finish_foreign)
# endif
# if COOKBOOK_CHAPTER >= 6
# %% mixed-precision
from . import amp as amp

__all__ += ["amp", "get_amp_supported_dtype"]
# Those in which the kernels of the lower-precision list compute.
_amp_dtypes += [torch.bfloat16, torch.float16]
# %% lookups
# The names under which PyTorch and libraries look for the rest: docs/device-module.md lists them.
from . import _utils as _utils
from .devices import (
    DeviceProperties,
    device_of,
    get_device_capability,
    get_device_properties,
    is_bf16_supported,
)
from .devices import _sleep as _sleep
from .memory_report import memory_summary
from .metadata import get_metadata, set_metadata
from .random import _get_generator as _get_generator

__all__ += ["DeviceProperties", "device_of", "get_device_capability", "get_device_properties", "get_metadata", "init"]
__all__ += ["is_bf16_supported", "is_initialized", "memory_summary", "set_metadata"]
# %% generated-methods
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

# `tensor.cookbook()`, `tensor.is_cookbook`, and the same of modules, packed sequences and storages.
generate_methods_for_privateuse1_backend(for_storage=True)
# endif

# chapter 4
# %% multiprocessing
"""Device tensors through the queues and pipes of `torch.multiprocessing`: the memory is shared, nothing is copied.

Importing this module registers how a storage on the device is pickled for another process of this machine. Everything
around it is PyTorch's: tensors, parameters, typed storages and nested tensors all end in an `UntypedStorage`.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from . import _C

__all__ = ["ipc_collect", "ipc_stats"]

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


# %% multiprocessing-reduce
def _reduce_storage(storage: torch.UntypedStorage) -> _Reduced:
    if storage.device.type != "cookbook":
        return reductions.reduce_storage(storage)  # type: ignore[no-any-return, no-untyped-call]
    if storage.nbytes() == 0:
        return _rebuild_empty, (str(storage.device),)
    message = _C.share_storage(storage)
    # A tensor that comes back to this process, or is put twice into one queue, is over the same storage again.
    reductions.shared_cache[_C.storage_key(message)] = reductions.StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    return _rebuild_storage, (message,)


def _rebuild_empty(device: str) -> torch.UntypedStorage:
    return torch.UntypedStorage(0, device=device)  # type: ignore[no-untyped-call]


def _rebuild_storage(message: bytes) -> torch.UntypedStorage:
    key = _C.storage_key(message)
    storage = reductions.storage_from_cache(torch.UntypedStorage, key)  # type: ignore[no-untyped-call]
    if storage is not None:
        _C.acknowledge_storage(message)
    else:
        storage = _C.receive_storage(message)
        reductions.shared_cache[key] = reductions.StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    return storage  # type: ignore[no-any-return]


ForkingPickler.register(torch.UntypedStorage, _reduce_storage)


# %% multiprocessing-collect
def ipc_collect() -> None:
    """Free memory that was sent to other processes and that they have let go of, and close theirs that is unused here.

    Sending does the first by itself. A process that sends no more calls this to have its memory back. Waits for the
    devices where something is closed.
    """
    _C.ipc_collect()


def ipc_stats() -> dict[str, int]:
    """Return how many storages are shared with other processes.

    * `sent`: storages of this process that were shared and still have their memory;
    * `waiting`: of these, the ones that were dropped here and are kept for others;
    * `received`: storages over memory of other processes; one that was dropped counts until its streams have passed;
    * `opened`, `unused`: blocks of other processes that are open here, and of these the ones without a storage.
    """
    return _C.ipc_stats()

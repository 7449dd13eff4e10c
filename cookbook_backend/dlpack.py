# chapter 4
# %% dlpack
"""Device memory from others and for others, without a copy: DLPack with streams in both directions, and bare addresses.

torch 2.13 compares a tensor's device with the name `privateuse1` (torch/_tensor.py, `Tensor.__dlpack_device__`), which
a renamed device never has (pytorch/pytorch#129652), and ignores `stream=` for all devices but CUDA. Importing this
module gives the two methods of `torch.Tensor` that a consumer calls the missing branch; for every other device, and for
everything that core can do, they are core's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
from torch.overrides import has_torch_function_unary
from torch.utils.dlpack import DLDeviceType
from torch.utils.dlpack import from_dlpack as _core_from_dlpack

from . import _C, _index, current_device

__all__ = ["from_dlpack", "from_pointer"]

_core_dlpack = torch.Tensor.__dlpack__
_core_dlpack_device = torch.Tensor.__dlpack_device__


# %% dlpack-device
# A subclass with __torch_function__ goes to core first, which comes back here once the subclass has had its say.
@functools.wraps(_core_dlpack_device)
def _dlpack_device(self: torch.Tensor) -> tuple[IntEnum, int]:
    if has_torch_function_unary(self) or self.device.type != "cookbook":
        return _core_dlpack_device(self)
    return DLDeviceType.kDLExtDev, self.device.index


# %% dlpack-export
@functools.wraps(_core_dlpack)
def _dlpack(
    self: torch.Tensor,
    *,
    stream: int | None = -1,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[IntEnum, int] | None = None,
    copy: bool | None = None,
) -> Any:
    options: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
    if has_torch_function_unary(self) or self.device.type != "cookbook":
        return _core_dlpack(self, stream=stream, **options)
    if self.is_neg():  # core looks at the conjugate bit only, and exports the wrong sign
        raise BufferError("Can't export tensors with the negative bit set")
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    consumer = _C.consumer_stream(stream, self.device)
    capsule = _core_dlpack(self, **options)
    _C.complete_capsule(capsule, self, consumer)
    return capsule


torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]
torch.Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]


# %% dlpack-import
class _ForStream:
    """A producer that is told our stream. `torch.from_dlpack` tells it to CUDA's and ROCm's only."""

    def __init__(self, producer: Any, stream: torch.Stream) -> None:
        self.producer = producer
        self.stream = stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.producer.__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(self, **options: Any) -> Any:
        handle: int = self.stream.native_handle  # type: ignore[attr-defined]
        return self.producer.__dlpack__(stream=handle, **options)


# %% from-dlpack
def from_dlpack(
    ext_tensor: Any, *, device: int | str | torch.device | None = None, copy: bool | None = None
) -> torch.Tensor:
    """Make a tensor of another library's tensor, over the same memory.

    As `torch.from_dlpack`, and for producers on this device

    * the producer is told the current stream of its device, so that work queued here comes after what made the data;
    * the address is checked: `kDLExtDev` says that the memory is on some vendor's device, not that it is on this one;
    * the producer's deleter is called when the stream that is current now, and those that `record_stream` names, have
      passed the last use, and not before.

    Args:
        ext_tensor: an object with `__dlpack__` and `__dlpack_device__`. A capsule cannot be told a stream: it is taken
            as ready for the current one. One of another device type is left to `torch.from_dlpack`.
        device: where the tensor shall be; a copy is made when that is not where it is.
        copy: True makes a copy in any case, False forbids it.

    Raises:
        ValueError: the address is not memory of the device that the producer names, or `copy=False` would need a copy.
    """
    target = None if device is None else torch.device("cookbook", device) if isinstance(device, int) else device
    if not hasattr(ext_tensor, "__dlpack__"):
        imported = _core_from_dlpack(ext_tensor)
        if imported.device.type != "cookbook":
            raise ValueError(f"expected a capsule of a cookbook tensor, got one of {imported.device}")
    else:
        kind, index = ext_tensor.__dlpack_device__()
        if kind != DLDeviceType.kDLExtDev:
            return _core_from_dlpack(ext_tensor, device=target, copy=copy)
        producer = _ForStream(ext_tensor, torch.accelerator.current_stream(index))
        imported = _core_from_dlpack(producer, copy=False if copy is False else None)
    # Copies are made of the adopted tensor: only that keeps the producer's memory until they have run.
    result = _C.adopt_foreign(imported)
    if target is not None and torch.device(target).type == "cookbook":
        target = torch.device("cookbook", _index(target, default=current_device()))
    moved = target is not None and torch.device(target) != result.device
    if moved and copy is False:
        raise ValueError(f"cannot move a DLPack tensor from {result.device} to {target} without copying it")
    if moved:
        return result.to(target)
    return result.clone() if copy else result


# %% from-pointer
def from_pointer(
    address: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    strides: Sequence[int] | None = None,
    device: int | str | torch.device | None = None,
    owner: object = None,
) -> torch.Tensor:
    """Make a tensor over device memory that another library has allocated, as `at::from_blob` does in C++.

    Args:
        address: of the first element.
        shape: sizes, in elements.
        dtype: of the elements.
        strides: in elements; contiguous by default.
        device: where the memory is expected to be; by default where the driver says that it is.
        owner: an object that is kept until no stream uses the memory: the one that is current now and those that
            `record_stream` names have passed the tensor's end. Without an owner the caller sees to that.

    Raises:
        ValueError: the range is not inside one block of the device's memory, is not aligned for the dtype, or a size or
            stride is negative.
    """
    if strides is None:
        strides = [math.prod(max(size, 1) for size in shape[place + 1 :]) for place in range(len(shape))]
    where = None if device is None else torch.device("cookbook", _index(device, default=current_device()))
    return _C.from_pointer(address, list(shape), list(strides), dtype, where, owner)

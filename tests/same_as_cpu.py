# chapter 2
"""Run a function on the CPU and on the device, and compare everything a program can see of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

import cookbook_backend

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def mirror(value: Any) -> Any:
    """Return a copy on the device with the same storage, sizes, strides and offset; the same for lists and tuples."""
    if isinstance(value, Tensor):
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        return whole.to("cookbook").as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, list | tuple):
        return type(value)(mirror(item) for item in value)
    return value


def duplicate(value: Any) -> Any:
    """Return a copy on the CPU with the same storage, sizes, strides and offset."""
    if isinstance(value, Tensor):
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).clone()
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, list | tuple):
        return type(value)(duplicate(item) for item in value)
    return value


def tensors(value: Any) -> Iterable[Tensor]:
    """Yield the tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the result, or the exception that came instead; an asynchronous failure counts as one."""
    try:
        result = function(*arguments)
        cookbook_backend.synchronize()
        return result
    except Exception as error:  # the type is what is compared
        return error


def assert_alike(device: Any, cpu: Any, context: str) -> None:
    """Compare dtype, shape, strides and values of all tensors in two results."""
    ours, theirs = list(tensors(device)), list(tensors(cpu))
    assert len(ours) == len(theirs), context
    for a, b in zip(ours, theirs, strict=True):
        assert a.device.type == "cookbook", context
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), context
        assert_close(a.cpu(), b, equal_nan=True, msg=lambda text: f"{context}: {text}")


def check(function: Callable[..., Any], *arguments: Any) -> bool:
    """Compare a call on both devices: result, arguments afterwards, or the error. Return whether the CPU succeeded."""
    context = f"{arguments}"[:300]
    on_cpu, on_device = duplicate(arguments), mirror(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu, device = outcome(function, on_cpu), outcome(function, on_device)
    if isinstance(cpu, Exception):
        assert type(device) is type(cpu), f"{context}: the CPU raises {cpu!r}, the device gives {device!r}"
        # An asynchronous failure has this type too, but another text.
        assert "kernel" not in str(device) or "kernel" in str(cpu), f"{context}: {device}"
        return False
    assert not isinstance(device, Exception), f"{context}: {device!r}"
    assert_alike(device, cpu, context)
    assert_alike(on_device, on_cpu, f"arguments afterwards, {context}")
    return True

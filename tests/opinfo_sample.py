# chapter 3
"""One of PyTorch's samples on the device against the CPU: inputs copied with their aliasing, everything compared."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

DEVICE = "cookbook:0"


class Difference(AssertionError):
    """The device gave something else than the CPU."""


# Copies

# Operators whose positional arguments are read by the host, on any device.
READ_BY_THE_HOST = ("tensor_split",)


def transfer(value: Any, device: str) -> Any:
    """Copy a sample's parts to a device: same strides, offsets and bits, tensors that shared a storage share one again."""
    import torch
    import torch.utils._pytree as pytree

    storages: dict[int, torch.Tensor] = {}

    def tensor(t: torch.Tensor) -> torch.Tensor:
        if t.layout != torch.strided:
            return t.detach().to(device, copy=True).requires_grad_(t.requires_grad)
        with torch.no_grad():
            plain = t.detach()
            conj, neg = plain.is_conj(), plain.is_neg()
            plain = plain.conj() if conj else plain
            plain = torch._neg_view(plain) if neg else plain
            storage = plain.untyped_storage()
            if storage._cdata not in storages:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                storages[storage._cdata] = whole.to(device, copy=True)
            there = torch.empty(0, dtype=plain.dtype, device=device)
            there.set_(storages[storage._cdata].untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
            there = torch._neg_view(there) if neg else there
            there = there.conj() if conj else there
        return there.requires_grad_(t.requires_grad)

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return tensor(x)
        if (isinstance(x, torch.device) and x.type == "cpu") or (isinstance(x, str) and x == "cpu"):
            return torch.device(device)
        return x

    return pytree.tree_map(leaf, value)


def tensors(tree: Any) -> list[Any]:
    """Return the tensors in nested containers."""
    import torch
    import torch.utils._pytree as pytree

    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


# Comparison

# What these return has not been written: only its shape, dtype and strides mean something.
UNWRITTEN = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


def same_number(a: Any, b: Any) -> bool:
    """Whether two results that are no tensors are alike; only numbers are compared."""
    if not isinstance(b, bool | int | float | complex):
        return True
    return type(a) is type(b) and (a == b or (a != a and b != b) or abs(a - b) <= 1e-5 * abs(b))


def compare(actual: Any, expected: Any, *, values: bool, anywhere: bool) -> None:
    """Raise Difference unless two results are alike in everything that a program can see.

    Args:
        actual: the device's result.
        expected: the CPU's.
        values: compare values too.
        anywhere: the result may be on the CPU, because nothing in the call named a device.
    """
    import torch
    import torch.utils._pytree as pytree
    from torch.testing import assert_close

    ours, theirs = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    if len(ours) != len(theirs):
        raise Difference(f"structure: {len(ours)} results, the CPU gives {len(theirs)}")
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if not same_number(a, b):
                raise Difference(f"values: {a!r}, the CPU gives {b!r}")
            continue
        if not isinstance(a, torch.Tensor):
            raise Difference(f"structure: a {type(a).__name__}, the CPU gives a tensor")
        if a.device.type != torch.device(DEVICE).type and b.device.type == "cpu" and not anywhere:
            raise Difference(f"device: the result is on {a.device}")
        for what, x, y in (
            ("dtype", a.dtype, b.dtype),
            ("layout", a.layout, b.layout),
            ("shape", tuple(a.shape), tuple(b.shape)),
        ):
            if x != y:
                raise Difference(f"{what}: {x}, the CPU gives {y}")
        if b.layout != torch.strided:
            assert_close(a.to_dense().cpu(), b.to_dense(), equal_nan=True)
            continue
        if a.stride() != b.stride():
            raise Difference(f"strides: {a.stride()} for shape {tuple(a.shape)}, the CPU gives {b.stride()}")
        if values:
            a, b = a.detach().cpu(), b.detach().cpu()
            if b.dtype.is_floating_point and b.dtype.itemsize == 1:  # float8: assert_close cannot subtract it
                a, b = a.float(), b.float()
            try:
                assert_close(a, b, equal_nan=True)
            except AssertionError as error:
                lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
                raise Difference("values: " + "; ".join(lines)) from None


def aliases(outputs: Any, inputs: Any) -> list[list[int]]:
    """Return for each tensor of the result which tensors of the arguments share its storage."""
    import torch

    def storages(tree: Any) -> list[int]:
        found = []
        for t in tensors(tree):
            strided = t.layout == torch.strided and t.numel() > 0
            found.append(t.untyped_storage()._cdata if strided else -1)
        return found

    given = storages(inputs)
    return [[i for i, s in enumerate(given) if s == out and s != -1] for out in storages(outputs)]


# One sample


@dataclass
class Call:
    """An operator's inputs on one device, and what came of them."""

    inputs: Any
    output: Any = None
    gradients: Any = None
    drew: bool = False
    """It took random numbers from a generator that is the device's own, so they are not the CPU's."""


@contextlib.contextmanager
def noting_draws(it: Call, device: str) -> Iterator[None]:
    """Seed all generators, and note whether the device's own one, if it has one (chapter 4), gives numbers inside.

    PyTorch's `wrapper_set_seed` puts the generator's state back before it returns, so that is a moment to look, too.
    """
    import torch

    module = torch.get_device_module("cookbook")
    torch.manual_seed(0)
    if device == "cpu" or not hasattr(module, "default_generators"):
        yield
        return
    generator = module.default_generators[torch.device(device).index]
    restore = module.set_rng_state

    def look() -> None:
        it.drew = it.drew or generator.get_offset() != 0

    def look_and_restore(*args: Any, **kwargs: Any) -> None:
        look()
        restore(*args, **kwargs)

    with mock.patch.object(module, "set_rng_state", look_and_restore):
        yield
    look()


def call(op: Any, sample: Any, device: str, backward: bool) -> Call:
    """Run a sample on a device, with the random generators at a known state."""
    import torch

    it = Call(transfer((sample.input, sample.args, sample.kwargs), device))
    if op.name in READ_BY_THE_HOST:
        it.inputs = (it.inputs[0], sample.args, it.inputs[2])
    with noting_draws(it, device):
        it.output = op(it.inputs[0], *it.inputs[1], **it.inputs[2])
    if backward:
        wanted = [t for t in tensors(sample.output_process_fn_grad(it.output)) if t.requires_grad]
        leaves = [t for t in tensors(it.inputs) if t.requires_grad]
        if wanted and leaves:
            torch.manual_seed(1)
            seeds = [torch.randn(t.shape, dtype=t.dtype).to(t.device) for t in wanted]
            it.gradients = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True)
    return it


def check(op: Any, sample: Any, backward: bool) -> str | None:
    """Compare one sample; return why it does not count, or None. Raise when the device differs."""
    import torch
    import torch.utils._pytree as pytree

    import cookbook_backend

    values = op.name not in UNWRITTEN
    try:
        first, cpu = call(op, sample, "cpu", backward), call(op, sample, "cpu", backward)
        if backward and cpu.gradients is None:
            return "the CPU's result has nothing to differentiate"
        for a, b in ((first.output, cpu.output), (first.gradients, cpu.gradients)):
            compare(a, b, values=values, anywhere=True)
    except Exception as error:
        return f"the CPU itself: {describe(error)}"
    device = call(op, sample, DEVICE, backward)
    cookbook_backend.synchronize()
    leaves = pytree.tree_leaves(device.inputs)
    anywhere = not any(isinstance(x, torch.Tensor | torch.device) for x in leaves)
    if device.drew:
        # Other numbers than the CPU's by design: the same seed must give the same ones, tests/test_random.py judges which.
        again = call(op, sample, DEVICE, backward)
        for a, b in ((again.output, device.output), (again.gradients, device.gradients)):
            compare(a, b, values=True, anywhere=True)
        values = False
    compare(device.output, cpu.output, values=values, anywhere=anywhere)
    if (ours := aliases(device.output, device.inputs)) != (theirs := aliases(cpu.output, cpu.inputs)):
        raise Difference(f"aliasing: the results share storage with the arguments {ours}, the CPU's with {theirs}")
    if backward:
        missing = [i for i, (a, b) in enumerate(zip(device.gradients, cpu.gradients)) if (a is None) != (b is None)]
        if missing:
            raise Difference(f"gradients: None on one device only, for the arguments {missing}")
        try:
            compare(device.gradients, cpu.gradients, values=not device.drew, anywhere=False)
        except Difference as error:
            raise Difference(f"gradients, {error}") from None
    elif any(t._version for t in tensors(cpu.inputs)):
        try:
            compare(device.inputs, cpu.inputs, values=not device.drew, anywhere=True)
        except Difference as error:
            raise Difference(f"arguments afterwards, {error}") from None
    return None


def check_error(op: Any, sample: Any) -> str | None:
    """Compare how a call fails; return why it does not count, or None. Raise when the device fails otherwise."""
    import cookbook_backend

    def outcome(device: str) -> BaseException | None:
        try:
            call(op, sample, device, backward=False)
            cookbook_backend.synchronize()
        except Exception as error:
            return error
        return None

    if (cpu := outcome("cpu")) is None:
        return "the CPU raises nothing"
    if type(device := outcome(DEVICE)) is not type(cpu):
        ours = describe(device) if device else "nothing"
        raise Difference(f"raises {ours}, the CPU {describe(cpu)}")
    return None


def describe(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, which is what a table has room for."""
    text = str(error).strip()
    if isinstance(error, Difference):
        return text[:500]
    if isinstance(error, AssertionError) and not text:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{frame.line} ({os.path.basename(frame.filename)}:{frame.lineno})"
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:500]

# chapter 2
"""The kernels for small tensors that are the backend's own: bit-equal to PyTorch's, and as strict about memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from same_as_cpu import mirror
from torch import Tensor
from torch.testing import make_tensor


def sample(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Values of both signs, none of them zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_tensor((count,), dtype=dtype, device="cpu", low=-4, high=5, exclude_zero=True)


SMALL: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "add alpha=1.0": lambda a, b: torch.add(a, b, alpha=1.0),
    "add alpha=3": lambda a, b: torch.add(a, b, alpha=3),
    "sub": torch.sub,
    "sub alpha=-1": lambda a, b: torch.sub(a, b, alpha=-1),
    "mul": torch.mul,
    "div": torch.div,
    "fill_": lambda a, b: a.clone().fill_(b if isinstance(b, int | float) else 0.1),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_kernels_are_bit_equal(name: str, dtype: torch.dtype) -> None:
    """Kernels of our own up to 1024 elements, PyTorch's above: nobody may see the border."""
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-310, 3.4e38], dtype=dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    for count in (1, 4, 7, 1023, 1024, 1025):
        a, b = sample(count, dtype, 1) / 3, sample(count, dtype, 2) / 7
        if count > 8:
            a[:64], b[:64] = special.repeat_interleave(8), special.repeat(8)
        for other in (b, 3, 0.1, 2**53 + 1, 2**63 - 1, -(2**60) - 1, torch.tensor(0.1, dtype=torch.float64)):
            ours = SMALL[name](mirror(a), mirror(b) if other is b else other)
            theirs = SMALL[name](a, other)
            ours = ours.cpu()
            assert torch.equal(ours.isnan(), theirs.isnan())  # which of two NaNs comes out is the processor's choice
            numbers = ~theirs.isnan()
            assert torch.equal(ours.view(bits)[numbers], theirs.view(bits)[numbers]), f"{name}, {count}, {other}"


def test_memory_that_is_gone_is_refused_by_name() -> None:
    """No address is no number, and no crash of the stream's thread: the same in small kernels and in PyTorch's."""
    for shape in ((4,), (40, 40)):
        x, gone = torch.ones(shape, device="cookbook"), torch.ones(shape, device="cookbook")
        columns = gone[..., ::2]
        gone.untyped_storage().resize_(0)
        calls: list[Callable[[], Any]] = [
            lambda x=x, y=gone: x + y,
            lambda x=x, y=gone: y * x,
            lambda y=gone: y.fill_(2),
            lambda x=x, y=gone: torch.add(x, x, out=y),
            lambda y=gone: y.relu(),
            lambda y=columns: y.exp(),
            lambda x=x, y=gone: torch.cat([x, y]),
            lambda x=x, y=gone: torch._foreach_add([x, x], [x, y]),
            lambda y=gone: torch._foreach_mul_([y], 2),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="whose storage was freed"):
                call()
        assert bool((x + 1 == 2).all())

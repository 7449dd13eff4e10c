# chapter 2
"""Reductions and scans against the CPU: values, strides, dtypes, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same_as_cpu import DTYPES, check
from test_pointwise import sample
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C

# Each takes a tensor and a dimension.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, d: torch.sum(x, d),
    "sum keepdim": lambda x, d: torch.sum(x, d, keepdim=True),
    "sum two": lambda x, d: torch.sum(x, (0, d)),
    "sum dtype": lambda x, d: torch.sum(x, d, dtype=torch.float64),
    "sum all": lambda x, d: torch.sum(x),
    "mean": lambda x, d: torch.mean(x, d),
    "mean all": lambda x, d: torch.mean(x),
    "prod": lambda x, d: torch.prod(x, d),
    "prod all": lambda x, d: torch.prod(x),
    "prod dtype": lambda x, d: torch.prod(x, dtype=torch.float32),
    "amax": lambda x, d: torch.amax(x, d),
    "amin": lambda x, d: torch.amin(x, d, keepdim=True),
    "aminmax": lambda x, d: tuple(torch.aminmax(x, dim=d)),
    "max": lambda x, d: tuple(torch.max(x, d)),
    "min": lambda x, d: tuple(torch.min(x, d, keepdim=True)),
    "max all": lambda x, d: torch.max(x),
    "min all": lambda x, d: torch.min(x),
    "argmax": lambda x, d: torch.argmax(x, d),
    "argmin all": lambda x, d: torch.argmin(x),
    "any": lambda x, d: torch.any(x, d),
    "any two": lambda x, d: torch.any(x, (0, d)),
    "any all": lambda x, d: torch.any(x),
    "all": lambda x, d: torch.all(x, d, keepdim=True),
    "all all": lambda x, d: torch.all(x),
    "norm": lambda x, d: torch.linalg.vector_norm(x, dim=d),
    "norm 1": lambda x, d: torch.linalg.vector_norm(x, 1, dim=d),
    "norm inf": lambda x, d: torch.linalg.vector_norm(x, float("inf"), dim=d, keepdim=True),
    "norm all": lambda x, d: torch.linalg.vector_norm(x),
    "old norm": lambda x, d: torch.norm(x, 2, d),
    "cumsum": lambda x, d: torch.cumsum(x, d),
    "cumsum dtype": lambda x, d: torch.cumsum(x, d, dtype=torch.float32),
    "cumprod": lambda x, d: torch.cumprod(x, d),
    "cumsum_": lambda x, d: x.cumsum_(d),
    "var": lambda x, d: torch.var(x, d),
    "var correction": lambda x, d: torch.var(x, d, correction=0, keepdim=True),
    "var all": lambda x, d: torch.var(x),
    "std": lambda x, d: torch.std(x, (d,)),
    "std unbiased": lambda x, d: torch.std(x, unbiased=False),
    "var_mean": lambda x, d: torch.var_mean(x, d),
    "std_mean": lambda x, d: torch.std_mean(x, d, correction=0),
    "count_nonzero": lambda x, d: (x != 0).sum(d),
}


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """Tensors in every layout that reductions treat differently."""
    image = sample((2, 3, 4, 5), dtype)
    return [
        sample((3, 4), dtype),
        sample((4, 3), dtype).t(),
        sample((6, 8), dtype)[::2, 1::3],
        image,
        image.contiguous(memory_format=torch.channels_last),
        sample((1, 4), dtype).expand(3, 4),
        sample((0, 3), dtype),
        sample((2, 0, 3), dtype),
        sample((1, 1), dtype),
        sample((1,), dtype),
        sample((), dtype),
    ]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    passed = 0
    for dtype in DTYPES:
        for x in inputs(dtype):
            if name.endswith("_") and 0 in x.stride():
                continue  # an expanded tensor cannot be written
            for dim in (0, -1, 1, 5):
                passed += check(REDUCTIONS[name], x, dim)
    assert passed >= 20


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "argmax", "any", "all", "var", "cumsum", "std"])
def test_reduction_out(name: str) -> None:
    def call(x: Tensor, out: Tensor) -> Tensor:
        assert getattr(torch, name)(x, 1, out=out) is out
        return out

    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        for out in (torch.ones(3, dtype=dtype), torch.empty(0, dtype=dtype), torch.ones(7, dtype=dtype)[::2]):
            check(call, sample((3, 4), torch.float32), out)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremum_out(name: str) -> None:
    def call(x: Tensor, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        getattr(torch, name)(x, 1, out=(values, indices))
        return values, indices

    def full(x: Tensor, out: Tensor) -> Tensor:
        getattr(torch.ops.aten, name).unary_out(x, out=out)
        return out

    x = sample((3, 4), torch.float32)
    check(call, x, torch.empty(0), torch.empty(0, dtype=torch.int64))
    check(call, x, torch.empty(3), torch.empty(3, dtype=torch.int32))
    check(full, x, torch.ones(()))
    check(full, x, torch.ones(2))
    check(full, x, torch.ones((), dtype=torch.int64))


def test_nothing_to_compare() -> None:
    check(torch.max, torch.empty(0))
    check(torch.argmax, torch.empty(0))
    check(lambda x: torch.amax(x, 0), torch.empty(0, 3))


def test_few_elements_warn_as_on_the_cpu() -> None:
    x = torch.ones(1, device="cookbook")
    with pytest.warns(UserWarning, match="degrees of freedom is <= 0"):
        assert torch.var(x).isnan().item()


def test_a_reduction_is_one_launch() -> None:
    x = torch.randn(8, 8).to("cookbook")
    for call in (torch.sum, torch.mean, torch.max, torch.argmax, torch.any, torch.var, torch.linalg.vector_norm):
        call(x)
        cookbook_backend.synchronize()
        before = _C.counters(0)
        call(x)
        after = _C.counters(0)
        assert after["launches"] - before["launches"] == 1, call
        assert after["synchronizations"] == before["synchronizations"], call


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=4).map(tuple),
    order=st.permutations(range(4)),
    dims=st.sets(st.integers(0, 3)),
    keepdim=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(["sum", "mean", "amax", "amin", "any", "all", "var", "std"]),
)
def test_random_dimensions(
    shape: tuple[int, ...], order: list[int], dims: set[int], keepdim: bool, dtype: torch.dtype, name: str
) -> None:
    x = sample(shape, dtype).permute([i for i in order if i < len(shape)])
    over = tuple(d for d in sorted(dims) if d < len(shape))
    check(lambda x: getattr(torch, name)(x, over, keepdim=keepdim), x)

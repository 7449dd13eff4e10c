# chapter 2
"""Pointwise operators against the CPU: values, strides, dtypes, errors, and how many launches they take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same_as_cpu import DTYPES, check
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close, make_tensor

import cookbook_backend

_C = cookbook_backend._C

BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "atan2",
        "fmod",
        "remainder",
        "pow",
        "floor_divide",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
}
BINARY["add alpha"] = lambda a, b: torch.add(a, b, alpha=2)
BINARY["rsub"] = torch.rsub
BINARY["div trunc"] = lambda a, b: torch.div(a, b, rounding_mode="trunc")
BINARY["div floor"] = lambda a, b: torch.div(a, b, rounding_mode="floor")

UNARY = (
    "neg",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "atanh",
    "sigmoid",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
    "abs",
    "sign",
    "sgn",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "square",
    "isnan",
    "logical_not",
    "bitwise_not",
    "nan_to_num",
    "angle",
    "signbit",
    "isinf",
    "isfinite",
)


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Values of both signs where the dtype has them, none of them zero (integers would be divided by it)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_tensor(shape, dtype=dtype, device="cpu", low=-4, high=5, exclude_zero=True)


def layouts(dtype: torch.dtype, other: torch.dtype | None = None) -> list[tuple[Tensor, Tensor]]:
    """Pairs of operands in every layout that the operators treat differently."""
    other = dtype if other is None else other

    def pair(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return sample(a, dtype, 1), sample(b, other, 2)

    square, rows = pair((4, 4), (4, 4)), pair((6, 4), (6, 4))
    image = sample((2, 3, 4, 5), dtype).contiguous(memory_format=torch.channels_last)
    return [
        pair((3, 4), (3, 4)),
        pair((3, 1), (4,)),
        pair((2, 1, 3), (5, 1)),
        (square[0].t(), square[1]),
        (square[0].t(), square[1].t()),
        (rows[0][::2], rows[1][1::2]),
        (rows[0][:, 1:3], rows[1][:, 2:]),
        (image, sample((2, 3, 4, 5), other).contiguous(memory_format=torch.channels_last)),
        (image, sample((3, 1, 1), other)),
        (sample((1, 4), dtype).expand(3, 4), sample((3, 1), other).expand(3, 4)),
        pair((0, 3), (0, 3)),
        pair((0, 3), (1, 3)),
        pair((), ()),
        pair((3,), ()),
        pair((), (2, 2)),
    ]


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    passed = sum(check(BINARY[name], a, b) for dtype in DTYPES for a, b in layouts(dtype))
    assert passed >= 15  # at least one dtype works in all layouts


PROMOTIONS = (
    (torch.int32, torch.float32),
    (torch.uint8, torch.int64),
    (torch.bool, torch.float16),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.bfloat16),
    (torch.float32, torch.complex64),
    (torch.int64, torch.bool),
)


@pytest.mark.parametrize("name", BINARY)
def test_promotion(name: str) -> None:
    for first, second in PROMOTIONS:
        for a, b in layouts(first, second) + layouts(second, first):
            check(BINARY[name], a, b)


@pytest.mark.parametrize("name", BINARY)
def test_python_numbers(name: str) -> None:
    """A number takes part without widening the tensor."""
    for dtype in DTYPES:
        for number in (2, 1.5, True, -3, 1 + 2j):
            for shape in ((3,), ()):
                check(lambda x, n=number: BINARY[name](x, n), sample(shape, dtype))


def test_cpu_scalars_travel_by_value() -> None:
    x = sample((3,), torch.float32)
    for scalar in (torch.tensor(2), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True)):
        for name in ("add", "mul", "div", "lt", "maximum", "pow", "remainder"):
            ours = BINARY[name](x.to("cookbook"), scalar)
            assert_close(ours.cpu(), BINARY[name](x, scalar), equal_nan=True)
            assert ours.dtype == BINARY[name](x, scalar).dtype
            assert_close(BINARY[name](scalar, x.to("cookbook")).cpu(), BINARY[name](scalar, x), equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    function = getattr(torch, name)
    passed = 0
    for dtype in DTYPES:
        for x, _ in layouts(dtype):
            passed += check(function, x)
            if dtype.is_floating_point:
                check(function, x / 5)
    assert passed >= 15


IN_PLACE: dict[str, Callable[..., Any]] = {
    **{f"{name}_": (lambda a, b, n=name: getattr(a, f"{n}_")(b)) for name in ("add", "sub", "mul", "div", "pow")},
    **{f"{name}_": (lambda a, b, n=name: getattr(a, f"{n}_")(b)) for name in ("fmod", "remainder", "atan2")},
    **{f"{name}_": (lambda a, b, n=name: getattr(a, f"{n}_")(b)) for name in ("eq", "lt", "logical_and")},
    "floor_divide_": lambda a, b: a.floor_divide_(b),
    "bitwise_and_": lambda a, b: a.bitwise_and_(b),
    "relu_": lambda a, b: torch.relu_(a),
    "abs_": lambda a, b: a.abs_(),
    "sqrt_": lambda a, b: a.sqrt_(),
    "neg_": lambda a, b: a.neg_(),
    "sigmoid_": lambda a, b: a.sigmoid_(),
    "copy sign of itself": lambda a, b: a.mul_(a),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    """Also those that may not be: a broadcast that would grow the tensor, a result dtype that does not fit it."""
    for dtype in DTYPES:
        for a, b in layouts(dtype):
            if 0 not in a.stride():  # core refuses to write to an expanded tensor; test_overlap has that
                check(IN_PLACE[name], a, b)
    for first, second in PROMOTIONS:
        check(IN_PLACE[name], sample((3,), first), sample((3,), second))
        check(IN_PLACE[name], sample((3,), second), sample((3,), first))


@pytest.mark.parametrize("name", ["add", "mul", "div", "lt", "maximum", "sqrt", "sigmoid", "logical_not", "abs"])
def test_out(name: str) -> None:
    function = getattr(torch, name)
    arguments = 1 if name in UNARY else 2

    def call(out: Tensor, *operands: Tensor) -> Tensor:
        assert function(*operands, out=out) is out
        return out

    operands = [sample((3, 4), torch.float32, seed) for seed in range(arguments)]
    for dtype in (torch.float32, torch.float64, torch.bool, torch.int64):
        for out in (
            torch.ones(3, 4, dtype=dtype),
            torch.ones(4, 3, dtype=dtype).t(),
            torch.ones(6, 8, dtype=dtype)[::2, ::2],
            torch.empty(0, dtype=dtype),
            torch.ones(2, dtype=dtype),
        ):
            check(call, out, *operands)
    check(call, torch.ones(1, 4).expand(3, 4), *operands)


def test_out_of_another_shape_warns() -> None:
    x = torch.ones(3, device="cookbook")
    out = torch.ones(2, device="cookbook")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, x, out=out)
    assert out.tolist() == [2, 2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.add(x, x, out=torch.empty(0, device="cookbook"))


TERNARY: dict[str, Callable[..., Any]] = {
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=2),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=0.5),
    "addcmul_": lambda a, b, c: a.addcmul_(b, c, value=2),
    "addcdiv_": lambda a, b, c: a.addcdiv_(b, c, value=0.5),
    "lerp scalar": lambda a, b, c: torch.lerp(a, b, 0.3),
    "lerp tensor": lambda a, b, c: torch.lerp(a, b, c),
    "lerp_": lambda a, b, c: a.lerp_(b, 0.7),
    "where": lambda a, b, c: torch.where(a > b, b, c),
    "where mixed": lambda a, b, c: torch.where(a > b, b, c.to(torch.float64) if not c.is_complex() else c),
    "where scalar": lambda a, b, c: torch.where(a > b, b, 2.5),
    "where two scalars": lambda a, b, c: torch.where(a > b, 1, 2.5),
    "where no bool": lambda a, b, c: torch.where(a, b, c),
    "masked_fill": lambda a, b, c: a.masked_fill(b > c, 3),
    "masked_fill_": lambda a, b, c: a.masked_fill_(b > c, 3.5),
    "masked_fill_ does not fit": lambda a, b, c: a.masked_fill_(b > c, 1e300),
    "masked_fill tensor": lambda a, b, c: a.masked_fill(b > c, torch.tensor(2, device=a.device)),
    "masked_fill no bool": lambda a, b, c: a.masked_fill(b, 1),
    "clamp": lambda a, b, c: torch.clamp(a, -1, 2),
    "clamp min": lambda a, b, c: torch.clamp(a, min=0.5),
    "clamp max": lambda a, b, c: torch.clamp(a, max=1),
    "clamp nothing": lambda a, b, c: torch.clamp(a),
    "clamp tensors": lambda a, b, c: torch.clamp(a, b, c),
    "clamp_": lambda a, b, c: a.clamp_(-1, 1),
    "clamp_min": lambda a, b, c: torch.clamp_min(a, 0),
    "clamp_max_": lambda a, b, c: a.clamp_max_(b),
}


@pytest.mark.parametrize("name", TERNARY)
def test_ternary(name: str) -> None:
    for dtype in DTYPES:
        for a, b in layouts(dtype):
            for c in {id(t): t for t in (sample(tuple(b.shape), dtype, 3), sample((), dtype, 4))}.values():
                if not (name.endswith("_") and 0 in a.stride()):
                    check(TERNARY[name], a, b, c)
    check(TERNARY[name], sample((3,), torch.float32), sample((2,), torch.float32), sample((3,), torch.float32))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu wrong": lambda x: functional.gelu(x, approximate="nearly"),
    "silu": functional.silu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "elu": functional.elu,
    "hardtanh": functional.hardtanh,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "threshold": lambda x: functional.threshold(x, 0.1, 20),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax first": lambda x: torch.softmax(x, 0),
    "softmax dtype": lambda x: torch.softmax(x, -1, dtype=torch.float64),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmax wrong dim": lambda x: torch.softmax(x, 7),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    for dtype in DTYPES:
        for x, _ in layouts(dtype):
            check(ACTIVATIONS[name], x)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if "wrong" not in name])
def test_activation_gradient(name: str) -> None:
    def gradient(x: Tensor, weight: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (ACTIVATIONS[name](x) * weight).sum().backward()
        assert x.grad is not None
        return x.grad

    for dtype in (torch.float32, torch.float64):
        for x, weight in layouts(dtype):
            if x.shape == weight.shape:
                assert check(gradient, x, weight)


FILLS: dict[str, Callable[..., Any]] = {
    "fill_": lambda x: x.fill_(3),
    "fill_ float": lambda x: x.fill_(2.5),
    "fill_ large": lambda x: x.fill_(300),
    "fill_ very large": lambda x: x.fill_(1e300),
    "fill_ complex": lambda x: x.fill_(1 + 1j),
    "fill_ tensor": lambda x: x.fill_(torch.tensor(2, device=x.device)),
    "fill_ vector": lambda x: x.fill_(torch.ones(2, device=x.device)),
    "zero_": lambda x: x.zero_(),
}


@pytest.mark.parametrize("name", FILLS)
def test_fill(name: str) -> None:
    for dtype in DTYPES:
        for x, _ in layouts(dtype):
            if 0 not in x.stride():
                check(FILLS[name], x)


def test_writes_leave_the_neighbours_alone() -> None:
    for dtype in DTYPES:
        check(lambda x: (x[1:3, ::2].fill_(1), x[:, 1].zero_(), x[0].add_(1)) and x, sample((4, 6), dtype))


def test_overlap_is_refused() -> None:
    check(lambda x: x.expand(3, 4).add_(1), sample((1, 4), torch.float32))
    check(lambda x: x[1:].add_(x[:-1]), sample((8,), torch.float32))
    check(lambda x: torch.mul(x[1:], x[1:], out=x[:-1]), sample((8,), torch.float32))


def test_mixed_devices_are_refused() -> None:
    here, there = torch.ones(3, device="cookbook:0"), torch.ones(3, device="cookbook:1")
    for call in (torch.add, torch.lt, torch.where, torch.logical_and):
        arguments = (here > 0, here) if call is torch.where else (here,)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call(*arguments, there)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call(*arguments, torch.ones(3))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        here.add_(there)


def test_unsupported_dtypes_are_refused_on_the_host() -> None:
    x = torch.ones(3, dtype=torch.bool, device="cookbook")
    whole = torch.ones(3, dtype=torch.int64, device="cookbook")
    before = _C.counters(0)["launches"]
    for call in (torch.neg, torch.softmax):
        with pytest.raises((RuntimeError, NotImplementedError)):
            call(x, 0) if call is torch.softmax else call(x)
    with pytest.raises(NotImplementedError, match='"elu_cpu" not implemented for'):
        functional.elu(whole)
    assert _C.counters(0)["launches"] == before


def test_a_chain_is_one_launch_each_and_never_waits() -> None:
    x, y = torch.randn(64, 64).to("cookbook"), torch.randn(64, 64).to("cookbook")
    cookbook_backend.synchronize()
    before = _C.counters(0)
    for _ in range(10):
        z = (x + y) * 2 - y / 3
        z = torch.where(z > 0, z, y).relu().sigmoid().abs()
        z.add_(x).clamp_(-1, 1).masked_fill_(z < 0, 0.5)
        z.fill_(z.sum())
    after = _C.counters(0)
    assert after["synchronizations"] == before["synchronizations"]
    # add mul div sub, gt where relu sigmoid abs, add_ clamp_ lt masked_fill_, sum fill_
    assert after["launches"] - before["launches"] == 10 * 15


shapes = st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=4).map(tuple)


@settings(max_examples=150, deadline=None)
@given(
    shape=shapes,
    drop=st.integers(0, 4),
    ones=st.sets(st.integers(0, 3)),
    order=st.permutations(range(4)),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    name=st.sampled_from(sorted(BINARY)),
)
def test_random_broadcasts(
    shape: tuple[int, ...],
    drop: int,
    ones: set[int],
    order: list[int],
    dtypes: tuple[torch.dtype, torch.dtype],
    name: str,
) -> None:
    other = tuple(1 if i in ones else size for i, size in enumerate(shape))[min(drop, len(shape)) :]
    permutation = [i for i in order if i < len(shape)]
    a = sample(tuple(shape[i] for i in permutation), dtypes[0]).permute(
        [permutation.index(i) for i in range(len(shape))]
    )
    check(BINARY[name], a, sample(other, dtypes[1]))

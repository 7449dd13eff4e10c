# chapter 2
"""Matrix products against the CPU: values, strides, dtypes, conjugation, errors, and launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import never_waiting, with_gradients
from same_as_cpu import DTYPES, check
from torch import Tensor
from torch.nn import functional
from torch.testing import make_tensor

Function = Callable[..., Any]

# Name -> function and the shapes of its arguments.
PRODUCTS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((3, 4), (4, 5))),
    "mm no columns": (torch.mm, ((3, 0), (0, 5))),
    "mm no rows": (torch.mm, ((0, 4), (4, 5))),
    "addmm": (torch.addmm, ((3, 5), (3, 4), (4, 5))),
    "addmm bias": (torch.addmm, ((5,), (3, 4), (4, 5))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "baddbmm": (torch.baddbmm, ((2, 3, 5), (2, 3, 4), (2, 4, 5))),
    "baddbmm broadcast": (torch.baddbmm, ((5,), (2, 3, 4), (2, 4, 5))),
    "mv": (torch.mv, ((3, 4), (4,))),
    "addmv": (torch.addmv, ((3,), (3, 4), (4,))),
    "dot": (torch.dot, ((4,), (4,))),
    "vdot": (torch.vdot, ((4,), (4,))),
    "outer": (torch.outer, ((3,), (4,))),
    "addr": (torch.addr, ((3, 4), (3,), (4,))),
    "matmul 3 by 2": (torch.matmul, ((2, 3, 4), (4, 5))),
    "matmul 4 by 4": (torch.matmul, ((2, 1, 3, 4), (1, 3, 4, 5))),
    "linear": (functional.linear, ((2, 3, 4), (5, 4), (5,))),
    "linear no bias": (functional.linear, ((3, 4), (5, 4))),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((2, 3, 4), (2, 5, 4))),
}
SUPPORTED = [d for d in DTYPES if d != torch.bool]


def make(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> list[Tensor]:
    return [make_tensor(shape, dtype=dtype, device="cpu", low=-4, high=4) for shape in shapes]


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_gives_the_cpus_result_or_error(name: str, dtype: torch.dtype) -> None:
    function, shapes = PRODUCTS[name]
    succeeded = check(function, *make(shapes, dtype))
    assert succeeded or dtype == torch.bool or "addr" in name


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    function, shapes = PRODUCTS[name]
    assert check(with_gradients(function), *make(shapes, dtype)) or dtype == torch.complex64


@pytest.mark.parametrize("function", [torch.mm, torch.bmm])
def test_transposed_and_strided_arguments(function: Function) -> None:
    batch = (2,) if function is torch.bmm else ()
    a, b = torch.randn(*batch, 6, 4), torch.randn(*batch, 5, 6)
    assert check(lambda x, y: function(x.mT, y.mT), a, b)
    assert check(lambda x, y: function(x[..., ::2, :].mT, y[..., ::2].mT), a, b)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_a_conjugated_argument_is_conjugated(dtype: torch.dtype) -> None:
    a, b, c = (make_tensor(3, 3, dtype=dtype, device="cpu") for _ in range(3))
    assert check(lambda x, y: torch.mm(x.conj(), y), a, b)
    assert check(lambda x, y: torch.mm(x, y.mH), a, b)
    assert check(lambda x, y, z: torch.addmm(z.conj(), x, y.conj()), a, b, c)
    assert check(lambda x, y, z: z.addmm_(x.conj(), y), a, b, c)
    assert check(lambda x, y, z: torch.mm(x.conj(), y, out=z), a, b, c)
    assert check(lambda x, y: torch.dot(x[0].conj(), y[0]), a, b)
    assert check(lambda x, y: torch.vdot(x[0], y[0].conj()), a, b)
    assert check(lambda x, y, z: z.conj().addmm_(x, y), a, b, c)


def test_beta_alpha_in_place_and_out() -> None:
    c, a, b = torch.randn(3, 5), torch.randn(3, 4), torch.randn(4, 5)
    assert check(lambda z, x, y: torch.addmm(z, x, y, beta=0.5, alpha=2), c, a, b)
    assert check(lambda z, x, y: z.addmm_(x, y, beta=0), c, a, b)
    assert check(lambda z, x, y: torch.mm(x, y, out=z), c, a, b)
    assert check(lambda z, x, y: torch.mm(x, y, out=z.t()), torch.randn(5, 3), a, b)
    assert check(lambda z, x, y: torch.addmm(z, x, y, out=z.new_empty(0)), c, a, b)
    assert check(lambda z, x, y: z.baddbmm_(x, y), torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert check(lambda x, y, z: torch._addmm_activation(z, x, y, use_gelu=True), a, b, torch.randn(5))


WRONG: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mm shapes": lambda: (torch.mm, torch.randn(3, 4), torch.randn(3, 4)),
    "mm dims": lambda: (torch.mm, torch.randn(3), torch.randn(3, 4)),
    "mm dtypes": lambda: (torch.mm, torch.randn(3, 4), torch.randn(4, 3).double()),
    "bmm batch": lambda: (torch.bmm, torch.randn(3, 4, 5), torch.randn(2, 5, 4)),
    "addmm bias": lambda: (torch.addmm, torch.randn(4), torch.randn(3, 4), torch.randn(4, 5)),
    "dot sizes": lambda: (torch.dot, torch.randn(3), torch.randn(4)),
    "dot dims": lambda: (torch.dot, torch.randn(3, 3), torch.randn(3)),
    "dot dtypes": lambda: (torch.dot, torch.randn(3), torch.randn(3).double()),
    "out dtype": lambda: (
        lambda x, y, z: torch.mm(x, y, out=z),
        torch.randn(2, 2),
        torch.randn(2, 2),
        torch.ones(2, 2).long(),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_raise_on_the_host(case: str) -> None:
    function, *arguments = WRONG[case]()
    assert not check(function, *arguments)


def test_a_product_of_two_devices_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(torch.ones(2, 2, device="cookbook:0"), torch.ones(2, 2, device="cookbook:1"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(torch.ones(2, 2, device="cookbook:0"), torch.ones(2, 2))


def test_launches() -> None:
    x, w, b = (torch.randn(*s).to("cookbook") for s in ((4, 8), (5, 8), (5,)))
    with never_waiting() as counters:
        functional.linear(x, w, b)
        torch.mm(x, w.t())
        torch.bmm(x[None], w.t()[None])
    assert counters["launches"] == 3

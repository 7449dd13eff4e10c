# chapter 2
"""Operators on lists: the same results as on the CPU, in one launch where the lists allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from same_as_cpu import check
from test_pointwise import sample
from torch import Tensor
from torch.testing import assert_close

import cookbook_backend

_C = cookbook_backend._C
List = list[Tensor]

SCALARS = [0.5, 2, 1.5, 3, 1, 2.5, 1, 4]


def _lists(name: str, *rest: Any) -> Callable[..., Any]:
    """Call `torch._foreach_<name>(list, ...)`; a number in `rest` is the index of another list."""

    def call(*lists: List) -> Any:
        arguments = [lists[item.index] if isinstance(item, Other) else item for item in rest]
        result = getattr(torch, f"_foreach_{name}")(lists[0], *arguments)
        return result if result is not None else lists[0]

    return call


class Other:
    """Stands for one of the other lists."""

    def __init__(self, index: int) -> None:
        self.index = index


B, C = Other(1), Other(2)
CALLS: dict[str, Callable[..., Any]] = {
    **{f"{n} scalar": _lists(n, 2.5) for n in ("add", "sub", "mul", "div", "maximum", "minimum", "pow")},
    **{f"{n}_ scalar": _lists(f"{n}_", 2.5) for n in ("add", "sub", "mul", "div", "maximum", "minimum", "pow")},
    **{f"{n} list": _lists(n, B) for n in ("add", "sub", "mul", "div", "maximum", "clamp_min", "clamp_max")},
    **{f"{n}_ list": _lists(f"{n}_", B) for n in ("add", "sub", "mul", "div", "minimum")},
    **{f"{n} scalars": _lists(n, SCALARS) for n in ("add", "sub", "mul", "div", "pow", "clamp_min")},
    **{f"{n}_ scalars": _lists(f"{n}_", SCALARS) for n in ("add", "sub", "mul", "div", "maximum")},
    **{n: _lists(n) for n in ("neg", "exp", "tanh", "sigmoid", "abs", "reciprocal", "sign", "round", "erf")},
    **{n: _lists(n) for n in ("neg_", "exp_", "abs_", "floor_", "zero_", "reciprocal_", "cos_")},
    "add alpha": lambda a, b, c: torch._foreach_add(a, b, alpha=3),
    "sub_ alpha": lambda a, b, c: torch._foreach_sub_(a, b, alpha=0.5),
    "sqrt": lambda a, b, c: torch._foreach_sqrt(torch._foreach_abs(a)),
    "pow list": lambda a, b, c: torch._foreach_pow(torch._foreach_abs(a), b),
    "pow of scalar": lambda a, b, c: torch._foreach_pow(0.9, a),
    "lerp list": _lists("lerp", B, C),
    "lerp_ scalar": _lists("lerp_", B, 0.3),
    "lerp scalars": _lists("lerp", B, SCALARS),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, value=2.0),
    "addcmul_ scalars": _lists("addcmul_", B, C, SCALARS),
    "addcdiv_": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, value=0.1),
    "addcdiv scalars": _lists("addcdiv", B, C, SCALARS),
    "copy_": _lists("copy_", B),
    "norm": _lists("norm"),
    "norm 1": _lists("norm", 1),
    "norm inf": _lists("norm", float("inf")),
    "mul tensor": lambda a, b, c: torch._foreach_mul(a, torch.tensor(0.5, dtype=a[0].dtype, device=a[0].device)),
    "mul_ tensor": lambda a, b, c: torch._foreach_mul_(a, torch.tensor(0.5, dtype=a[0].dtype, device=a[0].device)),
    "div_ tensor": lambda a, b, c: torch._foreach_div_(a, torch.tensor(0.5, dtype=a[0].dtype, device=a[0].device)),
    "add_ tensor": lambda a, b, c: torch._foreach_add_(
        a, torch.ones((), dtype=a[0].dtype, device=a[0].device), alpha=1
    ),
}
SHAPES = ((3, 4), (5,), (), (2, 3, 4, 5), (1,), (7, 1), (2, 2, 2), (16,))


def lists(dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> tuple[List, List, List]:
    first, second, third = ([sample(shape, dtype, 10 * k + i) for i, shape in enumerate(shapes)] for k in range(3))
    return first, second, third


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("name", CALLS)
def test_foreach(name: str, dtype: torch.dtype) -> None:
    assert check(CALLS[name], *lists(dtype)) or not dtype.is_floating_point


@pytest.mark.parametrize("name", CALLS)
def test_foreach_is_one_launch(name: str) -> None:
    def ours() -> tuple[List, List, List]:
        first, second, third = ([t.to("cookbook") for t in each] for each in lists(torch.float32))
        return first, second, third

    CALLS[name](*ours())
    arguments = ours()
    cookbook_backend.synchronize()
    before = _C.counters(0)
    CALLS[name](*arguments)
    after = _C.counters(0)
    # `sqrt` and `pow list` take the absolute value first; `... tensor` makes its own tensor.
    extra = {"sqrt": 1, "pow list": 1, "add_ tensor": 1}.get(name, 0)
    assert after["launches"] - before["launches"] == 1 + extra
    copies = 1 if "tensor" in name and "add" not in name else 0  # torch.tensor(0.5) comes from the host
    assert after["synchronizations"] - before["synchronizations"] == copies


def test_unequal_lists() -> None:
    """Broadcasting, other strides, mixed dtypes, empty tensors: core's loop of single operators serves them."""
    a, b, _ = lists(torch.float32, ((3, 4), (5,)))
    assert check(lambda a, b: torch._foreach_add(a, b), a, [sample((4,), torch.float32), b[1]])
    assert check(lambda a, b: torch._foreach_add_(a, b) or a, a, [b[0].t().contiguous().t(), b[1]])
    assert check(lambda a, b: torch._foreach_mul(a, b), a, [b[0].double(), b[1].int()])
    assert check(lambda a: torch._foreach_mul(a, 2), [torch.empty(0), a[0], torch.empty(2, 0)])
    assert check(lambda a: torch._foreach_add(a, 1.5), [torch.ones(3, dtype=torch.int64), a[0]])
    assert check(lambda a: torch._foreach_sqrt(a), [sample((4, 3, 2, 2), torch.float32).abs().transpose(0, 1)])
    assert check(lambda a: torch._foreach_add(a, 1), [sample((6, 4), torch.float32)[::2]])
    assert check(lambda a: torch._foreach_norm(a, dtype=torch.float64), a)
    assert check(lambda a, b: torch._foreach_copy_(a, b) or a, a, [b[0].double(), b[1]])


def test_wrong_lists() -> None:
    a, b, _ = lists(torch.float32, ((3, 4), (5,)))
    check(lambda a: torch._foreach_add(a, 1), [])
    check(lambda a, b: torch._foreach_add(a, b), a, b[:1])
    check(lambda a: torch._foreach_add(a, [1.0]), a)
    check(lambda a: torch._foreach_add_(a, 1j), a)
    check(lambda a, b: torch._foreach_add_(a, b), a, b[::-1])
    check(lambda a, b: torch._foreach_add(a, b, alpha=True), a, b)
    check(lambda a: torch._foreach_norm(a, float("inf")), [torch.empty(0)])


def test_aliases_keep_the_order() -> None:
    """A tensor twice in a list is changed twice, one after the other."""
    x = torch.ones(3, device="cookbook")
    torch._foreach_mul_([x, x], [2.0, 5.0])
    assert x.tolist() == [10, 10, 10]


def test_a_long_list_needs_several_launches() -> None:
    """A launch carries at most 64 KiB of arguments."""
    ours = [torch.full((2,), float(i)).to("cookbook") for i in range(3000)]
    cookbook_backend.synchronize()
    before = _C.counters(0)["launches"]
    torch._foreach_add_(ours, 1)
    torch._foreach_add_(ours, [float(i) for i in range(3000)])
    launches = _C.counters(0)["launches"] - before
    assert 4 < launches < 30
    assert_close(torch.stack([t.cpu() for t in ours])[:, 0], torch.arange(3000) * 2.0 + 1)


def test_clip_grad_norm() -> None:
    shapes = ((4, 3), (7,), (2, 2, 2))
    cpu = [torch.nn.Parameter(sample(shape, torch.float32)) for shape in shapes]
    ours = [torch.nn.Parameter(p.detach().to("cookbook")) for p in cpu]
    for parameters in (cpu, ours):
        for p in parameters:
            p.grad = p.detach() * 3
    expected = torch.nn.utils.get_total_norm([p.grad for p in cpu if p.grad is not None])
    norms = torch._foreach_norm([p.grad for p in ours if p.grad is not None])
    assert_close(torch.linalg.vector_norm(torch.tensor([n.item() for n in norms])), expected)
    coefficient = (1.0 / (expected.to("cookbook") + 1e-6)).clamp(max=1.0)
    cookbook_backend.synchronize()
    before = _C.counters(0)["launches"]
    torch._foreach_mul_([p.grad for p in ours if p.grad is not None], coefficient)
    assert _C.counters(0)["launches"] - before == 1
    torch.nn.utils.clip_grad_norm_(cpu, 1.0)
    for a, b in zip(ours, cpu, strict=True):
        assert a.grad is not None
        assert_close(a.grad.cpu(), b.grad)

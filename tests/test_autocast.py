# chapter 6
"""Autocast: the operators and dtypes of CUDA's lists, the cache of casts, and what a program builds on them."""

from __future__ import annotations

import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import models
import pytest
import torch
from gradients import never_waiting
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.testing import assert_close
from torch.testing._internal.autocast_test_lists import AutocastTestLists, TestAutocast
from torch.utils.checkpoint import checkpoint

import cookbook_backend

_C = cookbook_backend._C
HALF = [torch.bfloat16, torch.float16]
# Kernels of cuDNN, which no other device has.
CUDNN = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}

pytestmark = pytest.mark.usefixtures("time_limit")


@pytest.fixture(autouse=True)
def no_state_is_left() -> Iterator[None]:
    yield
    assert not torch.is_autocast_enabled("cookbook")
    assert torch.get_autocast_dtype("cookbook") == torch.float16
    assert torch.is_autocast_cache_enabled()


# The lists


def with_kernel(key: str) -> set[str]:
    """The operators that have a kernel of their own for a dispatch key."""
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}


def test_every_operator_that_cuda_casts_is_cast_here() -> None:
    cuda, ours = with_kernel("AutocastCUDA"), with_kernel("AutocastPrivateUse1")
    assert len(cuda) > 100
    assert cuda - ours == CUDNN
    assert {name for name in ours - cuda if name.startswith("aten::")} == set()
    assert "cookbook::rms_norm" in ours


# (where the function is, its name, arguments, keyword arguments): each entry that PyTorch's own tests of CUDA run.
Case = tuple[Any, str, tuple[Any, ...], dict[str, Any]]
LISTS = {
    "torch_fp16": torch,
    "linalg_fp16": torch._C._linalg,
    "methods_fp16": None,
    "nn_fp16": torch._C._nn,
    "torch_fp32": torch,
    "methods_fp32": None,
    "nn_fp32": torch._C._nn,
    "torch_need_autocast_promote": torch,
    "torch_expect_builtin_promote": torch,
    "methods_expect_builtin_promote": None,
}


def cases(name: str, device: str) -> list[Case]:
    found: list[Case] = []
    for entry in getattr(AutocastTestLists(device), name):
        op, arguments = entry[0], entry[1]
        options = entry[2] if len(entry) == 3 and isinstance(entry[2], dict) else {}
        if op == "einsum":  # its entry has the equation where the arguments should be, and matrices of two dimensions
            x = torch.randn(2, 3, 2, 4, device=device)
            arguments = ("bkhd,bqhd->bqkh", x, x + 1)
        if f"aten::{op}" not in CUDNN:
            found.append((LISTS[name], op, arguments, options))
    return found


def call(case: Case) -> Any:
    where, op, arguments, options = case
    if where is None or not hasattr(where, op):
        return getattr(arguments[0], op)(*arguments[1:], **options)
    return getattr(where, op)(*arguments, **options)


def test_the_lists_are_not_empty() -> None:
    assert {name: len(cases(name, "cpu")) for name in LISTS} == {
        "torch_fp16": 26,
        "linalg_fp16": 2,
        "methods_fp16": 1,
        "nn_fp16": 1,
        "torch_fp32": 44,
        "methods_fp32": 1,
        "nn_fp32": 9,
        "torch_need_autocast_promote": 13,
        "torch_expect_builtin_promote": 12,
        "methods_expect_builtin_promote": 9,
    }


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_pytorchs_own_lists(name: str, dtype: torch.dtype) -> None:
    """PyTorch's own comparison of an operator under autocast with the same operator and casts written by hand."""
    for entry, (where, op, arguments, options) in zip(
        (e for e in getattr(AutocastTestLists("cookbook"), name) if f"aten::{e[0]}" not in CUDNN),
        cases(name, "cookbook"),
        strict=True,
    ):
        if "fp16" in name:
            run_as, out = dtype, None
        elif "builtin" in name:
            run_as, out = torch.float32, entry[2]
        else:
            run_as, out = torch.float32, None
        if op == "einsum":
            with torch.autocast("cookbook", dtype=dtype):
                result = torch.einsum(*arguments)
            by_hand = torch.einsum(arguments[0], *(a.to(dtype) for a in arguments[1:]))
            assert result.dtype == dtype
            assert torch.equal(result, by_hand)
            continue
        if "promote" in name and dtype is torch.bfloat16:
            # The entries mix float32 with float16; a block has its own lower precision, and refuses the other one.
            arguments = replace(arguments, torch.float16, dtype)
        TestAutocast()._run_autocast_outofplace(
            op, arguments, run_as, "cookbook", out_type=out, module=where, add_kwargs=options, amp_dtype=dtype
        )


def replace(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(new) if value.dtype == old else value
    if isinstance(value, (tuple, list)):
        return type(value)(replace(item, old, new) for item in value)
    return value


def dtypes(result: Any) -> Any:
    """The dtypes of all tensors in a result."""
    if isinstance(result, Tensor):
        return result.dtype
    return [dtypes(item) for item in result] if isinstance(result, (tuple, list)) else type(result)


def moved(value: Any, device: str) -> Any:
    """The same arguments, as fake tensors of a device."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device=device)
    return type(value)(moved(item, device) for item in value) if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("name", LISTS)
def test_the_dtypes_are_those_of_cudas_kernels(name: str) -> None:
    """CUDA's autocast kernels are in every wheel. Fake tensors reach them without a GPU."""
    found: dict[str, list[Any]] = {}
    # `equal` reads its arguments, which fake tensors do not have; the other two ask for a real GPU.
    todo = [case for case in cases(name, "cpu") if case[1] not in ("equal", "grid_sampler", "gru_cell")]
    for device in ("cuda", "cookbook"):
        with FakeTensorMode():
            torch.set_autocast_enabled(device, True)
            try:
                found[device] = [
                    (case[1], dtypes(call((case[0], case[1], moved(case[2], device), case[3])))) for case in todo
                ]
            finally:
                torch.set_autocast_enabled(device, False)
                torch.clear_autocast_cache()
    assert found["cookbook"] == found["cuda"]
    assert found["cuda"]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("function", "shapes", "compute"),
    [
        (torch.mm, [(5, 7), (7, 3)], "lower"),
        (functional.linear, [(5, 7), (3, 7), (3,)], "lower"),
        (functional.conv2d, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], "lower"),
        (functional.scaled_dot_product_attention, [(2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)], "lower"),
        (lambda x: torch.softmax(x, -1), [(5, 7)], "float32"),
        (lambda x: functional.layer_norm(x, (7,)), [(5, 7)], "float32"),
        (torch.sum, [(5, 7)], "float32"),
        (torch.addcmul, [(5, 7), (5, 7), (5, 7)], "widest"),
    ],
)
def test_values_equal_the_cpus_with_casts_by_hand(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]], compute: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.float32 if compute == "lower" else dtype
    arguments = [torch.randn(shape, generator=generator).to(given) for shape in shapes]
    inside = {"lower": dtype, "float32": torch.float32, "widest": dtype}[compute]
    expected = function(*(a.to(inside) for a in arguments))
    with torch.autocast("cookbook", dtype=dtype):
        result = function(*(a.to("cookbook") for a in arguments))
    assert result.dtype == expected.dtype == inside
    assert result.stride() == expected.stride()
    assert_close(result.cpu(), expected)


# Blocks


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_what_a_block_casts(dtype: torch.dtype, device: torch.device) -> None:
    linear = torch.nn.Linear(4, 4, device=device)
    x = torch.randn(2, 4, device=device)
    with torch.autocast("cookbook", dtype=dtype):
        h = linear(x)
        assert h.dtype == dtype
        assert h.device == device
        assert torch.softmax(h, -1).dtype == torch.float32
        assert torch.softmax(h, -1, dtype=dtype).dtype == dtype  # what the program says wins
        assert (x + x).dtype == torch.float32
        assert (h + h).dtype == dtype
        assert linear(x.double().float()).dtype == dtype
        assert torch.mm(x.double(), x.double().t()).dtype == torch.float64  # never cast
        assert torch.mm(x.cpu(), x.cpu().t()).dtype == torch.float32  # another device's
        assert (
            torch.mm(x, x.t(), out=torch.empty(2, 2, device=device)).dtype == torch.float32
        )  # out is not on the lists
    assert linear(x).dtype == torch.float32


def test_blocks_nest_and_end_with_an_exception() -> None:
    x = torch.randn(3, 3, device="cookbook")
    with torch.autocast("cookbook", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cookbook", enabled=False):
            assert (x @ x).dtype == torch.float32
            with torch.autocast("cookbook", dtype=torch.float16):
                assert (x @ x).dtype == torch.float16
        with pytest.raises(ZeroDivisionError), torch.autocast("cookbook", dtype=torch.float16):
            raise ZeroDivisionError
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True):
            assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16
            assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_the_decorator_and_the_default_dtype() -> None:
    x = torch.randn(3, 3, device="cookbook")

    @torch.autocast("cookbook")
    def square(y: Tensor) -> Tensor:
        return y @ y

    assert torch.amp.is_autocast_available("cookbook")
    assert torch.get_autocast_dtype("cookbook") == torch.float16
    assert square(x).dtype == torch.float16
    torch.set_autocast_dtype("cookbook", torch.bfloat16)
    try:
        with torch.autocast("cookbook"):
            assert (x @ x).dtype == torch.bfloat16
    finally:
        torch.set_autocast_dtype("cookbook", torch.float16)


def test_a_block_is_of_its_thread() -> None:
    found: list[torch.dtype] = []
    x = torch.randn(3, 3, device="cookbook")
    with torch.autocast("cookbook"):
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert found == [torch.float32]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int8])
def test_another_dtype_warns_and_casts_nothing(dtype: torch.dtype) -> None:
    x = torch.randn(3, 3, device="cookbook")
    with pytest.warns(UserWarning, match=r"only supports dtypes of torch\.bfloat16, torch\.float16"):
        block = torch.autocast("cookbook", dtype=dtype)
    with block:
        assert not torch.is_autocast_enabled("cookbook")
        assert (x @ x).dtype == torch.float32


def test_without_the_module_function_autocast_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.cookbook.get_amp_supported_dtype() == HALF
    torch.cookbook.get_amp_supported_dtype().clear()  # the caller's own list
    assert torch.cookbook.get_amp_supported_dtype() == HALF
    monkeypatch.delattr(cookbook_backend, "get_amp_supported_dtype")
    with pytest.raises(AssertionError, match="`get_amp_supported_dtype` is missing"):
        torch.autocast("cookbook")


def test_binary_cross_entropy_is_refused_as_cuda_refuses_it() -> None:
    p = torch.rand(3, 3, device="cookbook")
    with (
        torch.autocast("cookbook"),
        pytest.raises(RuntimeError, match="(?s)unsafe to autocast.*binary_cross_entropy_with_logits") as error,
    ):
        functional.binary_cross_entropy(p, p)
    with torch.autocast("cookbook"):
        assert functional.binary_cross_entropy_with_logits(p.half(), p.half()).dtype == torch.float32
        with torch.autocast("cookbook", enabled=False):
            assert_close(functional.binary_cross_entropy(p, p).cpu(), functional.binary_cross_entropy(p.cpu(), p.cpu()))
    assert "BCEWithLogits" in str(error.value)


def test_the_other_half_dtype_is_refused_where_dtypes_are_compared() -> None:
    x = torch.ones(2, device="cookbook")
    with torch.autocast("cookbook", dtype=torch.bfloat16):
        assert torch.outer(x.half(), x.half()).dtype == torch.float16  # on no list
        assert torch.mm(x.half().view(1, 2), x.view(2, 1)).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
            torch.addcmul(x.half(), x, x)


# The cache


def launches(function: Callable[[], Any]) -> int:
    cookbook_backend.synchronize()
    before = _C.counters(0)["launches"]
    function()
    cookbook_backend.synchronize()
    return _C.counters(0)["launches"] - before


def test_a_parameter_is_cast_once_a_block() -> None:
    linear = torch.nn.Linear(8, 8, device="cookbook")
    x = torch.randn(4, 8, device="cookbook")
    half = [t.detach().half() for t in (x, linear.weight, linear.bias)]
    plain = launches(lambda: functional.linear(*half))
    counts: dict[bool, list[int]] = {}
    for cached in (True, False):
        with torch.autocast("cookbook", cache_enabled=cached):
            counts[cached] = [launches(lambda: linear(x)) - plain for _ in range(3)]
    assert counts[True] == [3, 1, 1]  # the input, each time; weight and bias once
    assert counts[False] == [3, 3, 3]
    with torch.autocast("cookbook"):  # another block casts again: an optimizer may have changed the parameter
        assert launches(lambda: linear(x)) - plain == 3
        with torch.autocast("cookbook", dtype=torch.float16):  # an inner one shares the cache and does not clear it
            assert launches(lambda: linear(x)) - plain == 1
        assert launches(lambda: linear(x)) - plain == 1


def test_the_cache_is_freed_with_the_block() -> None:
    linear = torch.nn.Linear(256, 256, device="cookbook")
    x = torch.randn(4, 256, device="cookbook")
    before = torch.cookbook.memory_allocated()
    with torch.autocast("cookbook"), torch.enable_grad():
        linear(x)
        inside = torch.cookbook.memory_allocated() - before
    assert inside >= 2 * 256 * 256
    assert torch.cookbook.memory_allocated() == before


def test_a_parameter_that_changed_is_cast_again() -> None:
    linear = torch.nn.Linear(8, 8, bias=False, device="cookbook")
    x = torch.ones(1, 8, device="cookbook")
    with torch.autocast("cookbook"):
        linear(x)
    with torch.no_grad():
        linear.weight.fill_(2.0)
    with torch.autocast("cookbook"):
        assert linear(x).tolist() == [[16.0] * 8]


# Gradients


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", models.MODELS)
def test_mixed_gradients_are_near_float32s(name: str, dtype: torch.dtype, device: torch.device) -> None:
    expected, mixed = models.make(name), models.make(name).to(device)
    expected.loss().backward()
    with cookbook_backend.fallback.policy("error"):  # natively
        with torch.autocast("cookbook", dtype=dtype):
            loss = mixed.loss()
        assert loss.dtype == torch.float32
        loss.backward()
    worst = 0.0
    for a, b in zip(mixed.model.parameters(), expected.model.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.dtype == torch.float32
        worst = max(worst, ((a.grad.cpu() - b.grad).norm() / b.grad.norm().clamp_min(1e-3)).item())
    limit = 0.3 if name == "convnet" else 0.1  # batch norm divides by what is nearly 0 here
    assert 1e-4 < worst < limit / (1 if dtype is torch.bfloat16 else 8)  # not equal: it did compute in another dtype


def test_a_mixed_step_never_waits() -> None:
    workload = models.make("transformer").to("cookbook")
    optimizer = torch.optim.AdamW(workload.model.parameters(), fused=True)
    for waiting in (True, False):
        optimizer.zero_grad()
        if waiting:
            with torch.autocast("cookbook", dtype=torch.bfloat16):
                workload.loss().backward()
        else:
            with never_waiting(), torch.autocast("cookbook", dtype=torch.bfloat16):
                workload.loss().backward()
                optimizer.step()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_recomputes_in_the_dtype_of_the_forward(reentrant: bool) -> None:
    torch.manual_seed(0)
    first, second = (torch.nn.Linear(8, 8, device="cookbook") for _ in range(2))
    x = torch.randn(4, 8, device="cookbook", requires_grad=True)
    seen: list[torch.dtype] = []

    def body(y: Tensor) -> Tensor:
        h = first(y)
        seen.append(h.dtype)
        return second(torch.relu(h))

    grads = []
    for run in (body, lambda y: checkpoint(body, y, use_reentrant=reentrant)):
        for parameter in (x, first.weight, second.weight):
            parameter.grad = None
        with torch.autocast("cookbook", dtype=torch.bfloat16):
            out = run(x)
        out.float().sum().backward()
        grads.append([p.grad.cpu() for p in (x, first.weight, second.weight)])
    assert seen == [torch.bfloat16] * 3
    for plain, again in zip(*grads, strict=True):
        assert torch.equal(plain, again)


# Functions and operators of your own


def test_a_function_that_needs_float32() -> None:
    seen: list[torch.dtype] = []

    class Cube(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cookbook", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            seen.append((x @ x).dtype)
            return x**3

        @staticmethod
        @torch.cookbook.amp.custom_bwd
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            seen.append((x @ x).dtype)
            return 3 * x**2 * grad

    x = torch.randn(3, 3, device="cookbook").half().requires_grad_()
    with torch.autocast("cookbook"):
        y = Cube.apply(x)
        assert y.dtype == torch.float32
        y.sum().backward()  # under autocast, unlike the forward
    assert seen == [torch.float32, torch.float32]
    assert x.grad is not None
    assert_close(x.grad.cpu(), (3 * x.detach().cpu().float() ** 2).half())


def test_a_function_in_the_dtype_of_the_block() -> None:
    seen: list[torch.dtype] = []

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.cookbook.amp.custom_fwd
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            y = x @ x
            seen.append(y.dtype)
            return y

        @staticmethod
        @torch.amp.custom_bwd(device_type="cookbook")
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            seen.append((x.t() @ grad.to(x.dtype)).dtype)
            return (grad @ x.t() + x.t() @ grad).to(x.dtype)

    x = torch.randn(3, 3, device="cookbook", requires_grad=True)
    with torch.autocast("cookbook", dtype=torch.bfloat16):
        y = Square.apply(x)
    y.float().sum().backward()  # outside: the decorator brings the state of the forward back
    assert seen == [torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("device", ["cpu", "cookbook"])
def test_the_backends_own_operator(device: str) -> None:
    torch.manual_seed(0)
    linear, weight = torch.nn.Linear(8, 8, device=device), torch.ones(8, device=device, requires_grad=True)
    x = torch.randn(4, 8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        h = linear(x)
        y = torch.ops.cookbook.rms_norm(h, weight, 1e-5)
    control = functional.rms_norm(h.float(), (8,), weight, 1e-5)
    assert h.dtype == torch.bfloat16
    assert y.dtype == torch.float32
    assert_close(y, control)
    y.sum().backward()
    assert weight.grad is not None
    assert linear.weight.grad is not None
    assert weight.grad.dtype == torch.float32
    with pytest.raises(RuntimeError, match="expected one dtype"):  # what it says without autocast
        torch.ops.cookbook.rms_norm(h, weight, 1e-5)


def test_an_operator_from_python() -> None:
    @torch.library.custom_op("cookbook_test_autocast::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    torch.library.register_autocast("cookbook_test_autocast::double", "cookbook", torch.float16)
    x = torch.ones(3, device="cookbook")
    assert double(x).dtype == torch.float32
    with torch.autocast("cookbook", dtype=torch.bfloat16):
        assert double(x).dtype == torch.float16  # the dtype that was registered, not the block's
        assert double(x.double()).dtype == torch.float64
        assert double(x.cpu()).dtype == torch.float32
        assert double(x).tolist() == [2.0] * 3


def test_the_modules_own_names() -> None:
    assert torch.get_device_module("cookbook").amp is torch.cookbook.amp
    x = torch.randn(3, 3, device="cookbook")
    with torch.cookbook.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    with torch.cookbook.amp.autocast(enabled=False):
        assert (x @ x).dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.cookbook.amp.GradScaler().is_enabled()
    assert not torch.cookbook.amp.GradScaler(enabled=False).is_enabled()


def test_core_has_no_fallthrough_for_the_key(run_python: Callable[..., Any]) -> None:
    """What the first cell of csrc/autocast/autocast.cpp is for: in PyTorch alone the key has nothing at all."""
    script = """
        import torch
        table = torch._C._dispatch_dump_table("aten::add.Tensor").splitlines()
        print([line.split()[1] for line in table if line.startswith("Autocast" + KEY)])
    """
    for key, imported, expected in (
        ("CUDA", "torch", ["fallthrough"]),
        ("PrivateUse1", "torch", []),
        ("PrivateUse1", "cookbook_backend", ["fallthrough"]),
    ):
        done = run_python(
            f"import {imported}\nKEY = {key!r}\n" + textwrap.dedent(script), TORCH_DEVICE_BACKEND_AUTOLOAD="0"
        )
        assert done.stdout.strip() == repr(expected), done.stderr

# chapter 2
"""The custom operator `cookbook::rms_norm`: schema, kernels, meta function, autograd, what PyTorch builds on them."""

from __future__ import annotations

import pytest
import torch
from gradients import never_waiting, with_gradients
from same_as_cpu import DTYPES, check
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.testing import assert_close

import cookbook_backend

rms_norm = torch.ops.cookbook.rms_norm
EPS = 1e-5
DEVICES = ("cpu", "cookbook")


def inputs(device: str, dtype: torch.dtype = torch.float64, grad: bool = True) -> tuple[Tensor, Tensor, float]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator).to(dtype)
    weight = torch.randn(5, dtype=torch.float64, generator=generator).to(dtype)
    return x.to(device).requires_grad_(grad), weight.to(device).requires_grad_(grad), EPS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_it_is_pytorchs_rms_norm(device: str, dtype: torch.dtype) -> None:
    x, weight, eps = inputs(device, dtype, grad=False)
    expected = functional.rms_norm(x.cpu().double(), (5,), weight.cpu().double(), eps)
    assert_close(
        rms_norm(x, weight, eps).cpu().double(),
        expected,
        **({} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-2}),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_device_and_cpu_agree(dtype: torch.dtype) -> None:
    x, weight, eps = (
        inputs("cpu", dtype, grad=False)
        if dtype.is_floating_point
        else (torch.ones(2, 5, dtype=dtype), torch.ones(5, dtype=dtype), EPS)
    )
    assert check(rms_norm, x, weight, eps) == dtype.is_floating_point
    if dtype.is_floating_point:
        assert check(with_gradients(lambda a, b: rms_norm(a, b, eps)), x, weight)
        assert check(lambda a, b: rms_norm(a.transpose(0, 1), b, eps), x, weight)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_finite_differences(device: str) -> None:
    assert torch.autograd.gradcheck(rms_norm, inputs(device))


@pytest.mark.parametrize("device", DEVICES)
def test_pytorchs_own_checks_pass(device: str) -> None:
    # test_aot_dispatch_dynamic saves the device's random state, which chapter 4 adds. test_autograd_registration knows
    # three device types (torch/testing/_internal/optests/autograd_registration.py, "NYI devices other than CPU/CUDA/XPU").
    checks = ["test_schema", "test_faketensor"]
    if device == "cpu":
        checks.append("test_autograd_registration")
    # if COOKBOOK_CHAPTER >= 4
    checks.append("test_aot_dispatch_dynamic")
    # endif
    for grad in (False, True):
        results = torch.library.opcheck(rms_norm.default, inputs(device, grad=grad), test_utils=checks)
        assert set(results.values()) == {"SUCCESS"}, results


def test_the_meta_function_describes_the_result() -> None:
    x, weight = torch.empty(2, 3, 5, device="meta"), torch.empty(5, device="meta")
    assert rms_norm(x, weight, EPS).shape == (2, 3, 5)
    with pytest.raises(RuntimeError, match="expected a weight"):
        rms_norm(x, torch.empty(4, device="meta"), EPS)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in inputs("cookbook", grad=False)[:2]]
        with never_waiting() as counters:
            result = rms_norm(*fakes, EPS)
        assert (result.device.type, result.shape, result.dtype) == ("cookbook", (2, 3, 5), torch.float64)
    assert counters["launches"] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_it_compiles(device: str) -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (rms_norm(x * 2, weight, EPS) ** 2).sum()

    x, weight, _ = inputs(device, torch.float32)
    expected = torch.autograd.grad(loss(x, weight), (x, weight))
    actual = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(x, weight), (x, weight))
    assert_close(actual, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_second_derivative_is_an_error_that_names_the_operator(device: str) -> None:
    x, weight, _ = inputs(device, torch.float32)
    (first,) = torch.autograd.grad(rms_norm(x, weight, EPS).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for cookbook::rms_norm_backward is not implemented"):
        first.sum().backward()


def test_wrong_arguments_raise_on_the_host() -> None:
    x, weight, eps = inputs("cpu", torch.float32, grad=False)
    assert not check(rms_norm, x, weight[:4], eps)
    assert not check(rms_norm, x, weight.double(), eps)
    assert not check(rms_norm, x[0, 0, 0], weight, eps)
    with pytest.raises(RuntimeError, match="same device"):
        rms_norm(x.to("cookbook"), weight, eps)


def test_one_launch_and_no_wait() -> None:
    x, weight, eps = inputs("cookbook", torch.float32)
    with never_waiting() as counters:
        y = rms_norm(x, weight, eps)
    assert counters["launches"] == 1
    grad = torch.ones(2, 3, 5).to("cookbook")
    with never_waiting() as counters:
        torch.autograd.grad(y, (x, weight), grad)
    assert counters["launches"] == 1
    cookbook_backend.synchronize()

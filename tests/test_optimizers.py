# chapter 2
"""Optimizer steps: the same parameters as on the CPU, and no step that waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import OPTIMIZERS
from test_pointwise import sample
from torch import Tensor
from torch.testing import assert_close

import cookbook_backend

_C = cookbook_backend._C
SHAPES = ((4, 3), (7,), (), (2, 3, 3, 2), (16, 8), (1,), (5, 5), (3, 1, 2))

VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    **OPTIMIZERS,
    "sgd-nesterov-foreach": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "sgd-nesterov-fused": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "fused": True}),
    "sgd-maximize-fused": (torch.optim.SGD, {"lr": 0.1, "maximize": True, "fused": True}),
    "adam-amsgrad-foreach": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    "adam-decay-fused": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "fused": True}),
    "adam-maximize-single": (torch.optim.Adam, {"lr": 0.01, "maximize": True, "foreach": False, "fused": False}),
    "adamw-decay-foreach": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.2, "foreach": True}),
}


class Training:
    """Parameters with gradients that are the same on every device."""

    def __init__(self, device: str, cls: Any, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        self.parameters = [
            torch.nn.Parameter(sample(shape, dtype, seed).to(device)) for seed, shape in enumerate(SHAPES)
        ]
        self.gradients = [
            [sample(shape, dtype, 100 * step + i).to(device) for i, shape in enumerate(SHAPES)] for step in range(5)
        ]
        self.optimizer = cls(self.parameters, **options)

    def step(self, number: int) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients[number], strict=True):
            parameter.grad = gradient.clone()
        self.optimizer.step()

    def tensors(self) -> list[Tensor]:
        """Return all parameters and states, on the CPU."""
        states = (state for p in self.parameters for state in self.optimizer.state[p].values())
        return [t.detach().cpu() for t in (*self.parameters, *states) if isinstance(t, Tensor)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
def test_five_steps_equal_the_cpus(name: str, dtype: torch.dtype) -> None:
    cls, options = VARIANTS[name]
    if dtype == torch.bfloat16 and cls is torch.optim.SGD and options.get("fused") and options.get("momentum"):
        pytest.skip(
            "two runs on the CPU differ (aten/src/ATen/native/cpu/FusedSGDKernel.cpp): parts of the momentum are garbage"
        )
    cpu, ours = (Training(device, cls, options, dtype) for device in ("cpu", "cookbook"))
    for number in range(5):
        cpu.step(number)
        ours.step(number)
    before, after = cpu.tensors(), ours.tensors()
    assert len(before) == len(after) >= len(SHAPES)
    for a, b in zip(after, before, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_never_waits(name: str) -> None:
    """Single form too: Adam's step count lives on the CPU there, so its value costs nothing."""
    cls, options = VARIANTS[name]
    ours = Training("cookbook", cls, options)
    for number in range(2):
        ours.step(number)
    cookbook_backend.synchronize()
    before = _C.counters(0)
    ours.step(2)
    after = _C.counters(0)
    assert after["synchronizations"] == before["synchronizations"]
    launches = after["launches"] - before["launches"]
    if "fused" in name:
        assert launches == (1 if "sgd" in name else 2)  # Adam's step counts, and the step
    elif "foreach" in name:
        assert launches <= 13
    else:
        assert launches >= len(SHAPES)


def test_a_fused_step_over_many_parameters() -> None:
    cpu = [torch.nn.Parameter(torch.full((2,), float(i))) for i in range(1500)]
    ours = [torch.nn.Parameter(p.detach().to("cookbook")) for p in cpu]
    for parameters in (cpu, ours):
        for p in parameters:
            p.grad = torch.ones_like(p)
        torch.optim.AdamW(parameters, fused=True).step()
    for a, b in zip(ours, cpu, strict=True):
        assert_close(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("name", ["sgd-fused", "adam-fused", "adamw-fused"])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_gradient_scale_and_found_inf_are_read_on_the_device(name: str, found: float) -> None:
    cls, options = VARIANTS[name]
    trainings = [Training(device, cls, options) for device in ("cpu", "cookbook")]
    for training, device in zip(trainings, ("cpu", "cookbook"), strict=True):
        training.step(0)
        training.optimizer.grad_scale = torch.tensor(8.0).to(device)
        training.optimizer.found_inf = torch.tensor(found).to(device)
        if device == "cookbook":
            cookbook_backend.synchronize()
        before = _C.counters(0)["synchronizations"]
        training.step(1)
        assert _C.counters(0)["synchronizations"] == before
    for a, b in zip(trainings[1].tensors(), trainings[0].tensors(), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("where", ["cpu", "device"])
def test_the_learning_rate_may_be_a_tensor(cls: Any, where: str) -> None:
    cpu = Training("cpu", cls, {"lr": torch.tensor(0.02), "fused": True})
    rate = torch.tensor(0.02).to("cookbook" if where == "device" else "cpu")
    ours = Training("cookbook", cls, {"lr": rate, "fused": True})
    for training in (cpu, ours):
        training.step(0)
        training.step(1)
    cookbook_backend.synchronize()
    before = _C.counters(0)["synchronizations"]
    ours.step(2)
    assert _C.counters(0)["synchronizations"] == before  # a number of the host travels with the launch
    cpu.step(2)
    for a, b in zip(ours.tensors(), cpu.tensors(), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_capturable_keeps_the_step_count_on_the_device(cls: Any) -> None:
    cpu = Training("cpu", cls, {"lr": 0.01, "foreach": True})
    ours = Training("cookbook", cls, {"lr": 0.01, "foreach": True, "capturable": True})
    for number in range(5):
        cpu.step(number)
        if number == 3:
            cookbook_backend.synchronize()
            before = _C.counters(0)
        ours.step(number)
    after = _C.counters(0)
    assert after["synchronizations"] == before["synchronizations"]
    assert all(ours.optimizer.state[p]["step"].device.type == "cookbook" for p in ours.parameters)
    for a, b in zip(ours.parameters, cpu.parameters, strict=True):
        assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)


def test_fused_refuses_states_that_do_not_fit() -> None:
    p = [torch.ones(3, device="cookbook")]
    wrong = [torch.ones(4, device="cookbook")]
    with pytest.raises(RuntimeError, match="same dtype, device, shapes and strides"):
        torch._fused_sgd_(
            p, wrong, [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
            is_first_step=True,
        )  # fmt: skip

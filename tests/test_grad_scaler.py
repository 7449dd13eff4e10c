# chapter 6
"""GradScaler: its two operators as on the CPU, and training that skips, backs off and grows without a wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import models
import pytest
import torch
from gradients import never_waiting
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

import cookbook_backend

_C = cookbook_backend._C
unscale = torch._amp_foreach_non_finite_check_and_unscale_
FLOATING = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.usefixtures("time_limit")


@pytest.fixture(autouse=True)
def nothing_is_left_enabled() -> Iterator[None]:
    yield
    assert not torch.is_autocast_enabled("cookbook")


def number(value: float, device: str | torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((), value, dtype=dtype).to(device)


# The operators


def gradients(dtype: torch.dtype, device: str | torch.device, bad: float | None = None) -> list[Tensor]:
    """Gradients of many shapes; the last element of one of them may be bad."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((4, 3), (), (0, 5), (2, 3, 4, 4), (300,), (1,))
    made = [torch.randn(shape, generator=generator).mul(100).to(dtype) for shape in shapes]
    made[3] = made[3].to(memory_format=torch.channels_last)
    if bad is not None:
        made[4][-1] = bad
    return [t.to(device) for t in made]


@pytest.mark.parametrize("bad", [None, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_unscaling_is_the_cpus(dtype: torch.dtype, bad: float | None, device: torch.device) -> None:
    results = []
    for where in ("cpu", device):
        grads, found = gradients(dtype, where, bad), number(0.0, where)
        unscale(grads, found, number(0.125, where))
        results.append(([g.cpu() for g in grads], found.item(), [g.stride() for g in grads]))
    (expected, flag, strides), (actual, actual_flag, actual_strides) = results
    assert actual_flag == flag == (0.0 if bad is None else 1.0)
    assert actual_strides == strides
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_a_flag_that_was_set_stays_set() -> None:
    found = number(1.0, "cookbook")
    unscale(gradients(torch.float32, "cookbook"), found, number(1.0, "cookbook"))
    assert found.item() == 1.0
    unscale([], found, number(1.0, "cookbook"))
    assert found.item() == 1.0


def test_gradients_with_gaps_and_of_two_dtypes() -> None:
    """Views of larger tensors: what lies between their elements is not theirs."""
    results = []
    for where in ("cpu", "cookbook"):
        whole = torch.arange(24.0).reshape(4, 6).to(where)
        half = torch.arange(6.0).half().to(where)
        found = number(0.0, where)
        unscale([whole[:, ::2], whole.t()[1], half], found, number(0.5, where))
        results.append((whole.cpu(), half.cpu(), found.item()))
    assert_close(results[1], results[0], rtol=0, atol=0)
    assert results[0][0][0, :4].tolist() == [0.0, 0.5, 1.0, 3.0]


def test_many_gradients_are_few_launches() -> None:
    grads = [torch.full((2,), float(i)).to("cookbook") for i in range(1500)]
    found, inverse = number(0.0, "cookbook"), number(0.5, "cookbook")
    unscale(grads[:1], found, inverse)
    with never_waiting() as counters:
        unscale(grads[:100], found, inverse)
    assert counters["launches"] == 1
    with never_waiting() as counters:
        unscale(grads[100:], found, inverse)
    assert counters["launches"] <= 8
    assert [g[0].item() for g in (grads[0], grads[1], grads[100], grads[1499])] == [0.0, 0.5, 50.0, 749.5]
    grads[1499].fill_(math.inf)  # the last of the last launch
    unscale(grads, found, inverse)
    assert found.item() == 1.0


@pytest.mark.parametrize(
    ("grads", "found", "inverse", "error", "text"),
    [
        ("cookbook:0", "cpu", "cookbook:0", RuntimeError, "expected found_inf to be one element .* got 1 .* on cpu"),
        ("cookbook:0", "cookbook:1", "cookbook:0", RuntimeError, "expected found_inf .* on cookbook:1"),
        ("cookbook:0", "cookbook:0", "cpu", RuntimeError, "expected inv_scale .* on cpu"),
        ("cookbook:0 cookbook:1", "cookbook:0", "cookbook:0", RuntimeError, "gradients on one device, cookbook:0"),
        ("cookbook:0 cpu", "cookbook:0", "cookbook:0", RuntimeError, "got one of layout Strided on cpu"),
    ],
)
def test_what_lies_elsewhere_is_refused(
    grads: str, found: str, inverse: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        unscale([torch.ones(2, device=d) for d in grads.split()], number(0.0, found), number(1.0, inverse))


def test_other_arguments_are_refused_before_the_launch() -> None:
    ones, found, inverse = torch.ones(2, device="cookbook"), number(0.0, "cookbook"), number(1.0, "cookbook")
    with pytest.raises(RuntimeError, match="one element of dtype Float .* got 1 of dtype Double"):
        unscale([ones], found.double(), inverse)
    with pytest.raises(RuntimeError, match="got 2 of dtype Float"):
        unscale([ones], found, inverse.expand(2))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        unscale([torch.ones(1, device="cookbook").expand(4)], found, inverse)
    for other in (torch.int32, torch.complex64):
        errors = []
        for where in ("cpu", "cookbook"):
            with pytest.raises(RuntimeError) as caught:
                unscale([torch.ones(2, dtype=other, device=where)], number(0.0, where), number(1.0, where))
            errors.append(type(caught.value))
        assert errors[0] is errors[1]
    with pytest.raises(RuntimeError, match="growth_tracker to be one element of dtype Int"):
        torch._amp_update_scale_(number(1.0, "cookbook"), number(0.0, "cookbook"), found, 2.0, 0.5, 1)
    cookbook_backend.synchronize()
    assert ones.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("start", [1024.0, 2.0**127])
def test_the_scale_changes_as_on_the_cpu(start: float, device: torch.device) -> None:
    """From 2^127 it would grow to infinity: then it stays."""
    states = []
    for where in ("cpu", device):
        scale, tracker = number(start, where), number(0, where, torch.int32)
        trace = []
        for found in (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0):
            result = torch._amp_update_scale_(scale, tracker, number(found, where), 2.0, 0.5, 2)
            assert result is scale
            trace.append((scale.item(), tracker.item()))
        states.append(trace)
    assert states[0] == states[1]
    assert all(math.isfinite(scale) for scale, _ in states[1])


class WithoutWaiting:
    """As `never_waiting`, but for a closed stream: it does not synchronize at its start either."""

    def __enter__(self) -> None:
        self.before = _C.counters(0)["synchronizations"]

    def __exit__(self, *_: object) -> None:
        assert _C.counters(0)["synchronizations"] == self.before


def test_the_operators_wait_for_the_work_before_them(gate: Callable[[torch.Stream], Any]) -> None:
    """All is queued on a closed stream; nothing may read a gradient, the flag or the scale before it is written."""
    grad, found, inverse = torch.zeros(4, device="cookbook"), number(0.0, "cookbook"), number(0.5, "cookbook")
    scale, tracker = number(8.0, "cookbook"), number(0, "cookbook", torch.int32)
    parameter = torch.nn.Parameter(torch.ones(4, device="cookbook"))
    optimizer = torch.optim.SGD([parameter], lr=1.0, fused=True)
    source = torch.tensor([2.0, math.inf, 4.0, 6.0]).to("cookbook")
    unscale([grad], found, inverse)  # the first call of a dtype tries the kernel on the host
    cookbook_backend.synchronize()
    closed = gate(torch.cookbook.current_stream())
    with WithoutWaiting():
        grad.copy_(source)
        unscale([grad], found, inverse)
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 1)
        parameter.grad = grad
        optimizer.found_inf = found
        optimizer.grad_scale = scale
        optimizer.step()
    closed.open()
    assert grad.tolist() == [1.0, math.inf, 2.0, 3.0]
    assert (found.item(), scale.item(), parameter.tolist()) == (1.0, 4.0, [1.0] * 4)


# The scaler


class Run:
    """One linear layer whose gradient is what the test says."""

    def __init__(self, device: str, optimizer: Any = torch.optim.SGD, **options: Any) -> None:
        self.device = device
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 6).to(device))
        self.optimizer = optimizer([self.weight], lr=0.1, **options)
        self.scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=1024.0, growth_interval=2)

    def step(self, gradient: float) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale((self.weight * gradient).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> list[Any]:
        """Weights, scale, counter and optimizer state."""
        inner = [v.cpu().tolist() for v in self.optimizer.state[self.weight].values() if isinstance(v, Tensor)]
        return [self.weight.tolist(), self.scaler.get_scale(), self.scaler._get_growth_tracker(), inner]


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "sgd-fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {"foreach": True}),
    "adam-fused": (torch.optim.Adam, {"fused": True}),
    "adamw-fused": (torch.optim.AdamW, {"fused": True}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_skips_backs_off_and_grows_as_on_the_cpu(name: str, device: torch.device) -> None:
    cls, options = OPTIMIZERS[name]
    cpu, ours = Run("cpu", cls, **options), Run(str(device), cls, **options)
    scales = []
    for gradient in (1.0, math.inf, 0.5, 2.0, 1.0, math.nan, 1.0):
        before = ours.weight.tolist()
        cpu.step(gradient)
        ours.step(gradient)
        if not math.isfinite(gradient):
            assert ours.weight.tolist() == before
        else:
            assert ours.weight.tolist() != before
        assert_close(ours.state(), cpu.state())
        scales.append(ours.scaler.get_scale())
    assert scales == [1024.0, 512.0, 512.0, 1024.0, 1024.0, 512.0, 512.0]


@pytest.mark.parametrize(("name", "waits"), [("sgd", 1), ("adam", 1), ("sgd-fused", 0), ("adam-fused", 0)])
def test_waits_of_a_step(name: str, waits: int) -> None:
    """One, where PyTorch reads the flag to decide in Python; none where the optimizer's kernel reads it."""
    cls, options = OPTIMIZERS[name]
    run = Run("cookbook", cls, **options)
    for _ in range(2):
        run.step(1.0)
    cookbook_backend.synchronize()
    _C.reset_counters(0)
    run.step(1.0)
    counters = _C.counters(0)
    assert counters["synchronizations"] == waits
    assert counters["bytes_device_to_host"] == 4 * waits


@pytest.mark.parametrize("name", ["sgd", "adam-fused"])
def test_nothing_of_it_falls_back(name: str) -> None:
    cls, options = OPTIMIZERS[name]
    run = Run("cookbook", cls, **options)
    with cookbook_backend.fallback.policy("error"):
        for gradient in (1.0, math.inf, 1.0):
            run.step(gradient)
    assert run.scaler.get_scale() == 512.0


def test_without_a_device_it_is_disabled() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not torch.amp.GradScaler().is_enabled()
    assert torch.amp.GradScaler("cookbook").is_enabled()
    assert torch.cookbook.amp.GradScaler().is_enabled()


def test_the_state_survives_a_checkpoint(tmp_path: Any) -> None:
    run = Run("cookbook")
    for gradient in (math.inf, 1.0):
        run.step(gradient)
    torch.save(run.scaler.state_dict(), tmp_path / "scaler.pt")
    again = Run("cookbook")
    again.scaler.load_state_dict(torch.load(tmp_path / "scaler.pt"))
    assert again.scaler.get_scale() == 512.0
    again.step(1.0)  # the second clean step in a row
    assert again.scaler.get_scale() == 1024.0


def test_gradients_on_two_devices_share_one_decision() -> None:
    """One flag a device, one decision: an infinity on either skips both."""
    for bad in (0, 1):
        weights = [torch.nn.Parameter(torch.ones(3, device=f"cookbook:{i}")) for i in range(2)]
        optimizer = torch.optim.SGD(weights, lr=1.0)
        scaler = torch.amp.GradScaler("cookbook", init_scale=4.0)
        factor = [math.inf if i == bad else 1.0 for i in range(2)]
        total = sum((w * f).sum().to("cookbook:0") for w, f in zip(weights, factor, strict=True))
        scaler.scale(total).backward()
        scaler.unscale_(optimizer)
        flags = scaler._found_inf_per_device(optimizer)
        assert {str(d): f.item() for d, f in flags.items()} == {
            "cookbook:0": float(bad == 0),
            "cookbook:1": float(bad == 1),
        }
        scaler.step(optimizer)
        scaler.update()
        assert [w.tolist() for w in weights] == [[1.0] * 3] * 2
        assert scaler.get_scale() == 2.0
        optimizer.zero_grad()
        scaler.scale(sum(w.sum().to("cookbook:0") for w in weights)).backward()
        scaler.step(optimizer)
        assert [w.tolist() for w in weights] == [[0.0] * 3] * 2


def test_one_of_two_optimizers_skips() -> None:
    weights = [torch.nn.Parameter(torch.ones(3, device="cookbook")) for _ in range(2)]
    optimizers = [torch.optim.SGD([w], lr=1.0) for w in weights]
    scaler = torch.amp.GradScaler("cookbook", init_scale=4.0)
    losses = scaler.scale([(weights[0] * math.inf).sum(), weights[1].sum()])
    for loss in losses:
        loss.backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [w.tolist() for w in weights] == [[1.0] * 3, [0.0] * 3]
    assert scaler.get_scale() == 2.0


def test_clipping_sees_unscaled_gradients() -> None:
    run = Run("cookbook")
    run.scaler.scale((run.weight * 3.0).sum()).backward()
    run.scaler.unscale_(run.optimizer)
    assert run.weight.grad is not None
    assert run.weight.grad.tolist() == [3.0] * 6
    norm = torch.nn.utils.clip_grad_norm_([run.weight], 1.0)
    assert_close(norm.item(), math.sqrt(54.0))
    with pytest.raises(RuntimeError, match="already been called"):
        run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    assert_close(run.weight.grad.norm().item(), 1.0)


def test_half_precision_gradients_are_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="cookbook", dtype=torch.float16))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cookbook", init_scale=2.0)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)


# Training


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def trained(
    name: str, device: str, dtype: torch.dtype | None, steps: int, poisoned: tuple[int, ...] = ()
) -> tuple[list[float], list[float], list[bool]]:
    """Train; return losses, scales, and whether each step changed the parameters.

    With a dtype: mixed precision. A poisoned step has an infinite loss; without a dtype it is left out.
    """
    workload = models.make(name).to(device)
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=4, enabled=dtype is not None)
    first = next(workload.model.parameters())
    losses, scales, changed = [], [], []
    for step in range(steps):
        before = first.detach().cpu()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = workload.loss()
        if step in poisoned and dtype is not None:
            loss = loss * math.inf
        if step not in poisoned or dtype is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
        changed.append(not torch.equal(first.detach().cpu(), before))
    return [loss.item() for loss in losses], scales, changed


@pytest.mark.parametrize("name", ["mlp", "transformer", "recurrent"])
def test_mixed_precision_training(name: str, dtype: torch.dtype) -> None:
    poisoned = (5, 12, 13)
    with cookbook_backend.fallback.policy("error"):
        losses, scales, changed = trained(name, "cookbook", dtype, 24, poisoned)
    plain, _, _ = trained(name, "cpu", None, 24, poisoned)
    # 256, doubled after 4 clean steps in a row, halved by each poisoned one.
    expected, scale, clean = [], 256.0, 0
    for step in range(24):
        clean = 0 if step in poisoned else clean + 1
        if step in poisoned:
            scale /= 2
        elif clean == 4:
            scale, clean = scale * 2, 0
        expected.append(scale)
    assert scales == expected
    assert max(scales) > 256.0
    assert changed == [step not in poisoned for step in range(24)]
    good = [step for step in range(24) if step not in poisoned]
    assert plain[23] < 0.9 * plain[0]  # it learns something in 24 steps
    tolerance = 0.05 if dtype is torch.bfloat16 else 0.02
    assert_close([losses[i] for i in good], [plain[i] for i in good], rtol=tolerance, atol=tolerance)
    assert losses != plain


def test_a_small_gradient_survives_only_scaled() -> None:
    """Why the scale is there: 2^-26 is 0 in float16, whose smallest number is 2^-24."""
    found = {}
    for enabled in (False, True):
        weight = torch.nn.Parameter(torch.ones(2, 2, device="cookbook"))
        x = torch.full((1, 2), 2.0**-13, device="cookbook")
        scaler = torch.amp.GradScaler("cookbook", enabled=enabled)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        with torch.autocast("cookbook", dtype=torch.float16):
            loss = functional.linear(x, weight).sum() * 2.0**-13
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert weight.grad is not None
        found[enabled] = weight.grad.tolist()
    assert found[False] == [[0.0, 0.0], [0.0, 0.0]]
    assert found[True] == [[2.0**-26] * 2] * 2

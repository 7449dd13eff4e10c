# chapter 4
"""PyTorch's own tables of modules and optimizers: each entry on the device gives what it gives on the CPU."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gradients import weights
from same_as_cpu import mirror
from torch import Tensor
from torch.testing import assert_close
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

pytestmark = [pytest.mark.usefixtures("time_limit"), pytest.mark.filterwarnings("ignore")]

# Of an entry with many inputs this many, spread over all of them: attention has 64 for each mode.
INPUTS = 6
# Their entries pass random samples in float64, whatever dtype is asked for.
IN_DOUBLE = ("FractionalMaxPool2d", "FractionalMaxPool3d")


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Replace each tensor in nested containers; one that occurs twice is replaced by one tensor, as attention asks."""
    made: dict[int, Tensor] = {}

    def visit(item: Any) -> Any:
        if isinstance(item, Tensor):
            if id(item) not in made:
                made[id(item)] = function(item)
            return made[id(item)]
        if isinstance(item, dict):
            return {key: visit(part) for key, part in item.items()}
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return type(item)(*(visit(part) for part in item))
        return type(item)(visit(part) for part in item) if isinstance(item, list | tuple) else item

    return visit(value)


def all_tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def with_gaps(tensor: Tensor) -> Tensor:
    """Return the same values with a foreign element after each."""
    if tensor.dim() == 0 or tensor.numel() < 2:
        return tensor
    return torch.repeat_interleave(tensor.detach(), 2, dim=-1)[..., ::2].requires_grad_(tensor.requires_grad)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def compare(info: ModuleInfo, given: ModuleInput, training: bool, gaps: bool) -> None:
    """Run forward and backward on both devices; compare outputs, gradients, strides and buffers."""
    assert given.forward_input is not None
    torch.manual_seed(1)
    dtype = torch.float64 if info.module_cls.__name__ in IN_DOUBLE else torch.float32
    cpu = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).train(training).to(dtype)
    inputs = (given.forward_input.args, given.forward_input.kwargs)
    if "Lazy" in info.name:  # its parameters get their values, which are random, in the first call
        cpu(*inputs[0], **inputs[1])
    ours = copy.deepcopy(cpu)
    ours.to("cookbook")
    if gaps:
        inputs = map_tensors(inputs, with_gaps)
    on_cpu = map_tensors(inputs, leaf)
    on_device = map_tensors(on_cpu, lambda tensor: mirror(tensor.detach()).requires_grad_(tensor.requires_grad))
    expected = all_tensors(cpu(*on_cpu[0], **on_cpu[1]))
    actual = all_tensors(ours(*on_device[0], **on_device[1]))
    assert [(t.shape, t.stride(), t.dtype) for t in actual] == [(t.shape, t.stride(), t.dtype) for t in expected]
    for a, b in zip(actual, expected, strict=True):
        assert a.device.type == "cookbook"
        assert a.requires_grad == b.requires_grad
        assert_close(a.detach().cpu(), b.detach(), equal_nan=True)
    for outputs in (expected, actual):
        wanted = [t for t in outputs if t.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [weights(t.detach()) for t in wanted])
    leaves = zip([*all_tensors(on_device), *ours.parameters()], [*all_tensors(on_cpu), *cpu.parameters()], strict=True)
    for a, b in leaves:
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            assert a.grad.stride() == b.grad.stride()
            assert_close(a.grad.cpu(), b.grad, equal_nan=True)
    for a, b in zip(ours.buffers(), cpu.buffers(), strict=True):
        assert_close(a.cpu(), b)


def inputs_of(info: ModuleInfo, training: bool) -> list[ModuleInput]:
    torch.manual_seed(0)
    dtype = torch.float64 if info.module_cls.__name__ in IN_DOUBLE else torch.float32
    given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    return list(given[:: max(1, len(given) // INPUTS)])


@pytest.fixture(autouse=True)
def single_precision() -> Iterator[None]:
    """The tables are made for double precision by default, which importing them sets."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_every_module_equals_the_cpus(info: ModuleInfo) -> None:
    compared = 0
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for gaps in (False, True):
            for given in inputs_of(info, training):
                if gaps and info.name == "nn.CTCLoss" and given.forward_input.args[1].dim() == 1:
                    continue  # the CPU reads targets with gaps as if they had none: pytorch/pytorch#115585
                compare(info, given, training, gaps)
                compared += 1
    assert compared >= 2


def test_the_cpu_is_wrong_where_it_is_not_compared() -> None:
    """CTC with one row of targets that has gaps; the day PyTorch mends it, `continue` above can go."""
    torch.manual_seed(0)
    scores, targets = torch.randn(50, 3, 15).log_softmax(-1), torch.randint(1, 15, (75,))
    lengths = ((50, 50, 50), (30, 25, 20))
    right = torch.nn.functional.ctc_loss(scores, targets, *lengths, reduction="none")
    gaps = with_gaps(targets)
    ours = torch.nn.functional.ctc_loss(mirror(scores), mirror(gaps), *lengths, reduction="none")
    assert_close(ours.cpu(), right)
    assert not torch.allclose(torch.nn.functional.ctc_loss(scores, gaps, *lengths, reduction="none"), right)


def variants(info: OptimizerInfo) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the options on the CPU and on the device: each description plain, batched, fused and capturable."""
    extra: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {})]
    extra += [({kind: True}, {kind: True}) for kind in info.supported_impls if kind in ("foreach", "fused")]
    if "capturable" in inspect.signature(info.optim_cls).parameters:
        # On the CPU there is nothing to capture: the same algorithm without it.
        extra += [({"foreach": batched}, {"foreach": batched, "capturable": True}) for batched in (False, True)]
    for given in info.optim_inputs_func(device="cpu"):
        for on_cpu, on_device in extra:
            if not (given.kwargs.get("differentiable") and "fused" in on_cpu):
                options = {key: value for key, value in given.kwargs.items() if key != "capturable"}
                yield {**options, **on_cpu}, {**given.kwargs, **on_device}


def three_steps(info: OptimizerInfo, options: dict[str, Any], device: str) -> list[Tensor]:
    """Train parameters of five shapes; return them and the optimizer's state, after saving and loading it again."""
    shapes = ((4, 3), (5, 5)) if info.optim_cls is torch.optim.Muon else ((4, 3), (7,), (2, 3, 3), (5, 5), ())
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
    gradients = [[torch.randn(shape, generator=generator).to(device) for shape in shapes] for _ in range(3)]
    options = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in options.items()}
    optimizer = info.optim_cls(parameters, **options)
    for number in range(3):

        def closure(number: int = number) -> Tensor:
            for parameter, gradient in zip(parameters, gradients[number], strict=True):
                parameter.grad = gradient * parameter.detach() if info.step_requires_closure else gradient.clone()
            return torch.stack([p.detach().square().sum() for p in parameters]).sum()

        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    states = [value for p in parameters for _, value in sorted(optimizer.state[p].items(), key=lambda pair: pair[0])]
    return [t.detach().cpu() for t in (*parameters, *states) if isinstance(t, Tensor)]


DENSE = [info for info in optim_db if not info.only_supports_sparse_grads]


@pytest.mark.parametrize("info", DENSE, ids=lambda info: info.optim_cls.__name__)
def test_every_optimizer_equals_the_cpus(info: OptimizerInfo) -> None:
    compared = 0
    for on_cpu, on_device in variants(info):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = three_steps(info, on_cpu, "cpu")
            except (RuntimeError, ValueError) as error:  # these options do not go together, on the device neither
                with pytest.raises(type(error)):
                    three_steps(info, on_device, "cookbook")
                continue
            actual = three_steps(info, on_device, "cookbook")
        assert len(actual) == len(expected) > 1, on_device
        for a, b in zip(actual, expected, strict=True):
            assert_close(a, b, msg=lambda text, options=on_device: f"{options}: {text}")
        compared += 1
    assert compared >= 1


def test_optimizers_of_sparse_gradients_are_out_of_reach() -> None:  # B39: the gradient is refused, not the step
    assert {info.optim_cls for info in optim_db} - {info.optim_cls for info in DENSE} == {torch.optim.SparseAdam}
    with pytest.raises(NotImplementedError, match="stores dense tensors only"):
        torch.ones(2, 2, device="cookbook").to_sparse()

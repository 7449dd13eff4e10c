# chapter 3
"""The CPU fallback: right values, an honest report, a policy, and the operators that must never fall back."""

from __future__ import annotations

import warnings

import models
import pytest
import torch
from conftest import Run

import cookbook_backend
from cookbook_backend import fallback

_C = cookbook_backend._C


@pytest.fixture(autouse=True)
def clean_report() -> None:
    fallback.set_policy("allow")
    fallback.reset()


def test_an_operator_without_a_kernel_runs_on_the_cpu(device: torch.device) -> None:
    x = torch.linspace(-0.9, 0.9, 12).reshape(3, 4).T
    actual = torch.special.erfcx(x.to(device))
    assert actual.device == device
    assert torch.equal(actual.cpu(), torch.special.erfcx(x))
    assert actual.stride() == torch.special.erfcx(x).stride()


def test_the_report_counts_calls_and_bytes(device: torch.device) -> None:
    x = torch.ones(100, device=device)
    for _ in range(3):
        torch.special.erfcx(x)
    (record,) = fallback.report()
    assert record.name == "aten::special_erfcx.out"
    assert record.calls == 3
    assert record.bytes_to_cpu == 3 * 800  # the out tensor travels too: nothing tells that it will be overwritten
    assert record.bytes_to_device == 3 * 400
    assert "aten::special_erfcx.out" in fallback.format_report()
    fallback.reset()
    assert fallback.report() == []


def test_out_and_in_place_reach_the_devices_tensor(device: torch.device) -> None:
    x = torch.tensor([0.1, 0.2], device=device)
    out = torch.empty(2, device=device)
    pointer = out.data_ptr()
    torch.special.erfcx(x, out=out)
    assert out.data_ptr() == pointer
    assert torch.equal(out.cpu(), torch.special.erfcx(x.cpu()))
    y = x.clone()
    view = y[:1]
    y.erfinv_()
    assert torch.equal(y.cpu(), x.cpu().erfinv())
    assert torch.equal(view.cpu(), y.cpu()[:1])


def test_policy_error_refuses_and_names_the_operator() -> None:
    x = torch.ones(2, device="cookbook")
    with fallback.policy("error"), pytest.raises(NotImplementedError, match=r"aten::special_erfcx.*fallback policy"):
        torch.special.erfcx(x)
    assert fallback.report() == []
    torch.special.erfcx(x)
    assert fallback.report()[0].calls == 1


def test_policy_warn_says_it_once_per_operator() -> None:
    x = torch.ones(2, device="cookbook")
    with fallback.policy("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.special.erfcx(x)
    assert [str(w.message)[:25] for w in caught] == ["'aten::special_erfcx.out'"]


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="expected one of 'allow', 'warn', 'error', got 'never'"):
        fallback.set_policy("never")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("optimizer", list(models.OPTIMIZERS))
def test_nothing_of_a_training_step_falls_back(name: str, optimizer: str) -> None:
    workload = models.make(name).to("cookbook")
    with fallback.policy("error"):
        models.train(workload, optimizer, 2)
    assert fallback.report() == []


def schemas_that_return_views() -> list[torch._C.FunctionSchema]:
    def is_view(schema: torch._C.FunctionSchema) -> bool:
        return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)

    return [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::") and is_view(s)]


# Views that no backend registers: of nested, sparse or batched tensors, whose dispatch keys are others.
OTHER_LAYOUTS = {
    "aten::_nested_view_from_buffer", "aten::_nested_view_from_jagged", "aten::_nested_get_values", "aten::values",
    "aten::indices", "aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices",
    "aten::_values", "aten::_indices", "aten::_sparse_broadcast_to", "aten::_test_autograd_multiple_dispatch_view",
}  # fmt: skip


def test_no_view_operator_reaches_the_fallback() -> None:
    """Every operator of the registry whose result aliases an argument has a kernel of its own or a composite one."""
    schemas = schemas_that_return_views()
    assert len(schemas) > 60
    missing = set()
    for schema in schemas:
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        try:
            table = torch._C._dispatch_dump_table(name)
        except RuntimeError:  # TorchScript's own operators are not in the dispatcher
            continue
        # No line: the operator has no kernel of any kind to dispatch to.
        line = next((row for row in table.splitlines() if row.startswith("PrivateUse1:")), "")
        if "fallback" in line and schema.name not in OTHER_LAYOUTS:
            missing.add(name)
    assert missing == set()


def test_a_view_that_would_fall_back_is_an_error() -> None:
    x = torch.zeros(4, device="cookbook")
    with pytest.raises((NotImplementedError, RuntimeError), match=r"(?i)view|nested"):
        torch.ops.aten._nested_view_from_buffer(x, torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_refused_by_name(layout: torch.layout) -> None:  # B39
    dense = torch.eye(3, device="cookbook")
    with pytest.raises((NotImplementedError, RuntimeError), match="(?i)sparse"):
        dense.to_sparse(layout=layout).to_dense()
    assert dense.sum().item() == 3  # and the device goes on


def test_quantized_tensors_are_refused_by_name() -> None:
    with pytest.raises((NotImplementedError, RuntimeError), match="(?i)quantize"):
        torch.quantize_per_tensor(torch.ones(2, device="cookbook"), 0.1, 0, torch.qint8)


def test_lists_are_written_back(device: torch.device) -> None:  # B43
    tensors = [torch.tensor([4.0, 9.0], device=device), torch.tensor([16.0], device=device)]
    torch._foreach_lgamma_(tensors)
    expected = [torch.tensor([4.0, 9.0]), torch.tensor([16.0])]
    torch._foreach_lgamma_(expected)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(tensors, expected, strict=True))


def test_every_registration_meets_an_operator() -> None:
    """PyTorch accepts a kernel for a name that is in no schema, and never calls it."""
    assert torch._C._dispatch_find_dangling_impls() == []


def test_fallback_inside_backward(device: torch.device) -> None:
    x = torch.tensor([0.5, 0.25], device=device, requires_grad=True)
    torch.special.erfcx(torch.erfinv(x)).sum().backward()
    y = torch.tensor([0.5, 0.25], requires_grad=True)
    torch.special.erfcx(torch.erfinv(y)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), y.grad)


def test_random_operators_fall_back_with_the_cpus_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="cookbook").cpu(), expected)


# if COOKBOOK_CHAPTER >= 4
# The device has a generator of its own now.
del test_random_operators_fall_back_with_the_cpus_generator
# endif

EXIT = """
    import os, threading, torch, cookbook_backend
    x = torch.randn(2, 8, device="cookbook", requires_grad=True)
    if {worst}:
        # The engine's thread at idle priority on one core: preempted the moment it wakes the caller.
        os.sched_setaffinity(0, {{max(os.sched_getaffinity(0))}})
        x.register_hook(
            lambda g: os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0)))
    {body}
"""
BODIES = {
    "backward": "(x * x).sum().backward()",
    "in flight": "cookbook_backend._C.inject_fault(0, 'delay', 1, 30_000); [x * x for _ in range(200)]",
    "both devices": "y = x.detach().to('cookbook:1').requires_grad_(); (x * x).sum().backward(); (y * y).sum().backward()",
    "python thread": "t = threading.Thread(target=lambda: (x * x).sum().backward()); t.start()",
    "exit handler": "import atexit; atexit.register(lambda: (x * x).sum().backward())",
}


@pytest.mark.parametrize("worst", [False, True])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_exit_after_backward(run_python: Run, body: str, worst: bool) -> None:  # B52
    for _ in range(2):
        done = run_python(EXIT.format(worst=worst, body=body))
        assert done.returncode == 0, done.stderr

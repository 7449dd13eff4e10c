# chapter 2
"""LSTM and GRU, whose cells no other device of a CPU build has: results and gradients against the unfused ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from gradients import never_waiting, weights
from torch import Tensor, nn
from torch.testing import assert_close

import cookbook_backend

TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-9, 1e-10), torch.bfloat16: (5e-2, 5e-2)}


def run(module: nn.Module, *arguments: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return all results and the gradients of all parameters, on the CPU."""
    flat: list[Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            flat.append(value)
        else:
            for item in value:
                collect(item)

    collect(module(*arguments))
    torch.autograd.backward(flat, [weights(r) for r in flat])
    grads = {name: p.grad.cpu() for name, p in module.named_parameters() if p.grad is not None}
    return [r.detach().cpu() for r in flat], grads


def compare(module: nn.Module, *arguments: Any) -> None:
    dtype = next(module.parameters()).dtype
    rtol, atol = TOLERANCE[dtype]
    on_device = copy.deepcopy(module).to("cookbook")
    moved = torch.utils._pytree.tree_map_only(Tensor, lambda t: t.to("cookbook"), arguments)
    expected, expected_grads = run(module, *arguments)
    actual, actual_grads = run(on_device, *moved)
    assert_close(actual, expected, rtol=rtol, atol=atol)
    assert actual_grads.keys() == expected_grads.keys()
    assert len(actual_grads) > 0
    for name, grad in expected_grads.items():
        assert_close(actual_grads[name], grad, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_dtypes_and_bias(kind: type[nn.RNNBase], dtype: torch.dtype, bias: bool) -> None:
    compare(kind(5, 7, bias=bias, dtype=dtype), torch.randn(4, 3, 5, dtype=dtype))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "options",
    [{"num_layers": 2}, {"bidirectional": True}, {"batch_first": True, "num_layers": 2, "bidirectional": True}],
    ids=str,
)
def test_layers_and_directions(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    compare(kind(5, 6, **options), torch.randn(3, 4, 5))


def test_an_lstm_with_a_projection() -> None:
    compare(nn.LSTM(5, 6, proj_size=3), torch.randn(4, 2, 5))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_with_a_state(kind: type[nn.RNNCellBase]) -> None:
    state: Any = torch.randn(3, 6)
    compare(kind(5, 6), torch.randn(3, 5), (state, torch.randn(3, 6)) if kind is nn.LSTMCell else state)


@pytest.mark.parametrize("used", [0, 1])
def test_a_gradient_through_one_output_of_a_cell_only(used: int) -> None:
    cell = nn.LSTMCell(5, 6, dtype=torch.float64)
    on_device = copy.deepcopy(cell).to("cookbook")
    x = torch.randn(3, 5, dtype=torch.float64)
    cell(x)[used].sum().backward()
    on_device(x.to("cookbook"))[used].sum().backward()
    for ours, theirs in zip(on_device.parameters(), cell.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_gradients_are_those_of_finite_differences(kind: type[nn.RNNCellBase]) -> None:
    cell = kind(2, 3, dtype=torch.float64).to("cookbook")
    x = torch.randn(2, 2, dtype=torch.float64).to("cookbook").requires_grad_()
    assert torch.autograd.gradcheck(cell, (x,))


def test_an_empty_batch() -> None:
    lstm = nn.LSTM(5, 6).to("cookbook")
    output, _ = lstm(torch.randn(4, 0, 5).to("cookbook"))
    assert output.shape == (4, 0, 6)


def test_wrong_gates_raise_on_the_host() -> None:
    gates, state = torch.ones(2, 8, device="cookbook"), torch.ones(2, 2, device="cookbook")
    with pytest.raises(RuntimeError, match="expected gates of 4 times the state's width 3"):
        torch.ops.aten._thnn_fused_lstm_cell(gates, gates, torch.ones(2, 3, device="cookbook"))
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.ops.aten._thnn_fused_lstm_cell(gates.long(), gates.long(), state.long())


def test_a_cell_is_one_launch_and_no_wait() -> None:
    gates, state = torch.ones(2, 8, device="cookbook"), torch.ones(2, 2, device="cookbook")
    with never_waiting() as counters:
        torch.ops.aten._thnn_fused_lstm_cell(gates, gates, state)
    assert counters["launches"] == 1
    cookbook_backend.synchronize()

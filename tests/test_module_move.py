# chapter 2
"""A module that moves keeps its parameters: what an optimizer, tied weights and `.data =` rely on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import cookbook_backend

MOVES = ("cookbook:0", "cookbook:1", "cpu", "cookbook:1")


@pytest.mark.parametrize("target", ["cookbook:0", "cookbook:1"])
def test_an_optimizer_made_before_the_move_trains_the_model(target: str) -> None:
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    ours = copy.deepcopy(cpu)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (cpu, ours)]
    ours.to(target)
    x = torch.randn(16, 4)
    losses: list[list[float]] = []
    for model, optimizer, data in ((cpu, optimizers[0], x), (ours, optimizers[1], x.to(target))):
        losses.append([])
        for _ in range(10):
            optimizer.zero_grad()
            loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


def test_parameters_gradients_and_ties_survive_each_move() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.register_buffer("seen", torch.arange(3.0))
    model(torch.ones(2, 3)).sum().backward()
    before = dict(model.named_parameters())
    values = {name: p.detach().clone() for name, p in before.items()}
    grads = {name: p.grad.clone() for name, p in before.items() if p.grad is not None}
    for device in MOVES:
        model.to(device)
        assert model[1].weight is model[0].weight
        assert str(model.seen.device) == device
        for name, parameter in model.named_parameters():
            assert parameter is before[name]
            assert parameter.is_leaf
            assert parameter.requires_grad
            assert parameter.grad is not None
            assert str(parameter.device) == str(parameter.grad.device) == device
            assert torch.equal(parameter.detach().cpu(), values[name])
            assert torch.equal(parameter.grad.cpu(), grads[name])
        model(torch.ones(2, 3, device=device)).sum().backward()  # a gradient accumulator of the new device
        for name, parameter in model.named_parameters():
            grads[name] = parameter.grad.cpu().clone()


def test_a_move_with_a_dtype() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight
    model.to("cookbook", torch.bfloat16)
    assert model.weight is weight
    assert (weight.device.type, weight.dtype) == ("cookbook", torch.bfloat16)


def test_data_takes_a_tensor_of_either_device() -> None:
    x = torch.zeros(2)
    alias = x
    x.data = torch.ones(3, device="cookbook:1")
    assert alias.device == torch.device("cookbook:1")
    assert (alias + 1).tolist() == [2.0] * 3
    x.data = torch.full((1,), 5.0)
    assert (alias + 1).tolist() == [6.0]


def compatible(a: Tensor, b: Tensor) -> bool:
    return torch._has_compatible_shallow_copy_type(a, b)


def test_what_is_no_plain_tensor_stays_incompatible() -> None:
    ours, cpu = torch.ones(2, device="cookbook"), torch.ones(2)
    assert compatible(ours, cpu)
    assert compatible(cpu, ours)
    assert compatible(ours, ours)
    for other in (torch.ones(2).to_sparse(), torch.ones(2, 2).to_sparse_csr(), torch.ones(2, device="meta")):
        assert not compatible(ours, other)
        assert not compatible(other, ours)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        ours.data = torch.ones(2).to_sparse()
    assert cookbook_backend.device_count() == 2

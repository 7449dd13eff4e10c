# chapter 2
"""The four models train on the device as on the CPU, natively, and without a wait in the step."""

from __future__ import annotations

import collections

import models
import pytest
import torch

import cookbook_backend

_C = cookbook_backend._C


def clean_run(name: str, optimizer: str, device: torch.device, steps: int) -> tuple[list[float], dict[str, int]]:
    """Losses on the device, and what the steps after the first have counted there."""
    workload = models.make(name).to(device)
    first = models.train(workload, optimizer, 0)
    torch.accelerator.synchronize(device)
    _C.reset_counters(device.index)
    losses = first + models.train(workload, optimizer, steps)
    counters = dict(_C.counters(device.index))
    return [loss.item() for loss in losses], counters


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("optimizer", ["sgd-foreach", "adam-foreach", "adamw-foreach"])
def test_losses_equal_the_cpus(name: str, optimizer: str, device: torch.device) -> None:
    expected = [loss.item() for loss in models.train(models.make(name), optimizer, 20)]
    actual, _ = clean_run(name, optimizer, device, 20)
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=2e-3, atol=1e-5)
    torch.testing.assert_close(torch.tensor(actual[:3]), torch.tensor(expected[:3]))


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("optimizer", list(models.OPTIMIZERS))
def test_a_step_never_waits(name: str, optimizer: str) -> None:
    _, counters = clean_run(name, optimizer, torch.device("cookbook:0"), 2)
    assert counters["synchronizations"] == 0
    assert counters["bytes_device_to_host"] == 0
    assert counters["launches"] > 0


@pytest.mark.parametrize("name", models.MODELS)
def test_gradients_equal_the_cpus(name: str, device: torch.device) -> None:
    cpu, on_device = models.make(name), models.make(name).to(device)
    cpu.loss().backward()
    on_device.loss().backward()
    for (key, expected), (_, actual) in zip(
        cpu.model.named_parameters(), on_device.model.named_parameters(), strict=True
    ):
        assert expected.grad is not None
        assert actual.grad is not None, key
        assert actual.grad.stride() == expected.grad.stride(), key
        torch.testing.assert_close(
            actual.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_launches_of_a_step_are_a_fixed_number() -> None:
    counts: collections.Counter[int] = collections.Counter()
    for _ in range(2):
        _, counters = clean_run("mlp", "sgd-foreach", torch.device("cookbook:0"), 3)
        counts[counters["launches"]] += 1
    assert len(counts) == 1

# chapter 2
"""Turn a function of tensors into one that returns its results and the gradients of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from same_as_cpu import tensors
from torch import Tensor

import cookbook_backend


def weights(like: Tensor) -> Tensor:
    """Return an uneven incoming gradient, equal on every device; strides as the tensor's own."""
    values = torch.linspace(-1, 1, max(like.numel(), 1), dtype=torch.float64)[: like.numel()]
    return torch.empty_like(like).copy_(values.reshape(like.shape).to(like.dtype))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result is the original one's, and the gradient of each floating-point argument."""

    def run(*arguments: Any) -> Any:
        leaves = [
            a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
        ]
        results = [r for r in tensors(function(*leaves)) if r.requires_grad]
        wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        grads = torch.autograd.grad(results, wanted, [weights(r) for r in results], allow_unused=True)
        return [r.detach() for r in results], [g for g in grads if g is not None]

    return run


@contextmanager
def never_waiting() -> Iterator[dict[str, int]]:
    """Fail if the device was waited for inside; the counters are in the dictionary afterwards."""
    cookbook_backend.synchronize()
    cookbook_backend._C.reset_counters(0)
    counters: dict[str, int] = {}
    yield counters
    counters.update(cookbook_backend._C.counters(0))
    assert counters["synchronizations"] == 0, counters
    assert counters["bytes_device_to_host"] == 0, counters

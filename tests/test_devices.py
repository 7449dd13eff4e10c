# chapter 4
"""Everything an operator does happens on its tensors' device, forward and backward; indices that do not exist are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from conftest import Run
from torch import Tensor
from torch.nn import functional

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")

# Native kernels, composites, the fallback, random numbers, lists, indices.
FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 1,
    "sort": lambda x: x.sort()[0],
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 3, True),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x]),
    "foreach": lambda x: torch._foreach_add([x, x], 1.0)[1],
    "index with a CPU tensor": lambda x: x[torch.tensor([1, 2])],
    "where": lambda x: torch.where(x > 0, x, x),
    "nonzero": lambda x: x.nonzero(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "randn_like": torch.randn_like,
    "randperm": lambda x: torch.randperm(5, device=x.device),
    "dropout": lambda x: functional.dropout(x),
    "fft": torch.fft.fft,
    "svd": lambda x: torch.linalg.svd(x)[0],
    "index_put": lambda x: x.index_put((torch.tensor([1], device=x.device),), torch.tensor(3.0)),
    "to": lambda x: x.to(torch.float16),
    "cdist": lambda x: torch.cdist(x, x),
    "conv": lambda x: functional.conv1d(x[None], x[:, :, None]),
    "new_full": lambda x: x.new_full((2,), 3.0),
}

BACKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "min": lambda x: x.min(dim=1)[0],
    "topk": lambda x: x.topk(2)[0],
    "max": lambda x: x.max(),
    "sort": lambda x: x.sort()[0],
    "slice": lambda x: x[:, 1:],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "index_select": lambda x: x.index_select(0, torch.tensor([1], device=x.device)),
    "gather": lambda x: x.gather(1, torch.zeros(4, 1, dtype=torch.long, device=x.device)),
    "cumsum": lambda x: x.cumsum(0),
    "median": lambda x: x.median(1)[0],
    "svdvals": torch.linalg.svdvals,
    "prod": lambda x: x.prod(),
    "norm": lambda x: x.norm(),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "mask": lambda x: x[x > 0],
    "std": lambda x: x.std(),
    "pad": lambda x: functional.pad(x, (1, 1)),
    "dropout": lambda x: functional.dropout(x),
}


@pytest.fixture
def matrix() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 4).to("cookbook:1")


def assert_device_0_was_left_alone(before: int) -> None:
    cookbook_backend.synchronize(1)
    counters = _C.counters(0)
    assert counters["launches"] == counters["bytes_device_to_host"] == counters["bytes_host_to_device"] == 0, counters
    assert cookbook_backend.memory_allocated(0) == before
    assert cookbook_backend.current_device() == 0
    assert sum(_C.counters(1).values()) > 1  # the fallback copies and launches nothing; one is the synchronization


@pytest.mark.parametrize("name", FORWARD)
def test_forward_stays_on_the_tensors_device(name: str, matrix: Tensor) -> None:  # B05
    before = cookbook_backend.memory_allocated(0)
    for device in (0, 1):
        _C.reset_counters(device)
    assert FORWARD[name](matrix).device == matrix.device
    assert_device_0_was_left_alone(before)


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_stays_on_the_tensors_device(name: str, matrix: Tensor) -> None:  # B03, B08
    before = cookbook_backend.memory_allocated(0)
    for device in (0, 1):
        _C.reset_counters(device)
    x = matrix.requires_grad_()
    BACKWARD[name](x).sum().backward()
    assert x.grad is not None
    assert x.grad.device == x.device
    assert_device_0_was_left_alone(before)


@pytest.mark.parametrize("fails", [False, True])
def test_the_current_device_survives_operators_of_another(fails: bool) -> None:  # B07
    with cookbook_backend.device(1):
        x = torch.ones(2, 2, device="cookbook:0")
        if fails:
            with pytest.raises(RuntimeError):
                x @ torch.ones(3, device="cookbook:0")
        else:
            torch.linalg.svd(x.to(torch.float64))
        assert cookbook_backend.current_device() == 1
    assert cookbook_backend.current_device() == 0


NOWHERE: dict[str, Callable[[], object]] = {
    "ones": lambda: torch.ones(2, device="cookbook:9"),
    "of no bytes": lambda: torch.empty(0, device="cookbook:9"),
    "strided": lambda: torch.empty_strided((2,), (1,), device="cookbook:9"),
    "tensor": lambda: torch.tensor([1.0], device="cookbook:9"),
    "to": lambda: torch.ones(2).to("cookbook:9"),
    "to, from another device": lambda: torch.ones(2, device="cookbook").to("cookbook:9"),
    "pinned to": lambda: torch.ones(2).pin_memory().to("cookbook:9", non_blocking=True),
    "storage": lambda: torch.UntypedStorage(4, device="cookbook:9"),
    "generator": lambda: torch.Generator(device="cookbook:9"),
    "stream": lambda: torch.Stream("cookbook:9"),
    "current stream": lambda: cookbook_backend.current_stream(9),
    "module": lambda: torch.nn.Linear(1, 1, device="cookbook:9"),
    "random state": lambda: cookbook_backend.get_rng_state(9),
    "statistics": lambda: cookbook_backend.memory_stats(9),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_a_device_that_does_not_exist_is_named(name: str) -> None:  # B04
    with pytest.raises((RuntimeError, ValueError, AssertionError), match="(?i)(ordinal|index|device)[^0-9]*9"):
        NOWHERE[name]()
    assert torch.ones(2, device="cookbook").sum().item() == 2


def test_slices_and_copies_of_storages(device: torch.device) -> None:  # B30
    storage = torch.arange(8.0, device=device).untyped_storage()
    assert storage[0:4].device == device
    assert storage[0:4].data_ptr() == storage.data_ptr()
    assert bytes(storage.cpu()) == bytes(torch.arange(8.0).untyped_storage())
    copied = storage.clone()
    assert copied.device == device
    assert copied.data_ptr() != storage.data_ptr()
    assert not storage.is_pinned()


def test_an_operator_without_a_gradient_says_so() -> None:  # B53
    """PyTorch's answer, for your operators too: a warning and no gradient. `test_custom.py` registers one properly."""
    library = torch.library.Library("cookbook_test_b53", "DEF")
    library.define("twice(Tensor x) -> Tensor")

    def twice(x: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return x * 2

    library.impl("twice", twice, "PrivateUse1")
    x = torch.ones(2, device="cookbook", requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ops.cookbook_test_b53.twice(x).sum().backward()
    assert x.grad is None
    assert any("autograd kernel was not registered" in str(warning.message) for warning in caught)


def test_parts_of_pytorch_may_be_imported_before_or_after(run_python: Run) -> None:  # B12
    parts = "import torch.utils.benchmark, torch.distributed, torch._dynamo"
    for script in (f"{parts}\nimport cookbook_backend", f"import cookbook_backend\n{parts}"):
        done = run_python(
            f"{script}\nimport torch\nx = torch.ones(2, device='cookbook')\n"
            "print(torch.utils.benchmark.Timer('x + 1', globals={'x': x}).timeit(2).number_per_run, x.sum().item())",
            TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        )
        assert done.stdout == "2 2.0\n", done.stderr


def test_kernels_without_the_python_side(run_python: Run) -> None:  # B01
    """The library alone gives no device of the name; importing the package afterwards does, in the same process."""
    done = run_python(
        f"""
        import torch
        torch.ops.load_library({_C.__file__!r})
        try:
            torch.ones(2, device="cookbook")
        except RuntimeError as error:
            print("privateuseone device type" in str(error))
        import cookbook_backend
        print(torch.ones(2, device="cookbook").sum().item())
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout == "True\n2.0\n", done.stderr


def test_a_lazy_module_may_move_before_its_first_call() -> None:
    module = torch.nn.Sequential(torch.nn.LazyConv2d(3, 2), torch.nn.Flatten(), torch.nn.LazyLinear(2)).to("cookbook:1")
    assert module(torch.ones(1, 2, 4, 4, device="cookbook:1")).shape == (1, 2)
    assert {p.device for p in module.parameters()} == {torch.device("cookbook:1")}

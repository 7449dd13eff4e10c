# chapter 2
"""Indexing, gathering, scattering, joining, sorting and ranges against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import with_gradients
from same_as_cpu import DTYPES, check
from torch import Tensor
from torch.nn import functional
from torch.testing import make_tensor

import cookbook_backend

I = torch.tensor  # noqa: E741
ROWS, PAIRS = I([2, 0, 1, 2]), I([[0, 1], [2, 0], [1, 1]])
MASK = I([[True, False, True, True, False]] * 3)
MASK_ROWS = I([True, False, True])


def assign(x: Tensor, key: Any, value: Any) -> Tensor:
    x[key] = value
    return x


# Name -> function of x: (3, 5), of another x of the same shape.
READS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "index": lambda x, y: x[ROWS.to(x.device)],
    "index second": lambda x, y: x[:, ROWS.to(x.device)],
    "index both": lambda x, y: x[ROWS.to(x.device), ROWS.to(x.device)],
    "index matrix": lambda x, y: x[PAIRS.to(x.device)],
    "index apart": lambda x, y: x[None].expand(2, 3, 5)[I([0, 1]).to(x.device), :, I([1, 2]).to(x.device)],
    "index transposed": lambda x, y: x.t()[ROWS.to(x.device)],
    "index int32": lambda x, y: x[ROWS.int().to(x.device)],
    "index from the CPU": lambda x, y: x[ROWS],
    "index none": lambda x, y: x[I([], dtype=torch.long).to(x.device)],
    "mask": lambda x, y: x[MASK.to(x.device)],
    "mask rows": lambda x, y: x[MASK_ROWS.to(x.device)],
    "mask columns": lambda x, y: x[:, MASK[0].to(x.device)],
    "masked_select": lambda x, y: x.masked_select(MASK.to(x.device)),
    "index_select": lambda x, y: x.index_select(1, ROWS.to(x.device)),
    "index_select transposed": lambda x, y: x.t().index_select(0, ROWS.to(x.device)),
    "gather": lambda x, y: x.gather(1, PAIRS.to(x.device)),
    "take_along_dim": lambda x, y: x.take_along_dim(PAIRS.to(x.device), 1),
    "scatter": lambda x, y: x.scatter(1, I([[0, 1], [2, 0], [1, 3]]).to(x.device), y[:, :2]),
    "scatter value": lambda x, y: x.scatter(1, PAIRS.to(x.device), 1),
    "scatter_add": lambda x, y: x.scatter_add(1, PAIRS.to(x.device), y[:, :2]),
    "scatter_reduce sum": lambda x, y: x.scatter_reduce(1, PAIRS.to(x.device), y[:, :2], "sum"),
    "scatter_reduce mean": lambda x, y: x.scatter_reduce(1, PAIRS.to(x.device), y[:, :2], "mean"),
    "scatter_reduce amax": lambda x, y: x.scatter_reduce(1, PAIRS.to(x.device), y[:, :2], "amax", include_self=False),
    "index_add": lambda x, y: x.index_add(0, I([0, 0, 2]).to(x.device), y),
    "index_copy": lambda x, y: x.index_copy(0, I([0, 1, 2]).to(x.device), y),
    "index_fill": lambda x, y: x.index_fill(1, I([0, 3]).to(x.device), 1),
    "index_put": lambda x, y: x.clone().index_put((I([0, 2]).to(x.device),), y[0]),
    "index_put accumulate": lambda x, y: x.clone().index_put((I([0, 0]).to(x.device),), y[:2], accumulate=True),
    "put mask": lambda x, y: assign(x.clone(), MASK_ROWS.to(x.device), y[:2]),
    "put mask value": lambda x, y: assign(x.clone(), MASK.to(x.device), 1),
    "put both": lambda x, y: assign(x.clone(), (ROWS.to(x.device), 1), 1),
    "cat": lambda x, y: torch.cat([x, y]),
    "cat columns": lambda x, y: torch.cat([x, y.t().contiguous().t()], 1),
    "cat one dtype more": lambda x, y: torch.cat([x, y.float()]),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "triu": lambda x, y: x.triu(1),
    "tril": lambda x, y: x.t().tril(-1),
    "flip": lambda x, y: x.flip(0, 1),
    "roll": lambda x, y: x.roll((1, 2), (0, 1)),
    "roll flat": lambda x, y: x.roll(3),
    "repeat": lambda x, y: x.repeat(2, 1, 2),
    "repeat_interleave": lambda x, y: x.repeat_interleave(2, 1),
    "pad": lambda x, y: functional.pad(x, (1, 2)),
    "select": lambda x, y: x.select(1, 2) + x[:, 1:4:2].sum(1),
    "diagonal": lambda x, y: x[:, :3].diagonal(1),
    "unbind": lambda x, y: x.unbind(0),
    "sort": lambda x, y: x.sort(dim=1),
    "sort descending": lambda x, y: x.t().sort(dim=0, descending=True, stable=True),
    "topk": lambda x, y: x.topk(3),
    "nonzero": lambda x, y: x.nonzero(),
    "argsort": lambda x, y: x.argsort(dim=0, stable=True),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint16, torch.complex32], ids=str)
def test_every_dtype_gives_the_cpus_result_or_error(name: str, dtype: torch.dtype) -> None:
    source = torch.complex64 if dtype == torch.complex32 else torch.int32 if dtype == torch.uint16 else dtype
    x, y = (make_tensor(3, 5, dtype=source, device="cpu", low=0, high=4).to(dtype) for _ in range(2))
    succeeded = check(READS[name], x, y)
    assert succeeded or dtype not in (torch.float32, torch.float64)


@pytest.mark.parametrize("name", [n for n in READS if n not in ("nonzero", "argsort")])
def test_gradients(name: str) -> None:
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    assert check(with_gradients(READS[name]), x, y)


WAITS = {
    "mask", "mask rows", "mask columns", "masked_select", "nonzero", "index from the CPU",
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_only_an_output_whose_size_is_data_waits(name: str) -> None:
    # Whatever the functions bring from the CPU is made before, so that its copy does not count.
    x, y = torch.randn(3, 5).to("cookbook"), torch.randn(3, 5).to("cookbook")
    kept: dict[tuple[torch.dtype, str], Tensor] = {}
    real = Tensor.to

    def cached(self: Tensor, *arguments: Any) -> Tensor:
        if self.device.type != "cpu" or arguments != (x.device,):
            return real(self, *arguments)
        key = (self.dtype, str(self.tolist()))
        if key not in kept:
            kept[key] = real(self, *arguments)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "to", cached)
        READS[name](x, y)
        cookbook_backend.synchronize()
        cookbook_backend._C.reset_counters(0)
        READS[name](x, y)
        waited = cookbook_backend._C.counters(0)["synchronizations"]
    assert (waited > 0) == (name in WAITS), waited


@pytest.mark.parametrize(
    "arguments", [(5,), (1, 9, 2), (0.0, 1.0, 0.25), (5, 0, -2), (0,), (2**53, 2**53 + 3)], ids=str
)
@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=str)
def test_ranges(arguments: tuple[float, ...], dtype: torch.dtype | None) -> None:
    check(lambda like: torch.arange(*arguments, dtype=dtype, device=like.device), torch.zeros(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counting_factories(dtype: torch.dtype) -> None:
    check(lambda like: torch.linspace(0, 4, 5, dtype=dtype, device=like.device), torch.zeros(1))
    check(lambda like: torch.eye(3, 4, dtype=dtype, device=like.device), torch.zeros(1))
    assert check(lambda like: torch.eye(3, dtype=torch.float32, device=like.device), torch.zeros(1))


WRONG: dict[str, Callable[[Tensor], Any]] = {
    "too many indices": lambda x: x[I([0]).to(x.device), I([0]).to(x.device), I([0]).to(x.device)],
    "float index": lambda x: x[I([0.0]).to(x.device)],
    "mask shape": lambda x: x[I([True, False]).to(x.device)],
    "indices do not broadcast": lambda x: x[I([0, 1]).to(x.device), I([0, 1, 2]).to(x.device)],
    "put shape": lambda x: assign(x, I([0, 1]).to(x.device), x.new_ones(3, 5)),
    "put dtype": lambda x: x.index_put_((I([0, 1]).to(x.device),), x.double()[0]),
    "index_select dim": lambda x: x.index_select(5, I([0]).to(x.device)),
    "index_select matrix": lambda x: x.index_select(0, I([[0]]).to(x.device)),
    "gather dtype": lambda x: x.gather(0, I([[0.0]]).to(x.device)),
    "gather shape": lambda x: x.gather(0, torch.zeros(1, 9, dtype=torch.long).to(x.device)),
    "cat shapes": lambda x: torch.cat([x, x.t()]),
    "flip twice": lambda x: x.flip(0, 0),
    "topk": lambda x: x.topk(9),
    "roll": lambda x: x.roll((1, 2), (0,)),
    "arange step": lambda x: torch.arange(0, 5, -1, device=x.device),
    "masked_select dtype": lambda x: x.masked_select(x),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_raise_on_the_host(case: str) -> None:
    assert not check(WRONG[case], torch.randn(3, 5))


def test_an_index_out_of_range_is_reported_at_the_next_synchronization(device: torch.device) -> None:
    x = torch.randn(3).to(device)
    x[I([7]).to(device)]
    with pytest.raises(RuntimeError, match=r"(?s)index.*out of (bounds|range)"):
        torch.accelerator.synchronize(device)

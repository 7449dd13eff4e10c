# chapter 2
"""Copies: every direction, dtype pair and layout gives what the CPU gives, moves the view's bytes only, keeps order."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
MORE_DTYPES = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32]
PLACES = ["cpu", "cookbook:0", "cookbook:1"]


def numbers(count: int, dtype: torch.dtype) -> Tensor:
    values = torch.arange(count) % 7
    return (values + 1j * (values % 3)).to(dtype) if dtype.is_complex else values.to(dtype)


def bits(cpu: Tensor) -> Tensor:
    return cpu.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert torch.equal(bits(actual.cpu()), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES + MORE_DTYPES, ids=str)
def test_round_trip_keeps_bits_and_strides(dtype: torch.dtype, device: torch.device) -> None:
    cpu = numbers(24, dtype).reshape(2, 3, 4)
    on_device = cpu.to(device)
    assert on_device.device == device
    assert on_device.stride() == cpu.stride()
    same(on_device, cpu)
    for shape in ((), (0,), (3, 0, 2), (1,)):
        small = torch.empty(shape, dtype=dtype).copy_(torch.tensor(1.0))
        assert small.to(device).shape == shape
        same(small.to(device), small)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
def test_every_dtype_pair(source: str, target: str) -> None:  # B35
    for a, b in itertools.product(DTYPES, DTYPES):
        cpu = numbers(6, a)
        expected = torch.empty(6, dtype=b).copy_(cpu)
        actual = torch.empty(6, dtype=b, device=target).copy_(cpu.to(source))
        same(actual, expected)
        same(cpu.to(source).to(torch.device(target), b), expected)


# A view: what to do to a fresh tensor of shape (4, 3, 6), by name so that a failure prints it.
VIEWS = {
    "whole": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "slice": lambda t: t[1:3],
    "step": lambda t: t[:, :, ::2],
    "column": lambda t: t[:, 1],
    "offset": lambda t: t[2, 1:, 3:],
    "expanded": lambda t: t[:, :1].expand(4, 5, 6),
    "zero-dim": lambda t: t[3, 2, 5],
    "empty": lambda t: t[:, 3:],
    "diagonal": lambda t: t.diagonal(0, 0, 2),
    "unfold": lambda t: t.unfold(2, 3, 2),
    "squeezed": lambda t: t[:1].squeeze(0),
    "as_strided": lambda t: t.as_strided((3, 3), (2, 5), 7),
    "conj": lambda t: t.conj(),
    "neg": lambda t: t.conj().imag if t.is_complex() else t,
    "real": lambda t: t.real,
    "conj-step": lambda t: t[::2, :, 1::2].conj(),
}


@settings(max_examples=250, deadline=None)
@given(
    view=st.sampled_from(sorted(VIEWS)),
    target_view=st.sampled_from(sorted(VIEWS)),
    dtype=st.sampled_from([torch.float32, torch.int16, torch.complex64, torch.bool, torch.bfloat16]),
    target_dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64, torch.int64]),
    source=st.sampled_from([*PLACES, "pinned"]),
    target=st.sampled_from([*PLACES, "pinned"]),
    non_blocking=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_any_view_to_any_view(
    view: str, target_view: str, dtype: torch.dtype, target_dtype: torch.dtype, source: str, target: str,
    non_blocking: bool,
) -> None:  # B31, B32  # fmt: skip
    """`base_view.copy_(source_view)` writes the same elements of the same base as on the CPU, and no other."""

    def place(tensor: Tensor, where: str) -> Tensor:
        return tensor.pin_memory() if where == "pinned" else tensor.to(where)

    cpu_source = VIEWS[view](numbers(72, dtype).reshape(4, 3, 6))
    placed_source = VIEWS[view](place(numbers(72, dtype).reshape(4, 3, 6), source))
    assert placed_source.stride() == cpu_source.stride()
    assert placed_source.storage_offset() == cpu_source.storage_offset()
    cpu_base = numbers(72, target_dtype).flip(0).reshape(4, 3, 6)
    placed_base = place(cpu_base.clone(), target)
    cpu_target, placed_target = VIEWS[target_view](cpu_base), VIEWS[target_view](placed_base)
    try:
        cpu_target.copy_(cpu_source)
    except RuntimeError as error:
        with pytest.raises(type(error)):
            placed_target.copy_(placed_source, non_blocking=non_blocking)
        return
    placed_target.copy_(placed_source, non_blocking=non_blocking)
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    assert placed_target.stride() == cpu_target.stride()
    same(placed_base, cpu_base)


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_clone_and_contiguous_have_the_strides_of_the_cpu(name: str, device: torch.device) -> None:
    for dtype in (torch.float32, torch.complex64):
        cpu = VIEWS[name](numbers(72, dtype).reshape(4, 3, 6))
        on_device = VIEWS[name](numbers(72, dtype).reshape(4, 3, 6).to(device))
        for action in (torch.clone, Tensor.contiguous, lambda t: t.to(torch.complex128)):
            expected, actual = action(cpu), action(on_device)
            assert actual.stride() == expected.stride()
            same(actual, expected)


def test_channels_last_travels_as_it_is(device: torch.device) -> None:
    cpu = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    _C.reset_counters(device.index)
    on_device = cpu.to(device)
    assert _C.counters(device.index)["launches"] == 0  # the bytes in their own order: no kernel
    assert on_device.stride() == cpu.stride()
    assert torch.equal(on_device.cpu(), cpu)
    assert on_device.cpu().stride() == cpu.stride()
    assert on_device.contiguous().stride() == cpu.contiguous().stride()


def test_only_the_bytes_of_the_view_move(device: torch.device) -> None:  # B32
    big = torch.zeros(1000, 1000, device=device)
    _C.reset_counters(device.index)
    big[7].cpu()
    big[:, 7].cpu()
    big[3].fill_(1)
    assert _C.counters(device.index)["bytes_device_to_host"] == 8000
    assert _C.counters(device.index)["bytes_host_to_device"] == 0
    torch.ones(1, 1000).expand(1000, 1000)[5].to(device)
    assert _C.counters(device.index)["bytes_host_to_device"] == 4000


def test_slice_of_a_dropped_parent(device: torch.device) -> None:  # B33
    parent = torch.arange(256.0).reshape(4, 64)
    one = torch.unbind(parent.to(device))[1]
    assert torch.equal(one.cpu(), parent[1])


def test_pinned_copy_does_not_wait_and_pageable_does(device: torch.device) -> None:
    pinned, pageable = torch.ones(1000).pin_memory(), torch.ones(1000)
    target = torch.empty(1000, device=device)
    torch.accelerator.synchronize(device)
    _C.reset_counters(device.index)
    _C.inject_fault(device.index, "delay", 1, 20_000)
    target.fill_(0)  # the kernel that is late
    target.copy_(pinned, non_blocking=True)
    result = torch.empty(1000).pin_memory()
    result.copy_(target, non_blocking=True)
    assert not torch.accelerator.current_stream(device).query()
    assert _C.counters(device.index)["synchronizations"] == 0
    torch.accelerator.synchronize(device)
    assert (result == 1).all()
    target.copy_(pageable, non_blocking=True)
    assert _C.counters(device.index)["synchronizations"] == 2  # the one above, and the copy that had to wait


def test_pinned_memory_freed_while_a_copy_reads_it(device: torch.device) -> None:
    target = torch.zeros(1 << 16, device=device)
    _C.inject_fault(device.index, "delay", 1, 20_000)
    target.add_(0)
    target.copy_(torch.full((1 << 16,), 3.0).pin_memory(), non_blocking=True)
    torch.full((1 << 16,), 5.0).pin_memory()
    assert (target.cpu() == 3).all()


def test_copy_between_devices_is_ordered_with_both() -> None:
    for _ in range(20):
        a, b = torch.zeros(1 << 14, device="cookbook:0"), torch.zeros(1 << 14, device="cookbook:1")
        _C.inject_fault(0, "delay", 1, 2000)
        a.fill_(1)
        b.copy_(a)
        a.fill_(2)  # after the copy has read it
        b.add_(1)  # after the copy has written it
        assert (b.cpu() == 2).all()
        assert (a.cpu() == 2).all()
    _C.reset_counters(0)
    b.copy_(a)
    assert _C.counters(0)["synchronizations"] == 0
    assert _C.counters(0)["bytes_peer"] == 4 << 14


@pytest.mark.parametrize("value", [3, 3.5, True, 1 + 2j])
def test_item(value: complex, device: torch.device) -> None:  # B34
    for dtype in DTYPES + MORE_DTYPES:
        if isinstance(value, complex) and not dtype.is_complex:
            continue
        cpu = torch.tensor(value).to(dtype)
        assert cpu.to(device).item() == cpu.item()
    assert torch.ones((), device=device).expand(2).tolist() == [1, 1]


def test_a_view_writes_to_its_base(device: torch.device) -> None:  # B37
    x = torch.zeros(2, 3, device=device)
    views = (
        lambda t: t.unsqueeze(0), lambda t: t.T, lambda t: t.view(3, 2), lambda t: t.diagonal(), lambda t: t.detach(),
        lambda t: t.unfold(1, 2, 1), lambda t: t.reshape(6), lambda t: t.select(0, 0), lambda t: t.expand(4, 2, 3),
    )  # fmt: skip
    for view in views:
        assert view(x).data_ptr() == x.data_ptr()
        assert view(x)._is_view() == view(torch.zeros(2, 3))._is_view()
    a = torch.zeros(4, 2, device=device)
    torch.view_as_complex(a).fill_(1 + 1j)
    assert a.sum().item() == 8  # B40
    torch.view_as_real(torch.view_as_complex(a)).zero_()
    assert a.sum().item() == 0


def test_conj_of_a_device_tensor_resolves(device: torch.device) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(x.to(device).conj().resolve_conj().cpu(), x.conj().resolve_conj())
    assert torch.equal(x.to(device).conj().cpu(), x.conj())
    assert torch.equal(x.conj().to(device).cpu(), x.conj())


def test_copy_from_meta_is_refused(device: torch.device) -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.empty(2, device="meta").to(device)

# chapter 4
"""The caching allocator: reuse in stream order, and record_stream."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import torch
from allocator_blocks import (
    MIB,
    CloseGate,
    around,
    counters,
    current,
    new,
    segment_of,
    stat,
)
from allocator_blocks import device as device  # the fixture
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")


def test_a_block_serves_its_stream_only(device: torch.device, gate: CloseGate) -> None:
    side = torch.Stream(device)
    x = new(1000, device)
    address = x.data_ptr()
    closed = gate(current(device))
    x.fill_(1)
    del x
    with side:
        y = new(1000, device)
    assert segment_of(y)["stream"] == side.native_handle
    assert y.data_ptr() != address
    assert new(1000, device).data_ptr() == address
    closed.open()


def test_record_stream_keeps_a_block_until_the_stream_has_passed(device: torch.device, gate: CloseGate) -> None:  # B20
    side = torch.Stream(device)
    x = torch.full((1 << 16,), 7.0, device=device)
    side.wait_stream(current(device))
    closed = gate(side)
    with side:
        y = x.clone()
    x.record_stream(side)
    address = x.data_ptr()
    del x
    assert around(address, device)[1]["state"] == "active_pending_free"
    z = torch.zeros(1 << 16, device=device)
    assert z.data_ptr() != address
    current(device).synchronize()
    closed.open()
    side.synchronize()
    assert (y.cpu() == 7).all()
    again = torch.empty(1 << 16, device=device)
    assert again.data_ptr() == address


def test_without_record_stream_the_block_is_overwritten(device: torch.device, gate: CloseGate) -> None:
    """What record_stream is for: the tests around this one could not fail otherwise."""
    side = torch.Stream(device)
    x = torch.full((1 << 16,), 7.0, device=device)
    side.wait_stream(current(device))
    closed = gate(side)
    with side:
        y = x.clone()
    del x
    torch.zeros(1 << 16, device=device)
    current(device).synchronize()
    closed.open()
    side.synchronize()
    assert (y.cpu() == 0).all()


def test_every_recorded_stream_counts_once(device: torch.device, gate: CloseGate) -> None:
    sides = [torch.Stream(device) for _ in range(3)]
    x = new(1000, device)
    address = x.data_ptr()
    gates = [gate(side) for side in sides]
    for side in (*sides, *sides, current(device)):  # its own stream is no news
        x.record_stream(side)
    del x
    for closed, side in zip(gates, sides, strict=True):
        assert new(1000, device).data_ptr() != address
        closed.open()
        side.synchronize()
    assert new(1000, device).data_ptr() == address
    assert (stat("active.all.allocated", device), stat("allocation.all.allocated", device)) == (5, 5)


def test_work_queued_after_the_free_does_not_keep_the_block(device: torch.device, gate: CloseGate) -> None:
    side = torch.Stream(device)
    x = new(1000, device)
    address = x.data_ptr()
    x.record_stream(side)
    del x
    closed = gate(side)
    deadline = time.monotonic() + 20
    while new(1000, device).data_ptr() != address:
        assert time.monotonic() < deadline
    closed.open()


def test_record_stream_of_another_device(gate: CloseGate) -> None:
    here, there = torch.device("cookbook:0"), torch.device("cookbook:1")
    side = torch.Stream(there)
    x = new(1000, here)
    address = x.data_ptr()
    closed = gate(side)
    x.record_stream(side)
    del x
    assert new(1000, here).data_ptr() != address
    closed.open()
    side.synchronize()
    assert new(1000, here).data_ptr() == address


def test_one_waiting_block_does_not_hide_the_others(device: torch.device, gate: CloseGate) -> None:
    slow, fast = torch.Stream(device), torch.Stream(device)
    held, *others = (new(1000, device) for _ in range(10))
    addresses = {x.data_ptr() for x in others}
    closed = gate(slow)
    held.record_stream(slow)
    for x in others:
        x.record_stream(fast)
    held_at = held.data_ptr()
    del held, x
    others.clear()
    fast.synchronize()
    got = {new(1000, device).data_ptr() for _ in range(20)}  # each looks at two, in turn
    held_again = [new(1000, device) for _ in range(9)]
    assert {x.data_ptr() for x in held_again} == addresses
    assert held_at not in got
    closed.open()


def wrapped_by_slice(x: Tensor) -> object:
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage()[512:])


def wrapped_by_dlpack(x: Tensor) -> object:
    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))


@pytest.mark.parametrize("wrap", [wrapped_by_slice, torch._lazy_clone, wrapped_by_dlpack], ids=lambda f: f.__name__)
def test_record_stream_of_a_wrapped_pointer(
    wrap: Callable[[Tensor], Tensor], device: torch.device, gate: CloseGate
) -> None:
    """A storage may hold the block in a context that is not the allocator's own."""
    side = torch.Stream(device)
    x = new(4096, device)
    address = x.data_ptr()
    wrapped = wrap(x)
    closed = gate(side)
    wrapped.record_stream(side)
    del x, wrapped
    gc.collect()
    assert around(address, device)[1]["state"] == "active_pending_free"
    assert new(4096, device).data_ptr() != address
    closed.open()
    side.synchronize()
    assert new(4096, device).data_ptr() == address


def test_lazy_clone_is_made_real_by_the_allocator(device: torch.device) -> None:
    x = torch.arange(100.0, device=device)
    y = torch._lazy_clone(x)
    assert torch._C._data_address(x) == torch._C._data_address(y)
    y.add_(1)
    assert torch._C._data_address(x) != torch._C._data_address(y)
    assert torch.equal(x.cpu(), torch.arange(100.0))
    assert torch.equal(y.cpu(), torch.arange(100.0) + 1)


def test_a_destroyed_stream_is_a_stream_that_is_done(device: torch.device) -> None:
    for free_first in (True, False):
        handle = _C.driver_stream_create(device.index, 0)
        x = new(1000, device)
        address = x.data_ptr()
        x.record_stream(cookbook_backend.external_stream(handle))
        if free_first:
            del x
            _C.driver_stream_destroy(handle)
        else:
            _C.driver_stream_destroy(handle)
            del x
        assert new(1000, device).data_ptr() == address


def test_memory_of_a_destroyed_stream_can_be_given_back(device: torch.device) -> None:
    handle = _C.driver_stream_create(device.index, 0)
    with cookbook_backend.external_stream(handle):
        x = new(3 * MIB, device).fill_(1)
    del x
    _C.driver_stream_destroy(handle)
    reserved = torch.accelerator.memory_reserved(device.index)
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(device.index) == reserved - 20 * MIB
    assert counters(device)[:2] == (1, 1)


def test_record_stream_of_another_device_type_is_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="stream"):
        new(8, device).record_stream(torch.Stream(stream_id=0, device_index=0, device_type=1))
    torch.empty(0, device=device).record_stream(torch.Stream(device))

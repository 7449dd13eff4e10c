# chapter 4
"""The caching allocator: private pools, as graphs use them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest
import torch
from allocator_blocks import (
    MIB,
    CloseGate,
    around,
    current,
    new,
    segment_of,
    segments,
)
from allocator_blocks import device as device  # the fixture
from conftest import Run

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")


POOL_IDS = itertools.count(1)


@pytest.fixture
def pool(device: torch.device) -> Iterator[tuple[int, int]]:
    """The id of a private pool that no other test uses; whatever the test leaves is ended and released."""
    id_ = 0, next(POOL_IDS)
    yield id_
    for action in (_C.end_allocate_to_pool, *[_C.release_pool] * 3):
        with contextlib.suppress(RuntimeError):
            action(device.index, id_)
    torch.accelerator.empty_cache()


def test_a_pools_memory_is_its_own(device: torch.device, pool: tuple[int, int]) -> None:
    default, side = current(device), torch.Stream(device)
    ordinary = new(1000, device)
    _C.begin_allocate_to_pool(device.index, pool, default)
    x, y = new(1000, device), new(3 * MIB, device)
    with side:  # the filter takes the default stream only
        z = new(1000, device)
    address = x.data_ptr()
    del x
    assert new(1000, device).data_ptr() == address  # reused within the pool
    _C.end_allocate_to_pool(device.index, pool)
    assert [segment_of(t)["segment_pool_id"] for t in (ordinary, y, z)] == [(0, 0), pool, (0, 0)]
    private = {s["address"] for s in segments(device) if s["segment_pool_id"] == pool}
    assert len(private) == 2
    # From now on nothing is taken from the pool, neither its free blocks nor, when all are free, its segments.
    del y
    more = [new(size, device) for size in (1000, 3 * MIB) for _ in range(50)]
    torch.accelerator.empty_cache()
    _C.empty_pool(pool)
    assert {s["address"] for s in segments(device) if s["segment_pool_id"] == pool} == private
    assert not {segment_of(t)["address"] for t in more} & private


def test_a_released_pool_goes_back_to_the_driver(device: torch.device, pool: tuple[int, int]) -> None:
    default = current(device)
    for _ in range(2):  # two graphs may share a pool
        _C.begin_allocate_to_pool(device.index, pool, default)
        x = new(1000, device)
        _C.end_allocate_to_pool(device.index, pool)
    _C.release_pool(device.index, pool)
    _C.empty_pool(pool)
    assert segment_of(x)["segment_pool_id"] == pool
    _C.release_pool(device.index, pool)
    _C.empty_pool(pool)
    assert segment_of(x)["segment_pool_id"] == pool  # a tensor has outlived the graph
    del x
    _C.empty_pool((0, 999))
    assert [s for s in segments(device) if s["segment_pool_id"] == pool]
    _C.empty_pool(pool)
    assert not [s for s in segments(device) if s["segment_pool_id"] == pool]


def test_pools_out_of_memory(run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        C = cookbook_backend._C
        def new(mib): return torch.empty(mib << 20, dtype=torch.uint8, device="cookbook")
        stream = cookbook_backend.default_stream()
        C.begin_allocate_to_pool(0, (0, 1), stream)
        x = new(30)
        C.end_allocate_to_pool(0, (0, 1))
        del x
        try:
            new(40)
        except torch.OutOfMemoryError as error:
            print("30.00 MiB is cached" in str(error))
        C.release_pool(0, (0, 1))
        y = new(40)
        print(torch.accelerator.memory_reserved() >> 20)
    """,
        COOKBOOK_DEVICE_MEMORY="64M",
    )
    assert done.stdout == "True\n40\n", done.stderr


@pytest.mark.parametrize("home", ["cookbook:0", "cookbook:1"])
def test_no_event_is_recorded_while_the_stream_is_captured(home: str, device: torch.device, gate: CloseGate) -> None:
    """The record would be a part of the graph, and the first look at it would break the capture."""
    memory, side, graph = torch.device(home), torch.Stream(device), torch.accelerator.Graph()
    x, y = new(1000, memory), new(1000, memory)
    before, during = x.data_ptr(), y.data_ptr()
    held: list[torch.Tensor] = []

    def reused() -> set[int]:
        held.extend(new(1000, memory) for _ in range(4))
        return {t.data_ptr() for t in held} & {before, during}

    x.record_stream(side)
    y.record_stream(side)
    closed = gate(side)
    passed = side.record_event()
    del x
    with side:
        graph.capture_begin()
    del y
    assert not reused()
    closed.open()
    passed.synchronize()
    assert reused() == {before}
    assert around(during, memory)[1]["state"] == "active_pending_free"
    with side:
        graph.capture_end()
    again = gate(side)  # y's record is made behind it, by the next allocation
    assert reused() == {before}
    again.open()
    side.synchronize()
    assert reused() == {before, during}
    graph.reset()


def test_pools_are_used_rightly(device: torch.device, pool: tuple[int, int]) -> None:
    stream = current(device)
    with pytest.raises(RuntimeError, match=r"\(0, 0\)"):
        _C.begin_allocate_to_pool(device.index, (0, 0), stream)
    for action in (_C.end_allocate_to_pool, _C.release_pool):
        with pytest.raises(RuntimeError, match="private pool"):
            action(device.index, pool)
    _C.begin_allocate_to_pool(device.index, pool, stream)
    with pytest.raises(RuntimeError, match="already"):
        _C.begin_allocate_to_pool(device.index, pool, stream)

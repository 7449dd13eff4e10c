# chapter 4
"""The caching allocator: sizes, reuse by stream, record_stream, running out, limits, statistics, pools, snapshot."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import re
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from conftest import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import cookbook_backend
from cookbook_backend.memory import Block, Segment

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
pytestmark = pytest.mark.usefixtures("time_limit")

KIB, MIB = 1 << 10, 1 << 20


def new(size: int, device: torch.device) -> Tensor:
    """A tensor of `size` bytes."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def segments(device: torch.device) -> list[Segment]:
    return cookbook_backend.memory_snapshot(device)


def around(address: int, device: torch.device) -> tuple[Segment, Block]:
    """The segment and the block that hold an address."""
    for segment in segments(device):
        for block in segment["blocks"]:
            if block["address"] <= address < block["address"] + block["size"]:
                return segment, block
    raise AssertionError(f"no block holds {address:#x}")


def block_of(tensor: Tensor) -> Block:
    return around(tensor.data_ptr(), tensor.device)[1]


def segment_of(tensor: Tensor) -> Segment:
    return around(tensor.data_ptr(), tensor.device)[0]


def counters(device: torch.device) -> tuple[int, int, int]:
    """The driver's allocations, frees and waits since the last reset of its counters."""
    now = _C.counters(device.index)
    return now["allocations"], now["frees"], now["synchronizations"]


def current(device: torch.device) -> torch.Stream:
    return cookbook_backend.current_stream(device)


def stat(name: str, device: torch.device) -> int:
    return torch.accelerator.memory_stats(device.index)[name]


@pytest.fixture(params=["cookbook:0", "cookbook:1"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each device in turn, current, on a stream that nobody has used, with an empty cache and all counters at 0."""
    device = torch.device(request.param)
    cookbook_backend.set_device(device)
    gc.collect()
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(device.index)
    torch.accelerator.reset_accumulated_memory_stats(device.index)
    with cookbook_backend.external_stream(_C.driver_stream_create(device.index, 0)):
        _C.reset_counters(device.index)
        yield device


# ---- sizes, splitting, merging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "block", "segment", "kind"),
    [
        (1, 512, 2 * MIB, "small"),
        (512, 512, 2 * MIB, "small"),
        (513, 1024, 2 * MIB, "small"),
        (MIB - 1, MIB, 2 * MIB, "small"),
        (MIB, MIB, 2 * MIB, "small"),
        (MIB + 1, MIB + 512, 20 * MIB, "large"),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, "large"),
        (10 * MIB, 10 * MIB, 10 * MIB, "large"),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB, "large"),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB, "large"),  # the rest is more than 1 MiB: another large request fits
        (11 * MIB, 12 * MIB, 12 * MIB, "large"),  # the rest is not: it stays with the block
        (33 * MIB, 34 * MIB, 34 * MIB, "large"),
    ],
)
def test_sizes(size: int, block: int, segment: int, kind: str, device: torch.device) -> None:
    x = new(size, device)
    assert block_of(x)["size"] == block
    assert block_of(x)["requested_size"] == size
    assert segment_of(x)["total_size"] == segment
    assert segment_of(x)["segment_type"] == kind
    assert x.data_ptr() % 512 == 0
    assert stat("allocated_bytes.all.allocated", device) == block
    assert stat("requested_bytes.all.allocated", device) == size
    assert counters(device)[0] == 1


def test_a_small_device_gets_small_segments(run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        x = torch.empty(3 << 20, dtype=torch.uint8, device="cookbook")
        y = torch.empty(1000, dtype=torch.uint8, device="cookbook")
        print(sorted(s["total_size"] >> 20 for s in cookbook_backend.memory_snapshot()))
    """,
        COOKBOOK_DEVICE_MEMORY="128M",
    )
    assert done.stdout == "[2, 4]\n", done.stderr


def test_a_freed_block_is_reused_at_once_without_the_driver(device: torch.device, gate: CloseGate) -> None:
    first = new(1000, device)
    address = first.data_ptr()
    _C.reset_counters(device.index)
    closed = gate(current(device))  # its kernels have not run, and need not
    first.fill_(1)
    del first
    for _ in range(100):
        x = new(1000, device)
        assert x.data_ptr() == address
        del x
    assert counters(device) == (0, 0, 0)
    closed.open()


def test_the_driver_is_asked_only_when_no_free_block_is_large_enough(device: torch.device) -> None:
    """Whatever the cache holds: a free block that fits is found, also in the long list of a full size class."""
    random.seed(1)
    held = [new(random.randrange(1, 700) * 512, device) for _ in range(200)]
    for _ in range(200):
        index = random.randrange(len(held))
        held[index] = held[-1]
        held.pop()
        size = random.randrange(1, 2048) * 512
        free = [b["size"] for s in segments(device) if s["segment_type"] == "small" for b in s["blocks"]
                if b["state"] == "inactive"]  # fmt: skip
        before = counters(device)[0]
        held.append(new(size, device))
        assert counters(device)[0] - before == (0 if max(free, default=0) >= size else 1)
        used = block_of(held[-1])["size"]
        assert used == size


@pytest.mark.parametrize("size", [256 * KIB, 4 * MIB])
def test_neighbours_join_in_every_order(size: int, device: torch.device) -> None:
    for order in itertools.permutations(range(4)):
        parts: list[Tensor | None] = [new(size, device) for _ in range(4)]
        assert len({segment_of(p)["address"] for p in parts if p is not None}) == 1
        address = segment_of(parts[0])["address"]  # type: ignore[arg-type]
        for i in order:
            parts[i] = None
            states = [b["state"] for b in around(address, device)[0]["blocks"]]
            assert ("inactive", "inactive") not in list(itertools.pairwise(states))
        assert len(around(address, device)[0]["blocks"]) == 1
    assert counters(device)[0] == 1


def test_fragments_do_not_serve_larger_requests_until_they_join(device: torch.device) -> None:
    before = stat("inactive_split.all.current", device)
    parts = [new(64 * KIB, device) for _ in range(32)]  # one small segment
    assert counters(device)[0] == 1
    del parts[::2]
    assert stat("inactive_split.all.current", device) == before + 16
    larger = new(128 * KIB, device)
    assert counters(device)[0] == 2
    del parts[:]
    larger_still = [new(MIB, device) for _ in range(3)]
    assert counters(device)[0] == 2
    assert stat("inactive_split.all.current", device) == before + 1
    del larger, larger_still
    assert stat("inactive_split.all.current", device) == before


def test_empty_cache_gives_back_whole_segments_only(device: torch.device) -> None:
    before = torch.accelerator.get_memory_info(device.index)[0]
    small, other, large = new(1000, device), new(1000, device), new(30 * MIB, device)
    assert torch.accelerator.memory_reserved(device.index) >= 32 * MIB
    del other, large
    reserved = torch.accelerator.memory_reserved(device.index)
    assert torch.accelerator.get_memory_info(device.index)[0] == before - 32 * MIB
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(device.index) == reserved - 30 * MIB
    assert torch.accelerator.get_memory_info(device.index)[0] == before - 2 * MIB
    del small
    torch.accelerator.empty_cache()
    assert torch.accelerator.get_memory_info(device.index)[0] == before
    assert (stat("num_device_alloc", device), stat("num_device_free", device)) == counters(device)[:2] == (2, 2)


def test_empty_cache_waits_for_nobody(device: torch.device, gate: CloseGate) -> None:
    """It runs with the GIL. A segment goes back in its stream's order, so work that still uses it keeps it."""
    x = torch.full((3 * MIB,), 7.0, device=device)  # has a segment of its own
    closed = gate(current(device))
    y = x.clone()
    del x
    torch.accelerator.empty_cache()
    assert counters(device)[1:] == (1, 0)
    side = torch.Stream(device)
    with side:
        z = torch.full((3 * MIB,), 9.0, device=device)  # must not be what x was yet
    side.synchronize()
    closed.open()
    current(device).synchronize()
    assert (y.cpu() == 7).all()
    assert (z.cpu() == 9).all()


# ---- streams ---------------------------------------------------------------------------------------------------------


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


# ---- running out -----------------------------------------------------------------------------------------------------


def test_out_of_memory_says_where_the_memory_is(run_python: Run) -> None:  # B17
    done = run_python(
        """
        import torch, cookbook_backend
        def new(mib): return torch.empty(mib << 20, dtype=torch.uint8, device="cookbook")
        blocks = [new(8) for _ in range(7)]
        for size in (16, 1 << 20):
            try:
                new(size)
            except torch.OutOfMemoryError as error:
                print(str(error).splitlines()[0])
        stats = torch.accelerator.memory_stats()
        print(stats["num_ooms"], stats["num_alloc_retries"], stats["num_sync_all_streams"])
        del blocks[2], blocks[4]
        x = new(8).fill_(3)
        print(int(x.sum()) == 3 << 23, torch.accelerator.memory_reserved() >> 20)
        y = new(8)
        del x, y, blocks
        print(int(new(60).fill_(1).sum()) == 60 << 20)
    """,
        COOKBOOK_DEVICE_MEMORY="64M",
    )
    first, second, *rest = done.stdout.splitlines()
    assert re.search(r"tried to allocate.*(total|capacity).*free", first.lower())
    for text in ("cookbook:0", "16.00 MiB", "64.00 MiB", "8.00 MiB is free", "56.00 MiB", "0 bytes was freed"):
        assert text in first, first
    assert "1024.00 GiB" in second
    # The sum's result is a small block: its segment has 2 MiB.
    assert rest == ["2 2 2", "True 58", "True"], done.stderr


def test_what_is_cached_is_given_back_before_giving_up(run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        def new(mib, device="cookbook:1"): return torch.empty(mib << 20, dtype=torch.uint8, device=device)
        keep = new(2)
        with torch.Stream("cookbook:1"):
            del [new(8) for _ in range(4)][:]  # cached, for a stream that is not ours
        del [new(4) for _ in range(4)][:]
        cookbook_backend._C.reset_counters(1)
        x = new(60)
        stats = torch.accelerator.memory_stats(1)
        counters = cookbook_backend._C.counters(1)
        print(stats["num_alloc_retries"], stats["num_ooms"], counters["allocations"], counters["frees"])
        print(torch.accelerator.memory_stats(0)["num_alloc_retries"])
    """,
        COOKBOOK_DEVICE_MEMORY="64M",
    )
    assert done.stdout == "1 0 1 8\n0\n", done.stderr


def test_pending_blocks_are_waited_for_before_giving_up(run_python: Run) -> None:
    done = run_python(
        """
        import threading, time, torch, cookbook_backend
        def new(mib): return torch.empty(mib << 20, dtype=torch.uint8, device="cookbook")
        side = torch.Stream("cookbook")
        gate = cookbook_backend._C.Gate(side)
        x = new(48)
        x.record_stream(side)
        del x
        opened = []
        def open():
            time.sleep(0.3)
            opened.append(True)
            gate.open()
        thread = threading.Thread(target=open)
        thread.start()
        y = new(40)  # the GIL is released meanwhile: the other thread can open the gate
        print(opened, torch.accelerator.memory_stats()["num_sync_all_streams"])
        thread.join()
    """,
        COOKBOOK_DEVICE_MEMORY="64M",
    )
    assert done.stdout == "[True] 1\n", done.stderr


def test_a_full_device_still_serves_what_fits(run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        def new(kib): return torch.empty(kib << 10, dtype=torch.uint8, device="cookbook")
        full = new(64 << 10)
        blocks = [new(300) for _ in range(3)]  # there is 1 MiB left, no room for a segment to share
        print([s["total_size"] >> 10 for s in cookbook_backend.memory_snapshot() if s["segment_type"] == "small"])
        try:
            new(300)
        except torch.OutOfMemoryError:
            print("full")
    """,
        COOKBOOK_DEVICE_MEMORY="65M",
    )
    assert done.stdout == "[300, 300, 300]\nfull\n", done.stderr


@pytest.mark.parametrize("size", [1000, 3 * MIB, 32 * MIB])
def test_injected_faults(size: int, device: torch.device) -> None:
    _C.inject_fault(device.index, "alloc", 1, 0)
    x = new(size, device)
    assert (stat("num_alloc_retries", device), stat("num_ooms", device)) == (1, 0)
    del x
    torch.accelerator.empty_cache()
    for nth in (1, 2, 3):
        _C.inject_fault(device.index, "alloc", nth, 0)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        new(size, device)
    _C.inject_fault(device.index, "none", 1, 0)
    assert (stat("num_alloc_retries", device), stat("num_ooms", device)) == (2, 1)
    assert torch.accelerator.memory_reserved(device.index) == sum(s["total_size"] for s in segments(device))
    assert new(size, device).fill_(1).sum().item() == size


def test_absurd_sizes(device: torch.device) -> None:
    for size in (1 << 50, (1 << 62) + 1):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            new(size, device)
    with pytest.raises(RuntimeError):
        torch.empty(1 << 32, 1 << 32, dtype=torch.uint8, device=device)
    assert new(1000, device).fill_(1).sum().item() == 1000


def test_memory_fraction(device: torch.device) -> None:
    total = torch.accelerator.get_memory_info(device.index)[1]
    held = torch.accelerator.memory_reserved(device.index)
    assert cookbook_backend.get_per_process_memory_fraction(device) == 1.0
    try:
        cookbook_backend.set_per_process_memory_fraction((held + 64 * MIB) / total, device)
        x = new(40 * MIB, device)
        with pytest.raises(torch.OutOfMemoryError, match=f"PyTorch may take {64 + held / MIB:.2f} MiB"):
            new(40 * MIB, device)
        assert counters(device)[0] == 1
        del x
        new(60 * MIB, device)  # the cached 40 go first
        assert counters(device)[:2] == (2, 1)
        other = torch.device("cookbook", 1 - device.index)
        assert cookbook_backend.get_per_process_memory_fraction(other) == 1.0
        cookbook_backend.set_per_process_memory_fraction(0.0, device)
        with pytest.raises(torch.OutOfMemoryError):
            new(70 * MIB, device)
    finally:
        cookbook_backend.set_per_process_memory_fraction(1.0, device)
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            cookbook_backend.set_per_process_memory_fraction(fraction, device)
    new(70 * MIB, device)


def test_frees_on_a_failed_device(device: torch.device) -> None:
    """Deleters cannot throw: blocks come back after a kernel has failed, and are usable after the reset."""
    side = torch.Stream(device)
    x = torch.ones(1000, device=device)
    torch.accelerator.synchronize(device)
    address = x.data_ptr()
    _C.inject_fault(device.index, "launch", 1, 0)
    x.mul_(2)
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize(device)
    x.record_stream(side)
    del x
    _C.reset(device.index)
    y = torch.empty(1000, device=device)
    assert y.data_ptr() == address
    assert y.fill_(2).sum().item() == 2000


# ---- settings --------------------------------------------------------------------------------------------------------

SETTINGS = """\
    import warnings, torch, cookbook_backend
    def new(kib): return torch.empty(kib << 10, dtype=torch.uint8, device="cookbook")
    def sizes(): return [[b["size"] >> 10 for b in s["blocks"]] for s in cookbook_backend.memory_snapshot()]
    def stats(): return torch.accelerator.memory_stats()
"""


def run_with_settings(run_python: Run, conf: str, script: str, **environment: str) -> str:
    done = run_python(textwrap.dedent(SETTINGS) + textwrap.dedent(script), PYTORCH_ALLOC_CONF=conf, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_setting_roundup(run_python: Run) -> None:
    script = """
    x, y = new(1200), new(5 << 10)
    print(sizes())
    """
    assert run_with_settings(run_python, "", script) == "[[1200, 5120, 14160]]"
    assert run_with_settings(run_python, "roundup_power2_divisions:4", script) == "[[1280, 5120, 14080]]"
    assert run_with_settings(run_python, "roundup_power2_divisions:1", script) == "[[1200, 5120, 14160]]"


def test_setting_large_segment_size(run_python: Run) -> None:
    assert (
        run_with_settings(run_python, "large_segment_size_mb:32", "x = new(1200); print(sizes())") == "[[1200, 31568]]"
    )


def test_setting_max_split_size(run_python: Run) -> None:
    script = """
    big = new(100 << 10)
    address = big.data_ptr()
    del big
    small = new(30 << 10)  # must not spoil the large block
    print(sizes(), stats()["oversize_allocations.current"], stats()["oversize_segments.current"])
    near = new(90 << 10)  # wastes 10 MiB: at most 20 is allowed
    print(near.data_ptr() == address, stats()["oversize_allocations.current"])
    del near
    far = new(70 << 10)
    print(far.data_ptr() == address, stats()["max_split_size"] >> 20)
    """
    expected = "[[102400], [30720]] 0 1\nTrue 1\nFalse 64"
    assert run_with_settings(run_python, "max_split_size_mb:64,max_non_split_rounding_mb:20", script) == expected


def test_setting_garbage_collection(run_python: Run) -> None:
    script = """
    first, second, third = new(12 << 10), new(14 << 10), new(16 << 10)
    keep = new(2 << 10)
    del second, first, third
    x = new(18 << 10)  # 44 + 18 MiB are 11 more than 80 % of 64; what has been unused for longest goes first
    print(sorted(s["total_size"] >> 20 for s in cookbook_backend.memory_snapshot()))
    print(stats()["num_alloc_retries"])
    """
    small = {"COOKBOOK_DEVICE_MEMORY": "64M"}
    expected = "[2, 12, 16, 18]\n0"
    assert run_with_settings(run_python, "garbage_collection_threshold:0.8", script, **small) == expected
    assert run_with_settings(run_python, "", script, **small) == "[2, 12, 14, 16, 18]\n0"


def test_setting_expandable_segments_is_refused_aloud(run_python: Run) -> None:
    script = """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = new(8)
        y = new(8 << 10)
    print([str(w.message)[:39] for w in caught])
    """
    expected = "['expandable_segments of PYTORCH_ALLOC_CO']"
    assert run_with_settings(run_python, "expandable_segments:True", script) == expected


# ---- statistics ------------------------------------------------------------------------------------------------------

NAMES = (
    "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split", "inactive_split_bytes",
    "requested_bytes", "reserved_bytes", "segment",
)  # fmt: skip
POOLS = ("all", "small_pool", "large_pool")


def seen(device: torch.device) -> dict[str, int]:
    """The current value of every statistic, computed from a snapshot; and what must hold for any snapshot."""
    now = {f"{name}.{pool}": 0 for name in NAMES for pool in POOLS}

    def count(name: str, pool: str, amount: int) -> None:
        now[f"{name}.all"] += amount
        now[f"{name}.{pool}"] += amount

    for segment in segments(device):
        pool = f"{segment['segment_type']}_pool"
        count("segment", pool, 1)
        count("reserved_bytes", pool, segment["total_size"])
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            assert block["size"] % 512 == 0 < block["size"]
            address += block["size"]
            free, live = block["state"] == "inactive", block["state"] == "active_allocated"
            assert block["requested_size"] <= block["size"]
            if live:
                count("allocation", pool, 1)
                count("allocated_bytes", pool, block["size"])
                count("requested_bytes", pool, block["requested_size"])
            if not free:
                count("active", pool, 1)
                count("active_bytes", pool, block["size"])
            if free and len(segment["blocks"]) > 1:
                count("inactive_split", pool, 1)
                count("inactive_split_bytes", pool, block["size"])
        assert address == segment["address"] + segment["total_size"]
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in list(itertools.pairwise(states))
    return now


@dataclass
class Model:
    """What the statistics must be, from the values after each step and the driver's own counters."""

    device: torch.device
    peak: dict[str, int] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    def reset_peaks(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self.device.index)
        self.peak = seen(self.device)

    def reset_totals(self) -> None:
        torch.accelerator.reset_accumulated_memory_stats(self.device.index)
        _C.reset_counters(self.device.index)
        self.start = seen(self.device)
        self.added = dict.fromkeys(self.start, 0)

    def allocated(self, tensor: Tensor) -> None:
        """Note what this tensor added to the totals."""
        segment, block = around(tensor.data_ptr(), self.device)
        for pool in ("all", f"{segment['segment_type']}_pool"):
            for name, amount in {
                "allocation": 1, "active": 1, "allocated_bytes": block["size"], "active_bytes": block["size"],
                "requested_bytes": tensor.numel(),
            }.items():  # fmt: skip
                self.added[f"{name}.{pool}"] += amount

    def check(self) -> None:
        now, stats = seen(self.device), torch.accelerator.memory_stats(self.device.index)
        allocations, frees, _ = counters(self.device)
        assert (stats["num_device_alloc"], stats["num_device_free"]) == (allocations, frees)
        assert stats["segment.all.allocated"] == allocations
        assert stats["segment.all.freed"] == frees
        assert stats["num_alloc_retries"] == stats["num_ooms"] == 0
        for key, value in now.items():
            assert stats[f"{key}.current"] == value, key
            self.peak[key] = max(self.peak[key], value)
            if key.startswith("inactive_split"):  # fragments come and go inside of one step
                assert stats[f"{key}.peak"] >= self.peak[key], key
            else:
                assert stats[f"{key}.peak"] == self.peak[key], key
                if not key.startswith(("segment", "reserved")):
                    assert stats[f"{key}.allocated"] == self.added[key], key
            assert stats[f"{key}.allocated"] - stats[f"{key}.freed"] == value - self.start[key], key


OPERATION = st.tuples(
    st.sampled_from(["new", "new", "new", "free", "free", "record", "close", "open", "empty", "peaks", "totals"]),
    st.integers(0, 1 << 16),
    st.integers(0, 3),
)
SIZES = [1, 511, 512, 513, 4000, 70_000, 300_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 11 * MIB, 25 * MIB]


@settings(max_examples=40, deadline=None)
@given(operations=st.lists(OPERATION, max_size=50))
def test_any_sequence(operations: list[tuple[str, int, int]]) -> None:
    """Random allocations, frees and record_streams on four streams, with gates closed and opened at random.

    After each step: live blocks do not overlap, blocks that a gate holds back are nobody's, and every statistic is what
    the model says.
    """
    device = torch.device("cookbook:1")
    gc.collect()
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()
    streams = [cookbook_backend.default_stream(device), *(torch.Stream(device) for _ in range(3))]
    gates: dict[int, _C.Gate] = {}
    live: list[tuple[Tensor, int, set[int]]] = []  # a tensor, its stream, and the streams that were recorded
    held: list[tuple[int, int, set[int]]] = []  # freed memory, and the closed gates that it must wait for
    model = Model(device)
    model.reset_peaks()
    model.reset_totals()
    try:
        for what, number, which in operations:
            if what == "new":
                with streams[which]:
                    tensor = new(SIZES[number % len(SIZES)], device)
                model.allocated(tensor)
                begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel()
                ranges = [(t.data_ptr(), t.data_ptr() + t.numel()) for t, _, _ in live]
                ranges += [(b, e) for b, e, gated in held if gated]
                assert all(end <= b or e <= begin for b, e in ranges)
                live.append((tensor, which, set()))
            elif what == "free" and live:
                tensor, stream, recorded = live.pop(number % len(live))
                held.append((tensor.data_ptr(), tensor.data_ptr() + tensor.numel(), recorded & gates.keys() - {stream}))
                del tensor
            elif what == "record" and live:
                tensor, _, recorded = live[number % len(live)]
                tensor.record_stream(streams[which])
                recorded.add(which)
                del tensor
            elif what == "close" and which not in gates:
                gates[which] = _C.Gate(streams[which])
            elif what == "open" and which in gates:
                gates.pop(which).open()
                streams[which].synchronize()
                for _, _, gated in held:
                    gated.discard(which)
            elif what == "empty":
                torch.accelerator.empty_cache()
            elif what == "peaks":
                model.reset_peaks()
            elif what == "totals":
                model.reset_totals()
            model.check()
        for closed in gates.values():
            closed.open()
        live.clear()
        torch.accelerator.synchronize(device)
        torch.accelerator.empty_cache()
        now = seen(device)
        assert now["active.all"] == now["allocation.all"]  # all that waited has come back
    finally:
        for closed in gates.values():
            closed.open()


def test_every_statistic_is_there(device: torch.device) -> None:
    x, y = new(1000, device), new(2 * MIB, device)
    stats = torch.accelerator.memory_stats(device.index)
    for name, small, large in (
        ("allocation", 1, 1), ("allocated_bytes", 1024, 2 * MIB), ("requested_bytes", 1000, 2 * MIB), ("segment", 1, 1),
        ("reserved_bytes", 2 * MIB, 20 * MIB), ("active", 1, 1), ("active_bytes", 1024, 2 * MIB),
    ):  # fmt: skip
        assert stats[f"{name}.small_pool.allocated"] == small
        assert stats[f"{name}.large_pool.allocated"] == large
        assert stats[f"{name}.all.allocated"] == small + large
    assert stats["inactive_split_bytes.large_pool.current"] >= 18 * MIB
    assert stats["max_split_size"] == 2**63 - 1 or stats["max_split_size"] == -1
    del x, y
    stats = torch.accelerator.memory_stats(device.index)
    assert stats["allocated_bytes.all.freed"] == 1024 + 2 * MIB


def test_statistics_before_the_first_use(run_python: Run) -> None:  # B19
    done = run_python("""
        import torch, cookbook_backend
        for f in ("empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved",
                  "max_memory_reserved", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
            for module in (torch.accelerator, torch.cookbook):
                getattr(module, f)()
        free, total = torch.cookbook.mem_get_info()
        assert free == total == torch.accelerator.get_memory_info(1)[1]
        assert torch.cookbook.memory_snapshot() == []
        assert set(torch.accelerator.memory_stats("cookbook:1").values()) <= {0, 2**63 - 1, -1}
        print([cookbook_backend._C.has_context(d) for d in (0, 1)])
    """)
    assert done.stdout == "[False, False]\n", done.stderr


def test_a_device_that_does_not_exist() -> None:
    for action in (
        lambda: torch.accelerator.memory_stats(7),
        lambda: torch.accelerator.reset_peak_memory_stats(7),
        lambda: torch.accelerator.get_memory_info(7),
        lambda: cookbook_backend.memory_snapshot(7),
    ):
        with pytest.raises(RuntimeError, match="7"):
            action()


def test_snapshot(device: torch.device, gate: CloseGate) -> None:
    side = torch.Stream(device)
    with side:
        x, y = new(1000, device), new(5000, device)
    closed = gate(current(device))
    x.record_stream(current(device))
    segment = segment_of(x)
    address = segment["address"]
    del x
    (now,) = [s for s in segments(device) if s["address"] == address]
    assert now["blocks"] == [
        {"address": address, "size": 1024, "requested_size": 1000, "state": "active_pending_free"},
        {"address": address + 1024, "size": 5120, "requested_size": 5000, "state": "active_allocated"},
        {"address": address + 6144, "size": 2 * MIB - 6144, "requested_size": 0, "state": "inactive"},
    ]
    assert {key: value for key, value in now.items() if key not in ("blocks", "address")} == {
        "device": device.index, "total_size": 2 * MIB, "allocated_size": 5120, "active_size": 6144,
        "requested_size": 6000, "stream": side.native_handle, "segment_type": "small", "segment_pool_id": (0, 0),
        "is_expandable": False,
    }  # fmt: skip
    closed.open()
    assert y.numel() == 5000


# ---- private pools ---------------------------------------------------------------------------------------------------


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


# ---- threads, observers, processes -----------------------------------------------------------------------------------


def test_threads_and_streams(device: torch.device) -> None:
    """Four threads allocate, write, read on a side stream and free at random. No value is ever another thread's."""
    wrong: list[str] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        rng = random.Random(number)
        mine, side = torch.Stream(device), torch.Stream(device)
        held: list[tuple[Tensor, float]] = []
        start.wait()
        for step in range(150):
            with mine:
                x = torch.full((rng.choice([10, 1000, 50_000, 400_000]),), float(number * 1000 + step), device=device)
            if rng.random() < 0.4:
                side.wait_stream(mine)
                with side:
                    y = x + 0
                x.record_stream(side)
                held.append((y, float(number * 1000 + step)))
                y.record_stream(mine)
            held.append((x, float(number * 1000 + step)))
            del x
            while len(held) > rng.randrange(1, 12):
                tensor, value = held.pop(rng.randrange(len(held)))
                side.synchronize()
                with mine:
                    low, high = tensor.aminmax()
                    if (low.item(), high.item()) != (value, value):
                        wrong.append(f"{low.item()} {high.item()} {value}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    seen(device)


def test_observers_may_take_the_gil_and_allocate(run_python: Run) -> None:  # B18
    """One thread allocates without the GIL, and its observer takes it; another holds it and frees.

    Were the observer called under the allocator's lock, each would have what the other waits for.
    """
    done = run_python("""
        import faulthandler, threading, torch, cookbook_backend
        faulthandler.dump_traceback_later(40, exit=True)
        trace = cookbook_backend._gpu_trace
        lives, ends, inner, inside = [], [], [], []
        def began(address):
            lives.append(address)
            if threading.current_thread() is threading.main_thread() or inside or len(inner) == 50: return
            inside.append(True)
            inner.append(torch.empty(5, device="cookbook").numel())
            inside.pop()
        trace.MemoryAllocationCallbacks.add_callback(began)
        trace.MemoryDeallocationCallbacks.add_callback(ends.append)
        torch._C._activate_gpu_trace()
        thread = threading.Thread(target=lambda: cookbook_backend._C.time_pairs("cache", 1000, 20_000))
        thread.start()
        mine = 0
        while thread.is_alive():
            held = [torch.empty(250, device="cookbook") for _ in range(50)]
            mine += len(held)
            del held
        print(len(lives) == len(ends) == 20_000 + mine + len(inner), len(inner), mine > 0)
        # Nobody hears of a block's next life before its last one's end.
        assert sorted(set(lives)) == sorted(set(ends))
    """)
    assert done.stdout == "True 50 True\n", done.stderr


def test_an_observer_sees_each_life_end_before_the_next(run_python: Run) -> None:
    done = run_python("""
        import threading, torch, cookbook_backend
        trace, alive, wrong = cookbook_backend._gpu_trace, set(), []
        def began(address):
            wrong.append(address) if address in alive else alive.add(address)
        trace.MemoryAllocationCallbacks.add_callback(began)
        trace.MemoryDeallocationCallbacks.add_callback(alive.remove)
        torch._C._activate_gpu_trace()
        def work():
            for _ in range(300):
                del [torch.empty(100, device="cookbook") for _ in range(5)][:]
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(wrong, alive)
    """)
    assert done.stdout == "[] set()\n", done.stderr
    assert "Error" not in done.stderr


def test_the_profiler_sees_memory(device: torch.device) -> None:
    with torch.profiler.profile(profile_memory=True) as profile:
        x = torch.empty(1 << 20, device=device)
        del x
    events = [e for e in profile.events() if e.name == "[memory]" or "empty" in e.name]
    assert sum(e.device_memory_usage for e in events if "empty" in e.name) >= 1 << 22


def test_a_child_may_drop_what_it_inherited(run_python: Run) -> None:
    """Whoever forks takes the allocator's locks: a child finds none that a thread of its parent has left locked."""
    done = run_python("""
        import os, threading, torch, cookbook_backend
        side = torch.Stream("cookbook")
        stop = threading.Event()
        def work():
            while not stop.is_set():
                cookbook_backend._C.time_pairs("cache", 1000, 10_000)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        codes = set()
        for _ in range(30):
            x, y = torch.empty(1000, device="cookbook"), torch.empty(1000, device="cookbook")
            y.record_stream(side)
            child = os.fork()
            if child == 0:
                del x, y
                os._exit(7)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        [t.join() for t in threads]
        print(codes)
    """)
    assert done.stdout == "{7}\n", done.stderr
    assert "Warning" not in done.stderr


def test_tensors_that_outlive_the_program(run_python: Run) -> None:
    done = run_python("""
        import atexit, torch, cookbook_backend
        kept = [torch.ones(1000, device="cookbook") for _ in range(10)]
        side = torch.Stream("cookbook")
        [x.record_stream(side) for x in kept]
        atexit.register(lambda: kept.pop())
        torch.kept = kept
        class Late:
            def __del__(self, kept=kept):  # modules are gone by then
                kept.clear()
        torch.late = Late()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_pairs_for_the_benchmark(device: torch.device) -> None:
    x = new(1000, device)
    del x
    before = counters(device)[0]
    torch.accelerator.set_device_index(device.index)
    for allocator, calls in (("cache", 0), ("cpu", 0), ("direct", 100)):
        assert _C.time_pairs(allocator, 1000, 100) > 0
        assert counters(device)[0] - before == calls
    with pytest.raises(ValueError, match="expected 'cache'"):
        _C.time_pairs("other", 1000, 1)

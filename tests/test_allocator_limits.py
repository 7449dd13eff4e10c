# chapter 4
"""The caching allocator when memory is short: errors, retries, fractions, and PYTORCH_ALLOC_CONF."""

from __future__ import annotations

import re
import textwrap

import pytest
import torch
from allocator_blocks import (
    MIB,
    counters,
    new,
    segments,
    stat,
)
from allocator_blocks import device as device  # the fixture
from conftest import Run

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")


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

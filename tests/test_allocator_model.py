# chapter 4
"""The caching allocator: any sequence of calls against a model, and its statistics."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
import torch
from allocator_blocks import (
    MIB,
    CloseGate,
    around,
    counters,
    current,
    new,
    seen,
    segment_of,
    segments,
)
from allocator_blocks import device as device  # the fixture
from conftest import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")


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

# chapter 4
"""The caching allocator under threads, observers, forks and exits."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from allocator_blocks import (
    counters,
    new,
    seen,
)
from allocator_blocks import device as device  # the fixture
from conftest import Run
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
pytestmark = pytest.mark.usefixtures("time_limit")


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

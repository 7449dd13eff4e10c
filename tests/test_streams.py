# chapter 4
"""Streams and events. A gate is closed in some stream nearly always, so that a missing or a needless wait fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from conftest import Run
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
pytestmark = pytest.mark.usefixtures("time_limit")

LARGE = 1 << 16


def default_stream(device: torch.device) -> torch.Stream:
    return cookbook_backend.default_stream(device)


# ---- the pool --------------------------------------------------------------------------------------------------------


def test_streams_are_real_and_differ(device: torch.device) -> None:  # B22
    streams = [torch.Stream(device) for _ in range(8)]
    assert len({s.stream_id for s in streams}) == 8
    assert 0 not in {s.stream_id for s in streams}
    assert {s.device for s in streams} == {device}
    assert default_stream(device).stream_id == 0


def test_pool_hands_out_32_streams_in_turn(run_python: Run) -> None:
    done = run_python("""
        import torch, cookbook_backend
        for device in ("cookbook:0", "cookbook:1"):
            for priority in (0, -1):
                first = [torch.Stream(device, priority=priority) for _ in range(32)]
                assert len(set(first)) == 32
                assert [torch.Stream(device, priority=priority) for _ in range(32)] == first
        print("ok")
    """)
    assert done.stdout == "ok\n", done.stderr


def test_no_context_and_no_thread_before_first_use(run_python: Run) -> None:
    done = run_python("""
        import os, torch, cookbook_backend
        threads = lambda: len(os.listdir("/proc/self/task"))
        torch.accelerator.current_stream(0), torch.accelerator.current_stream(1), torch.Event("cookbook")
        cookbook_backend.stream_priority_range()
        contexts = [cookbook_backend._C.has_context(d) for d in (0, 1)]
        before = threads()
        streams = [torch.Stream("cookbook:1") for _ in range(8)]
        print(contexts, threads() - before)
        gate = cookbook_backend._C.Gate(streams[3])
        print([cookbook_backend._C.has_context(d) for d in (0, 1)], threads() - before)
        gate.open()
    """)
    assert done.stdout == "[False, False] 0\n[False, True] 1\n", done.stderr


def test_pool_under_threads(run_python: Run) -> None:
    """Threads that ask at once get streams of the pool, 32 and no more, each as often as the others."""
    done = run_python("""
        import collections, threading, torch, cookbook_backend
        got = collections.Counter()
        lock, start = threading.Lock(), threading.Barrier(8)
        def ask():
            start.wait()
            mine = [torch.Stream("cookbook:0") for _ in range(64)]
            with lock:
                got.update(mine)
        threads = [threading.Thread(target=ask) for _ in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(len(got), set(got.values()))
    """)
    assert done.stdout == "32 {16}\n", done.stderr


def test_priorities(device: torch.device) -> None:
    least, greatest = cookbook_backend.stream_priority_range(device)
    assert (least, greatest) == (0, -3)
    for asked, given in ((0, 0), (-1, -1), (-3, -3), (-99, -3), (5, 0)):
        assert cookbook_backend.stream_priority(torch.Stream(device, priority=asked)) == given
    assert torch.Stream(device, priority=-1) != torch.Stream(device, priority=-2)
    assert cookbook_backend.stream_priority(default_stream(device)) == 0


def test_stream_of_the_current_device() -> None:
    torch.accelerator.set_device_index(1)
    assert torch.Stream().device == torch.Stream("cookbook").device == torch.device("cookbook:1")
    assert torch.Stream(torch.device("cookbook:0")).device.index == 0
    assert torch.accelerator.current_device_index() == 1


def test_stream_of_a_device_that_does_not_exist() -> None:
    with pytest.raises(RuntimeError, match="cookbook:7|device 7|index"):
        torch.Stream("cookbook:7")


# ---- the current stream ----------------------------------------------------------------------------------------------


def test_equality_and_hash(device: torch.device) -> None:
    stream = torch.Stream(device)
    again = torch.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
    assert stream == again and hash(stream) == hash(again) and stream is not again
    with stream:
        assert torch.accelerator.current_stream(device) == stream
        assert {torch.accelerator.current_stream(device): "here"}[stream] == "here"
    assert torch.accelerator.current_stream(device) == default_stream(device) != stream
    assert default_stream(torch.device("cookbook:0")) != default_stream(torch.device("cookbook:1"))


@pytest.mark.parametrize("enter", [lambda stream: stream, cookbook_backend.stream], ids=["with", "stream()"])
def test_with_restores_stream_and_device(
    enter: Callable[[torch.Stream], AbstractContextManager[object]], device: torch.device
) -> None:
    other = torch.device("cookbook", 1 - device.index)
    a, b = torch.Stream(device), torch.Stream(other)

    def fail() -> None:
        with enter(a), enter(a):
            assert torch.accelerator.current_device_index() == device.index
            with enter(b):
                assert torch.accelerator.current_device_index() == other.index
                assert torch.accelerator.current_stream() == b
                assert torch.accelerator.current_stream(device) == a
                raise KeyError

    torch.accelerator.set_device_index(1)
    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
    assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_stream(device) == default_stream(device)
    assert torch.accelerator.current_stream(other) == default_stream(other)


def test_stream_that_is_current_on_another_device() -> None:
    """Core's `with` does nothing for a stream that is current on its device, also when the device is not."""
    with torch.Stream("cookbook:1"), default_stream(torch.device("cookbook:0")):
        assert torch.accelerator.current_device_index() == 1
        with cookbook_backend.stream(default_stream(torch.device("cookbook:0"))):
            assert torch.accelerator.current_device_index() == 0
        assert torch.accelerator.current_device_index() == 1


def test_set_stream_changes_stream_and_device() -> None:
    stream, before = torch.Stream("cookbook:1"), torch.accelerator.current_stream(1)
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_device_index() == 1
        assert torch.accelerator.current_stream() == stream
        assert torch.accelerator.current_stream(0) == default_stream(torch.device("cookbook:0"))
        assert (torch.ones(3, device="cookbook") + 1).device.index == 1
    finally:
        torch.accelerator.set_stream(before)


def test_current_stream_is_a_threads_own(device: torch.device) -> None:
    stream, seen = torch.Stream(device), []

    def look() -> None:
        seen.append(torch.accelerator.current_stream(device))
        torch.accelerator.set_stream(torch.Stream(device))

    with stream:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream(device) == stream
    assert seen == [default_stream(device)]


def test_one_stream_from_many_threads_is_one_order(device: torch.device, gate: CloseGate) -> None:
    stream, x = torch.Stream(device), torch.zeros(LARGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(stream)

    def add() -> None:
        with stream:
            for _ in range(50):
                x.add_(1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not stream.query()
    closed.open()
    stream.synchronize()
    assert (x == 200).all()


# ---- every operator --------------------------------------------------------------------------------------------------


def _linear_step(x: Tensor) -> Tensor:
    layer = torch.nn.Linear(8, 8, device=x.device)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(x[:64].view(8, 8)).square().sum().backward()
    optimizer.step()
    return layer.weight.detach()


# What may queue work, by name: x is a float vector of 1024 on the device, y the same in pinned memory.
WORK: dict[str, Callable[[Tensor, Tensor], object]] = {
    "kernel": lambda x, y: (x * 2 + 1).sum().item(),
    "matmul": lambda x, y: (x.view(32, 32) @ x.view(32, 32)).cpu(),
    "convolution": lambda x, y: torch.nn.functional.conv2d(x.view(1, 1, 32, 32), x[:9].view(1, 1, 3, 3)).cpu(),
    "fill": lambda x, y: torch.empty_like(x).fill_(3).cpu(),
    "zero": lambda x, y: torch.empty_like(x).zero_().cpu(),
    "arange": lambda x, y: torch.arange(9, device=x.device).tolist(),
    "full": lambda x, y: torch.full((5,), 2.5, device=x.device).tolist(),
    "from pageable": lambda x, y: torch.arange(7.0).to(x.device).cpu(),
    "from pinned": lambda x, y: y.to(x.device, non_blocking=True).cpu(),
    "to pinned": lambda x, y: y.copy_(x),
    "cast": lambda x, y: x.to(torch.float64).cpu(),
    "strided copy": lambda x, y: x.view(32, 32).t().contiguous().cpu(),
    "clone": lambda x, y: x.clone().cpu(),
    "item": lambda x, y: x[3].item(),
    "nonzero": lambda x, y: x.nonzero().cpu(),
    "index": lambda x, y: x[torch.tensor([1, 5, 1023], device=x.device)].cpu(),
    "mask": lambda x, y: x[x > 500].cpu(),
    "topk": lambda x, y: x.topk(4)[0].cpu(),
    "foreach": lambda x, y: torch._foreach_add([x, x * 2], 1)[1].cpu(),
    "resize": lambda x, y: x.clone().resize_(4096)[:1024].cpu(),
    "storage resize": lambda x, y: x.clone().untyped_storage().resize_(8192).nbytes(),
    "fallback": lambda x, y: torch.special.i1e(x).cpu(),
    "random": lambda x, y: torch.randn(4, device=x.device).cpu(),
    "cat": lambda x, y: torch.cat([x, x]).cpu(),
    "print": lambda x, y: repr(x),
    "training": lambda x, y: _linear_step(x).cpu(),
}


@pytest.mark.parametrize("name", sorted(WORK))
def test_work_goes_to_the_current_stream(name: str, device: torch.device, gate: CloseGate) -> None:
    """The default stream is shut: on a side stream everything runs to its end, and the same values come out."""
    x = torch.arange(1024.0, device=device)
    y = torch.zeros(1024).pin_memory()
    torch.accelerator.synchronize(device)
    expected = WORK[name](x, y)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    stream = torch.Stream(device)
    with stream:
        actual = WORK[name](x, y)
        stream.synchronize()
    assert not default_stream(device).query()
    closed.open()
    torch.accelerator.synchronize(device)
    if isinstance(expected, Tensor) and name not in ("random", "training"):
        assert torch.equal(actual, expected)


def test_work_waits_for_the_current_stream(device: torch.device, gate: CloseGate) -> None:
    """The same from the other side: nothing overtakes what is queued on the current stream."""
    stream, x = torch.Stream(device), torch.zeros(LARGE, device=device)
    result = torch.zeros(LARGE).pin_memory()
    torch.accelerator.synchronize(device)
    with stream:
        closed = gate(stream)
        x.fill_(2)
        y = x * 3
        result.copy_(y, non_blocking=True)
        z = y.clone().zero_()
    assert not stream.query()
    assert default_stream(device).query()
    assert (result == 0).all()
    closed.open()
    stream.synchronize()
    assert (result == 6).all()
    assert (z.cpu() == 0).all()


def test_copy_between_devices_uses_both_current_streams(gate: CloseGate) -> None:
    source, target = torch.Stream("cookbook:0"), torch.Stream("cookbook:1")
    x, y = torch.zeros(LARGE, device="cookbook:0"), torch.zeros(LARGE, device="cookbook:1")
    for device in (0, 1):
        torch.accelerator.synchronize(device)
        gate(default_stream(torch.device("cookbook", device)))
    with source, target:
        closed = gate(source)
        x.fill_(4)
        y.copy_(x)
        y.add_(1)  # after the copy has written it
        x.fill_(9)  # after the copy has read it
    assert not source.query() and not target.query()
    closed.open()
    target.synchronize(), source.synchronize()
    with source, target:
        assert (y.cpu() == 5).all() and (x.cpu() == 9).all()


# ---- ordering --------------------------------------------------------------------------------------------------------


def test_wait_stream(device: torch.device, gate: CloseGate) -> None:
    a, b = torch.Stream(device), torch.Stream(device)
    x, y = torch.zeros(LARGE, device=device), torch.zeros(LARGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(a)
    with a:
        x.fill_(1)
    b.wait_stream(a)
    with a:
        late = gate(a)  # queued after the wait: b does not wait for it
    with b:
        y.copy_(x)
    assert not b.query()
    closed.open()
    b.synchronize()
    assert not a.query()
    late.open()
    assert (y.cpu() == 1).all()


def test_wait_event_waits_for_the_version_of_that_moment(device: torch.device, gate: CloseGate) -> None:
    a, b, c = (torch.Stream(device) for _ in range(3))
    event = torch.Event(device)
    first = gate(a)
    event.record(a)
    b.wait_event(event)  # version 1
    event.record(c)  # version 2, on an idle stream: finished
    assert event.query()
    event.synchronize()
    assert not b.query()
    second = gate(c)
    event.record(c)  # version 3
    assert not event.query()
    first.open()
    b.synchronize()  # does not wait for version 3
    assert not event.query()
    second.open()
    event.synchronize()
    assert event.query()


def test_event_that_was_never_recorded(device: torch.device, gate: CloseGate) -> None:
    event, stream = torch.Event(device), torch.Stream(device)
    closed = gate(default_stream(device))
    assert event.query()
    event.synchronize()
    stream.wait_event(event)
    event.wait(stream)
    stream.synchronize()
    assert event.event_id == 0
    closed.open()


def test_record_event_and_wait_use_the_current_stream(device: torch.device, gate: CloseGate) -> None:
    a, b = torch.Stream(device), torch.Stream(device)
    closed = gate(a)
    with a:
        event = a.record_event()
        same = torch.Event(device)
        same.record()
        assert a.record_event(same) is same
    with b:
        same.wait()
    assert not event.query() and not same.query() and not b.query()
    closed.open()
    b.synchronize()
    assert event.query() and same.query()


def test_many_streams_wait_for_one_event(device: torch.device, gate: CloseGate) -> None:
    producer, x = torch.Stream(device), torch.zeros(LARGE, device=device)
    waiters = [torch.Stream(f"cookbook:{i % 2}") for i in range(12)]
    results = [torch.zeros(LARGE, device=s.device) for s in waiters]
    for index in (0, 1):
        torch.accelerator.synchronize(index)
    closed = gate(producer)
    with producer:
        x.fill_(5)
        event = producer.record_event()
    for waiter, result in zip(waiters, results, strict=True):
        waiter.wait_event(event)
        with waiter:
            if result.device == device:
                result.copy_(x)
            else:
                result.fill_(5)
    del event  # the queued waits keep what they need
    assert not any(waiter.query() for waiter in waiters)
    closed.open()
    for waiter, result in zip(waiters, results, strict=True):
        waiter.synchronize()
        with waiter:
            assert (result.cpu() == 5).all()


def test_a_ring_of_events_is_no_deadlock(device: torch.device, gate: CloseGate) -> None:
    """Streams that wait for each other again and again: each wait is for what was queued before it."""
    streams = [torch.Stream(device) for _ in range(3)]
    x = torch.zeros(LARGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(streams[0])
    for turn in range(60):
        now, before = streams[turn % 3], streams[(turn - 1) % 3]
        now.wait_stream(before)
        with now:
            x.mul_(2).add_(1).remainder_(1000)
    closed.open()
    expected = 0
    for _ in range(60):
        expected = (expected * 2 + 1) % 1000
    torch.accelerator.synchronize(device)
    assert (x == expected).all()


def test_event_belongs_to_the_device_of_its_first_record(gate: CloseGate) -> None:
    event, one, zero = torch.Event("cookbook"), torch.Stream("cookbook:1"), torch.Stream("cookbook:0")
    closed = gate(one)
    event.record(one)
    assert event.device == torch.device("cookbook:1")
    with pytest.raises(RuntimeError, match=r"expected a stream of cookbook:1.*got one of cookbook:0"):
        event.record(zero)
    zero.wait_event(event)  # waiting crosses devices
    assert not zero.query()
    closed.open()
    zero.synchronize()
    assert event.query() and torch.accelerator.current_device_index() == 0


def test_synchronize_waits_for_what_was_asked(gate: CloseGate) -> None:
    streams = [torch.Stream(f"cookbook:{d}") for d in (0, 0, 1)]
    zero = gate(streams[0])
    streams[1].synchronize()
    streams[2].synchronize()
    torch.accelerator.synchronize(1)
    torch.accelerator.synchronize("cookbook:1")
    cookbook_backend.synchronize(1)
    torch.accelerator.set_device_index(1)
    torch.accelerator.synchronize()
    assert not streams[0].query()

    done: list[bool] = []
    thread = threading.Thread(target=lambda: (torch.accelerator.synchronize(0), done.append(streams[0].query())))
    thread.start()
    time.sleep(0.05)
    assert not done  # and it waits without the GIL, or this line would not be reached
    zero.open()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("wait", ["stream", "event", "device", "item", "cpu"])
def test_waiting_releases_the_gil(wait: str, device: torch.device, gate: CloseGate) -> None:
    stream, x = torch.Stream(device), torch.ones(3, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(stream)
    event = stream.record_event()

    def block() -> None:
        with stream:
            {
                "stream": stream.synchronize,
                "event": event.synchronize,
                "device": lambda: torch.accelerator.synchronize(device),
                "item": lambda: x.sum().item(),
                "cpu": x.cpu,
            }[wait]()

    thread = threading.Thread(target=block)
    thread.start()
    while not closed.reached:  # the waiting thread, or the stream's own, stands in front of the gate
        time.sleep(0.001)
    time.sleep(0.02)
    assert thread.is_alive()
    closed.open()
    thread.join()


# ---- time ------------------------------------------------------------------------------------------------------------


def test_elapsed_time_is_the_devices(device: torch.device, gate: CloseGate) -> None:
    stream, x = torch.Stream(device), torch.zeros(4, device=device)
    torch.accelerator.synchronize(device)
    events = [torch.Event(device, enable_timing=True) for _ in range(3)]
    closed = gate(stream)
    with stream:
        events[0].record()
        time.sleep(0.1)  # the host is slow, the device is not: both records run when the gate opens
        events[1].record()
        _C.inject_fault(device.index, "delay", 1, 30_000)
        x.add_(1)
        events[2].record()
    closed.open()
    stream.synchronize()
    assert 0 <= events[0].elapsed_time(events[1]) < 90
    assert events[1].elapsed_time(events[2]) >= 30
    assert events[2].elapsed_time(events[0]) < 0


def test_elapsed_time_says_what_is_missing(device: torch.device, gate: CloseGate) -> None:
    begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    stream = torch.Stream(device)
    begin.record(stream)
    with pytest.raises(ValueError, match="must be recorded"):
        begin.elapsed_time(end)
    plain = torch.Event(device, enable_timing=False)
    plain.record(stream)
    with pytest.raises(ValueError, match="enable_timing=True"):
        begin.elapsed_time(plain)
    closed = gate(stream)
    end.record(stream)
    with pytest.raises(RuntimeError, match="completed"):
        begin.elapsed_time(end)
    closed.open()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    other = torch.Event(enable_timing=True)
    other.record(torch.Stream(f"cookbook:{1 - device.index}"))
    other.synchronize()
    with pytest.raises(RuntimeError, match="devices"):
        begin.elapsed_time(other)


# ---- streams of others, failures -------------------------------------------------------------------------------------


def test_external_stream(device: torch.device, gate: CloseGate) -> None:
    handle = _C.driver_stream_create(device.index, -2)
    stream = cookbook_backend.external_stream(handle)
    assert stream.device == device
    assert stream.stream_id == stream.native_handle == handle
    assert cookbook_backend.stream_priority(stream) == -2
    x = torch.zeros(LARGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(stream)
    with stream:
        x.fill_(7)
        event = stream.record_event()
    torch.accelerator.current_stream(device).wait_event(event)
    closed.open()
    assert (x.cpu() == 7).all()
    _C.driver_stream_destroy(handle)
    with pytest.raises(RuntimeError, match="destroyed|not a stream"), stream:
        pass
    assert torch.accelerator.current_stream(device) == default_stream(device)


def test_stream_destroyed_while_it_is_current(device: torch.device) -> None:
    """Its owner's mistake: an error at the next launch, and the way back is open."""
    handle = _C.driver_stream_create(device.index, 0)
    with cookbook_backend.external_stream(handle):
        torch.zeros(3, device=device)
        _C.driver_stream_destroy(handle)
        with pytest.raises(RuntimeError, match="destroyed"):
            torch.zeros(3, device=device)
    assert torch.zeros(3, device=device).sum().item() == 0


def test_external_stream_of_the_default_handle_is_the_default_stream(device: torch.device) -> None:
    handle = default_stream(device).native_handle
    assert handle != 0
    assert cookbook_backend.external_stream(handle) == default_stream(device)


@pytest.mark.parametrize("handle", [0, 1, 4096, 1 << 40])
def test_numbers_that_are_no_streams(handle: int) -> None:
    with pytest.raises((ValueError, RuntimeError), match="stream"):
        cookbook_backend.external_stream(handle)
    if handle:
        made_up = torch.Stream(stream_id=handle, device_index=0, device_type=torch.Stream("cookbook:0").device_type)
        for use in (made_up.synchronize, made_up.query, made_up.record_event, made_up.__enter__):
            with pytest.raises(RuntimeError, match="not a stream"):
                use()


def test_stream_under_the_name_of_another_device() -> None:
    one = torch.Stream("cookbook:1")
    wrong = torch.Stream(stream_id=one.stream_id, device_index=0, device_type=one.device_type)
    with pytest.raises(RuntimeError, match="belongs to cookbook:1, not to cookbook:0"), wrong:
        pass
    assert torch.accelerator.current_stream(0).stream_id == 0


def test_events_on_a_failed_device(device: torch.device, gate: CloseGate) -> None:
    stream, x = torch.Stream(device), torch.zeros(8, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(stream)
    with stream:
        _C.inject_fault(device.index, "launch", 1, 0)
        x.add_(1)
        event = stream.record_event()
    assert not event.query()
    closed.open()
    with pytest.raises(RuntimeError, match="kernel 'add.*' on device"):
        event.synchronize()
    late = stream.record_event()  # recording, asking and destroying still work
    assert event.query() and late.query()
    del event, late
    with pytest.raises(RuntimeError, match="add"):
        stream.synchronize()
    _C.reset(device.index)
    stream.synchronize()
    with stream:
        assert (x + 1).sum().item() == 8


# ---- what core does with the guard -----------------------------------------------------------------------------------


def test_future_runs_its_callback_on_a_pooled_stream(device: torch.device, gate: CloseGate) -> None:
    """Core asks for a stream of the pool, makes it wait for the result's stream and records the result's memory on it."""
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[device])
    seen: list[torch.Stream] = []

    def double(done: torch.futures.Future[Tensor]) -> Tensor:
        seen.append(torch.accelerator.current_stream(device))
        return done.value() * 2

    result = future.then(double)
    producer = torch.Stream(device)
    with producer:
        closed = gate(producer)
        future.set_result(torch.ones(LARGE, device=device))
        assert seen[0] not in (producer, default_stream(device))
        assert not seen[0].query()
        closed.open()
        value = result.wait()
        assert (value.cpu() == 2).all()


def test_module_names_are_those_of_other_backends(device: torch.device) -> None:  # B67
    assert cookbook_backend.Stream is torch.Stream and cookbook_backend.Event is torch.Event
    stream = cookbook_backend.Stream(device=device, priority=-1)
    with cookbook_backend.stream(stream):
        assert cookbook_backend.current_stream(device) == stream
        assert cookbook_backend.current_stream() == stream
    with cookbook_backend.stream(None):
        assert cookbook_backend.current_stream(device) == cookbook_backend.default_stream(device)
    before = cookbook_backend.current_stream(device)
    cookbook_backend.set_stream(stream)
    assert cookbook_backend.current_stream(device) == stream
    cookbook_backend.set_stream(before)
    with pytest.raises(ValueError, match="expected a cookbook device, got cpu"):
        cookbook_backend.current_stream("cpu")

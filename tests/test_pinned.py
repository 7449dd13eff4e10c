# chapter 4
"""Pinned host memory: what is pinned, what the cache keeps, and that no block serves twice while a copy uses it.

Asynchrony is shown by gates: what must not have happened yet is looked at while a gate is closed.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from conftest import Run
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import cookbook_backend

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], cookbook_backend._C.Gate]
PAGE = 4096  # elements of most tensors here: more than any cache line, less than anything slow


def default_stream(device: torch.device) -> torch.Stream:
    return torch.cookbook.default_stream(device)


def stats(name: str) -> int:
    return torch.cookbook.host_memory_stats()[name]


def synchronizations() -> int:
    return sum(_C.counters(i)["synchronizations"] for i in range(torch.cookbook.device_count()))


def pinned(value: float, elements: int = PAGE) -> Tensor:
    return torch.full((elements,), value, pin_memory=True)


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """Start with nothing in the cache, nothing in flight, no stream left current, and counts that begin at zero."""
    gc.collect()
    for index in range(torch.cookbook.device_count()):
        torch.accelerator.synchronize(index)
    torch.accelerator.empty_host_cache()
    torch.cookbook.reset_accumulated_host_memory_stats()
    torch.cookbook.reset_peak_host_memory_stats()


# What is pinned.

FACTORIES: dict[str, Callable[..., Tensor]] = {
    "empty": lambda **k: torch.empty(3, 2, **k).zero_(),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (1, 2), **k).zero_(),
    "empty_like": lambda **k: torch.empty_like(torch.ones(3, 2).T, **k).zero_(),
    "new_empty": lambda **k: torch.ones(2).new_empty((2, 2), **k).zero_(),
    "new_full": lambda **k: torch.ones(2).new_full((2, 2), 3, **k),
    "zeros": lambda **k: torch.zeros(3, **k),
    "zeros_like": lambda **k: torch.zeros_like(torch.ones(3), **k),
    "ones": lambda **k: torch.ones(3, dtype=torch.int64, **k),
    "full": lambda **k: torch.full((2, 2), 7.0, **k),
    "full_like": lambda **k: torch.full_like(torch.ones(2, 2), 7.0, **k),
    "tensor": lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    "arange": lambda **k: torch.arange(5, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 4, **k),
    "eye": lambda **k: torch.eye(3, **k),
    "rand": lambda **k: torch.rand(4, **k),
    "randn": lambda **k: torch.randn(4, **k),
    "randint": lambda **k: torch.randint(9, (4,), **k),
    "randperm": lambda **k: torch.randperm(6, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
}


@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_factories_pin(name: str) -> None:  # B14
    torch.manual_seed(0)
    plain = FACTORIES[name]()
    torch.manual_seed(0)
    result = FACTORIES[name](pin_memory=True)
    assert result.is_pinned()
    assert not plain.is_pinned()
    assert result.device == torch.device("cpu")
    assert (result.dtype, result.stride()) == (plain.dtype, plain.stride())
    assert torch.equal(result, plain)


def test_pin_memory_copies_values_and_strides_once() -> None:
    source = torch.arange(12.0).reshape(3, 4)
    for view in (source, source.T, source[:, 1:3], source[1], source[::2], source.conj(), source.to(torch.complex64)):
        copy = view.pin_memory()
        assert copy.is_pinned()
        assert copy.stride() == view.stride()
        assert torch.equal(copy, view)
        assert copy.data_ptr() != view.data_ptr()
        assert copy.pin_memory().data_ptr() == copy.data_ptr()  # it is pinned already
    assert (
        torch.ones(3, requires_grad=True).pin_memory().requires_grad == torch.ones(3, requires_grad=True).requires_grad
    )


def test_views_of_pinned_tensors_are_pinned() -> None:
    base = pinned(1.0).reshape(64, 64)
    for view in (
        base[3:],
        base.T,
        base[:, 5],
        base[-1, -1],
        base.view(torch.int32),
        base.unfold(0, 4, 2),
        base.detach(),
    ):
        assert view.is_pinned()
    assert not base.clone().is_pinned()
    assert not (base + 1).is_pinned()


def test_any_address_inside_a_block_is_pinned_and_none_beside_it() -> None:
    block = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    storage_of_its_own = torch.from_numpy(block.numpy()[4000:])  # begins in the middle of the block
    assert storage_of_its_own.untyped_storage().data_ptr() == block.data_ptr() + 4000
    assert storage_of_its_own.is_pinned()
    neighbours = [torch.empty(4096, dtype=torch.uint8) for _ in range(64)]
    assert not any(n.is_pinned() for n in neighbours)
    address = block.data_ptr()
    del storage_of_its_own, block
    torch.accelerator.empty_host_cache()
    here = [t for t in (torch.empty(4096, dtype=torch.uint8) for _ in range(256)) if t.data_ptr() == address]
    assert not any(t.is_pinned() for t in here)  # given back is given back


def test_empty_tensors() -> None:
    for empty in (torch.empty(0).pin_memory(), torch.empty(0, pin_memory=True), torch.empty(3, 0, 2).pin_memory()):
        assert empty.is_pinned() is False  # as on every device: there is no memory to be pinned
        assert empty.numel() == 0
        target = torch.empty(empty.shape, device="cookbook")
        assert target.copy_(empty, non_blocking=True).shape == empty.shape
    assert torch.empty(3, 0, 2).pin_memory().stride() == torch.empty(3, 0, 2).stride()
    assert stats("num_host_alloc") == 0


def test_only_cpu_tensors_can_be_pinned() -> None:
    on_device = torch.ones(2, device="cookbook")
    assert not on_device.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        on_device.pin_memory()
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        on_device.untyped_storage().pin_memory()
    for factory in (torch.empty, torch.zeros, torch.rand):
        with pytest.raises(RuntimeError, match=r"[Oo]nly dense CPU tensors can be pinned"):
            factory(2, device="cookbook", pin_memory=True)


@pytest.mark.filterwarnings("ignore:The argument 'device' of Tensor")
def test_device_argument() -> None:  # deprecated, but people have it in their programs
    for device in ("cookbook", torch.device("cookbook:1")):
        x = torch.ones(3).pin_memory(device)
        assert x.is_pinned(device)
        assert x.is_pinned()
        assert not torch.ones(3).is_pinned(device)
    assert not x.is_pinned("cuda")  # not for that device
    assert not x.is_pinned("cpu")


def test_storages() -> None:
    plain = torch.arange(4.0).untyped_storage()
    assert not plain.is_pinned()
    storage = plain.pin_memory()
    assert storage.is_pinned()
    assert storage.tolist() == plain.tolist()
    assert storage.pin_memory().data_ptr() == storage.data_ptr()
    typed = torch.storage.TypedStorage(wrap_storage=plain, dtype=torch.float32, _internal=True)
    assert typed.pin_memory().is_pinned()


def test_resize_stays_pinned_and_keeps_values() -> None:
    x = torch.arange(4.0).pin_memory()
    y = torch.empty(4, pin_memory=True).copy_(x)
    y.resize_(3000)
    assert y.is_pinned()
    assert torch.equal(y[:4], x)


def test_wrappers_pin_their_parts() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert packed.pin_memory().is_pinned()
    assert not packed.is_pinned()


# A block is not reused while a copy uses it.


def upload(host: Tensor, on_device: Tensor) -> None:
    on_device.copy_(host, non_blocking=True)


def download(host: Tensor, on_device: Tensor) -> None:
    host.copy_(on_device, non_blocking=True)


def download_part(host: Tensor, on_device: Tensor) -> None:
    host[100:200].copy_(on_device[100:200], non_blocking=True)


def upload_over_numpy(host: Tensor, on_device: Tensor) -> None:
    """Through a storage that begins inside the block and knows nothing of it."""
    on_device[1000:].copy_(torch.from_numpy(host.numpy()[1000:]), non_blocking=True)


TRANSFERS = [upload, download, download_part, upload_over_numpy]


@pytest.mark.parametrize("side_stream", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_block_freed_in_flight_is_not_reused(
    transfer: Callable[[Tensor, Tensor], None], side_stream: bool, device: torch.device, gate: CloseGate
) -> None:
    on_device = torch.full((PAGE,), 1.0, device=device)
    host = pinned(3.0)
    torch.accelerator.synchronize(device)
    stream = torch.Stream(device) if side_stream else default_stream(device)
    closed = gate(stream)
    with stream:
        transfer(host, on_device)
    address = host.data_ptr()
    del host
    others = [pinned(5.0) for _ in range(4)]
    assert address not in [other.data_ptr() for other in others]
    assert stats("active_requests.current") == 5  # the four, and the one that the stream still uses
    closed.open()
    stream.synchronize()
    assert all((other == 5).all() for other in others)
    if transfer is upload:
        assert (on_device.cpu() == 3).all()
    if transfer is upload_over_numpy:
        assert (on_device[1000:].cpu() == 3).all()
    assert pinned(7.0).data_ptr() == address  # the stream has passed: now it serves again
    assert stats("num_host_alloc") == 5


def test_result_of_to_cpu_dropped_in_flight(device: torch.device, gate: CloseGate) -> None:
    on_device = torch.full((PAGE,), 1.0, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    result = on_device.to("cpu", non_blocking=True)
    assert result.is_pinned()  # core pins the result of a non_blocking download
    address = result.data_ptr()
    del result
    other = pinned(5.0)
    assert other.data_ptr() != address
    closed.open()
    torch.accelerator.synchronize(device)
    assert (other == 5).all()


def test_a_block_waits_for_every_stream_that_uses_it(gate: CloseGate) -> None:
    host = pinned(3.0)
    targets = [torch.empty(PAGE, device=f"cookbook:{i}") for i in (0, 0, 1)]
    streams = [torch.Stream("cookbook:0"), torch.Stream("cookbook:0"), torch.Stream("cookbook:1")]
    torch.accelerator.synchronize(0)
    gates = [gate(stream) for stream in streams]
    for stream, target in zip(streams, targets, strict=True):
        with stream:
            target.copy_(host, non_blocking=True)
    address = host.data_ptr()
    del host
    for closed, stream in zip(gates, streams, strict=True):
        other = pinned(5.0)
        assert other.data_ptr() != address
        closed.open()
        stream.synchronize()
    assert pinned(7.0).data_ptr() == address
    assert all((target.cpu() == 3).all() for target in targets)


def test_the_storage_of_a_resized_tensor_is_not_reused_in_flight(device: torch.device, gate: CloseGate) -> None:
    host = pinned(3.0)
    target = torch.empty(PAGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    target.copy_(host, non_blocking=True)
    address = host.data_ptr()
    host.resize_(4 * PAGE).fill_(9.0)  # the old block goes
    assert host.data_ptr() != address
    assert pinned(5.0).data_ptr() != address
    closed.open()
    assert (target.cpu() == 3).all()


def test_a_failed_device_does_not_lose_blocks(device: torch.device, gate: CloseGate) -> None:
    host = pinned(3.0)
    target = torch.ones(PAGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))  # or the device might fail before the copy is queued
    _C.inject_fault(device.index, "launch", 1, 0)
    target.add_(1)
    target.copy_(host, non_blocking=True)  # behind the failure
    closed.open()
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize(device)
    address = host.data_ptr()
    del host
    assert pinned(5.0).data_ptr() == address  # the copy was dropped: nobody uses the block
    _C.reset(device.index)


def test_a_stream_that_was_destroyed_before_the_block_was_freed(device: torch.device) -> None:
    handle = _C.driver_stream_create(device.index, 0)
    host, target = pinned(3.0), torch.zeros(PAGE, device=device)
    torch.accelerator.synchronize(device)
    with torch.cookbook.external_stream(handle):
        target.copy_(host, non_blocking=True)
    _C.driver_stream_destroy(handle)  # its work has run
    address = host.data_ptr()
    del host
    assert pinned(5.0).data_ptr() == address
    assert (target.cpu() == 3).all()


# Copies overlap with the host and with each other.


def test_the_host_goes_on_while_copies_are_queued(device: torch.device, gate: CloseGate) -> None:
    source, result = pinned(3.0), pinned(0.0)
    target = torch.zeros(PAGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    _C.reset_counters(device.index)
    target.copy_(source, non_blocking=True)
    target.add_(1)
    result.copy_(target, non_blocking=True)
    done = torch.Event(device)
    done.record(default_stream(device))
    counters = _C.counters(device.index)
    assert counters["synchronizations"] == 0
    assert counters["bytes_host_to_device"] == counters["bytes_device_to_host"] == 4 * PAGE
    assert not done.query()
    assert (result == 0).all()  # queued, not run
    closed.open()
    done.synchronize()
    assert (result == 4).all()


def test_two_streams_are_inside_a_copys_stream_at_the_same_time(gate: CloseGate) -> None:
    host = [pinned(3.0), pinned(4.0)]
    target = [torch.zeros(PAGE, device="cookbook:0") for _ in host]
    streams = [torch.Stream("cookbook:0") for _ in host]
    torch.accelerator.synchronize(0)
    gates = [gate(stream) for stream in streams]
    for stream, a, b in zip(streams, target, host, strict=True):
        with stream:
            a.copy_(b, non_blocking=True)
    while not all(closed.reached for closed in gates):  # both streams run at once, or this never ends
        time.sleep(0)
    gates[1].open()
    streams[1].synchronize()  # while the first is still closed
    assert not streams[0].query()
    assert (target[1].cpu() == 4).all()
    gates[0].open()
    streams[0].synchronize()
    assert (target[0].cpu() == 3).all()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_copy_with_pageable_memory_waits(direction: str, device: torch.device, gate: CloseGate) -> None:
    pageable, on_device = torch.full((PAGE,), 3.0), torch.full((PAGE,), 4.0, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    before = synchronizations()
    order: list[str] = []

    def copy() -> None:
        if direction == "up":
            on_device.copy_(pageable, non_blocking=True)
            pageable.fill_(9)  # allowed at once: the call has waited
        else:
            pageable.copy_(on_device, non_blocking=True)
        order.append("copied")

    thread = threading.Thread(target=copy)
    thread.start()
    while thread.is_alive() and synchronizations() == before:
        time.sleep(0)
    order.append("opened")
    closed.open()
    thread.join()
    assert order == ["opened", "copied"]
    assert synchronizations() == before + 1
    assert (on_device.cpu() == 3).all() if direction == "up" else (pageable == 4).all()


def test_a_copy_reads_the_memory_when_it_runs(device: torch.device, gate: CloseGate) -> None:
    """The contract's other half: who asks for non_blocking does not write to the source until the copy has run."""
    host, target = pinned(3.0), torch.zeros(PAGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    target.copy_(host, non_blocking=True)
    host.fill_(8.0)
    closed.open()
    assert (target.cpu() == 8).all()


def test_blocking_copies_need_no_event(device: torch.device) -> None:
    host, target = pinned(3.0), torch.zeros(PAGE, device=device)
    target.copy_(host)
    host.copy_(target)
    address = host.data_ptr()
    del host
    assert pinned(5.0).data_ptr() == address


@pytest.mark.parametrize("view", ["transposed", "step", "dtype", "expanded"])
def test_non_blocking_copies_of_every_layout(view: str, device: torch.device) -> None:
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "transposed": lambda t: t.T,
        "step": lambda t: t[:, ::3],
        "dtype": lambda t: t.to(torch.float64).pin_memory(),
        "expanded": lambda t: t[:, :1].expand(64, 64),
    }
    host = torch.arange(4096.0).reshape(64, 64).pin_memory()
    source = views[view](host)
    up = torch.empty(source.shape, device=device).copy_(source, non_blocking=True)
    down = torch.empty(source.shape, pin_memory=True).T.contiguous().T.copy_(up.mul(2), non_blocking=True)
    torch.accelerator.synchronize(device)
    assert torch.equal(up.cpu(), source.float())
    assert torch.equal(down, source.float() * 2)


# The cache.


def test_a_freed_block_is_reused_without_the_driver() -> None:
    before = synchronizations()
    first = pinned(1.0)
    address = first.data_ptr()
    del first
    for _ in range(10):
        assert pinned(2.0).data_ptr() == address
    assert stats("num_host_alloc") == 1
    assert stats("num_host_free") == 0
    assert synchronizations() == before  # without the cache each free waits for all devices


def test_statistics_count_blocks_and_rounded_bytes() -> None:
    a, b = torch.empty(5000, dtype=torch.uint8, pin_memory=True), torch.empty(3, dtype=torch.uint8, pin_memory=True)
    now = torch.cookbook.host_memory_stats()
    assert now["allocations.current"] == now["active_requests.current"] == 2
    assert now["allocated_bytes.current"] == now["active_bytes.current"] == 8192 + 4  # powers of two
    assert now["num_host_alloc"] == now["host_alloc_time.count"] == 2
    del a
    now = torch.cookbook.host_memory_stats()
    assert (now["active_requests.current"], now["active_bytes.current"]) == (1, 4)
    assert (now["allocations.current"], now["allocated_bytes.current"]) == (2, 8196)
    assert (now["active_requests.freed"], now["active_bytes.freed"]) == (1, 8192)
    assert now["active_bytes.peak"] == 8196
    torch.cookbook.reset_peak_host_memory_stats()
    torch.cookbook.reset_accumulated_host_memory_stats()
    now = torch.cookbook.host_memory_stats()
    assert (now["active_bytes.peak"], now["active_bytes.freed"], now["num_host_alloc"]) == (4, 0, 0)
    assert b.is_pinned()


def test_empty_host_cache_gives_back_what_is_free_and_nothing_else(device: torch.device, gate: CloseGate) -> None:
    used, free, in_flight = pinned(1.0), pinned(2.0, 2 * PAGE), pinned(3.0, 4 * PAGE)
    target = torch.zeros(4 * PAGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    target.copy_(in_flight, non_blocking=True)
    del in_flight
    torch.accelerator.empty_host_cache()  # nothing is free yet, so nothing waits
    assert stats("num_host_free") == 0
    del free
    closed.open()
    torch.accelerator.empty_host_cache()
    freed = stats("num_host_free")
    assert freed in (1, 2)  # the one in flight too, if the stream was fast
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_host_cache()
    assert stats("num_host_free") == stats("host_free_time.count") == 2
    assert stats("allocated_bytes.current") == used.nbytes
    assert (target.cpu() == 3).all()


def test_no_lock_is_held_while_memory_is_given_back(device: torch.device, gate: CloseGate) -> None:
    """Giving back waits for the devices. Whoever waits under the cache's locks stops all threads that pin."""
    del [pinned(1.0)][:]
    target = torch.zeros(PAGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(default_stream(device))
    before = synchronizations()
    thread = threading.Thread(target=torch.cookbook.empty_host_cache)
    thread.start()
    while synchronizations() == before:  # until it waits for the stream
        time.sleep(0)
    host = pinned(4.0)
    target.copy_(host, non_blocking=True)
    del host
    assert pinned(5.0).is_pinned()
    assert thread.is_alive()
    closed.open()  # raises if the gate had to open itself: then something above has waited
    thread.join()
    assert (target.cpu() == 4).all()


def test_an_older_block_in_flight_holds_up_the_reuse_of_younger_ones(gate: CloseGate) -> None:
    """How core's cache is: it asks the events in the order of the frees, and stops at the first that has not passed."""
    targets = [torch.zeros(PAGE, device=f"cookbook:{i}") for i in range(2)]
    older, younger = pinned(3.0), pinned(4.0)
    for index in range(2):
        torch.accelerator.synchronize(index)
    closed = gate(default_stream(torch.device("cookbook:0")))
    targets[0].copy_(older, non_blocking=True)
    targets[1].copy_(younger, non_blocking=True)
    address = younger.data_ptr()
    del older, younger
    torch.accelerator.synchronize(1)
    extra = pinned(5.0)
    assert extra.data_ptr() != address  # free, but behind the older one: memory, not correctness
    closed.open()
    torch.accelerator.synchronize(0)
    assert address in [pinned(6.0).data_ptr() for _ in range(2)]


def test_absurd_sizes_are_out_of_memory_and_empty_the_cache() -> None:
    del [pinned(1.0)][:]
    with pytest.raises(torch.OutOfMemoryError, match="pinned memory"):
        torch.empty(1 << 55, dtype=torch.uint8, pin_memory=True)
    assert stats("num_host_free") == 1
    assert pinned(2.0).is_pinned()


def test_out_of_memory_takes_what_the_cache_holds(run_python: Run) -> None:
    done = run_python("""
        import resource, torch, cookbook_backend
        big = [torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(3)]
        x = torch.zeros(64 << 20, dtype=torch.uint8, device="cookbook")
        torch.accelerator.synchronize()
        del big[0]
        x.copy_(big[0], non_blocking=True)
        del big  # one cached at once, one in flight perhaps
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), -1))
        torch.empty(128 << 20, dtype=torch.uint8, pin_memory=True)
        print(torch.cookbook.host_memory_stats()["num_host_free"])
    """)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("pinned_max_round_threshold_mb:1", [3 << 20, 0]),  # 3 MiB stay 3 MiB
        ("pinned_max_cached_size_mb:1", [3 << 20, 1]),  # nor are they kept
        ("", [4 << 20, 0]),
    ],
)
def test_cores_settings_reach_the_cache(settings: str, expected: list[int], run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        x = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
        size = torch.cookbook.host_memory_stats()["allocated_bytes.current"]
        del x
        print([size, torch.cookbook.host_memory_stats()["num_host_free"]])
    """,
        PYTORCH_ALLOC_CONF=settings,
    )
    assert done.stdout == f"{expected}\n", done.stderr


def test_background_thread(run_python: Run) -> None:
    """With it nobody asks for events but a thread of core's, which lives until the process ends."""
    done = run_python(
        """
        import torch, cookbook_backend
        target = torch.zeros(1000, device="cookbook")
        for i in range(50):
            target.copy_(torch.full((1000,), float(i), pin_memory=True), non_blocking=True)
        torch.accelerator.synchronize()
        stats = torch.cookbook.host_memory_stats
        while stats()["active_requests.current"]:
            pass
        assert (target.cpu() == 49).all()
        keep = torch.ones(1000, pin_memory=True)
        print("done")
    """,
        PYTORCH_ALLOC_CONF="pinned_use_background_threads:True",
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_many_threads_pin_copy_and_free() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            device = torch.device("cookbook", seed % 2)
            with torch.Stream(device):
                target = torch.zeros(256, device=device)
                for i in range(40):
                    target.copy_(pinned(float(seed * 100 + i), 256), non_blocking=True)
                    back = target.to("cpu", non_blocking=True)
                    torch.accelerator.current_stream(device).synchronize()
                    assert (back == seed * 100 + i).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Processes: other devices, workers, forks, exits.


def test_pinning_uses_a_device_that_is_up(run_python: Run) -> None:
    done = run_python("""
        import torch, cookbook_backend
        up = lambda: [cookbook_backend._C.has_context(i) for i in range(2)]
        print(up(), torch.ones(3).is_pinned(), torch.empty(0).pin_memory().shape, up())
        x = torch.ones(3, device="cookbook:1")
        y = torch.ones(3).pin_memory()
        x.copy_(y, non_blocking=True)
        print(y.is_pinned(), torch.cookbook.current_device(), up())
    """)
    assert done.stdout == (
        "[False, False] False torch.Size([0]) [False, False]\n"  # asking brings nothing to life
        "True 0 [False, True]\n"
    ), done.stderr


def test_pinning_is_possible_before_anything_else(run_python: Run) -> None:
    for make in ("torch.empty(3, pin_memory=True)", "torch.ones(3).pin_memory()"):
        done = run_python(f"import torch, cookbook_backend; print({make}.is_pinned())")
        assert done.stdout == "True\n", done.stderr


def test_a_machine_without_a_device(run_python: Run) -> None:
    done = run_python(
        """
        import torch, cookbook_backend
        print(torch.ones(3).is_pinned())
        try:
            torch.ones(3).pin_memory()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        torch.accelerator.empty_host_cache()
    """,
        COOKBOOK_DEVICE_COUNT="0",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False\ncookbookErrorNoDevice")


class Batch(NamedTuple):
    numbers: Tensor
    by_name: dict[str, Tensor]


class Numbers(Dataset[Any]):
    """Also says what the process that made the item sees of the device."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, Any]:
        in_worker = torch.utils.data.get_worker_info() is not None
        touched = in_worker and not _C.is_forked_child() and any(_C.has_context(d) for d in range(2))
        return {"number": torch.full((100,), float(i)), "touched": touched, "text": f"item {i}"}


@pytest.mark.parametrize(
    ("workers", "method", "index"), [(0, None, 0), (0, None, 1), (2, "fork", 0), (2, "fork", 1), (1, "spawn", 1)]
)
def test_data_loader(workers: int, method: str | None, index: int) -> None:  # B14
    loader = DataLoader(Numbers(), batch_size=2, pin_memory=True, num_workers=workers, multiprocessing_context=method)
    device = torch.device("cookbook", index)
    torch.accelerator.set_device_index(device.index)
    seen = []
    for batch in loader:
        assert batch["number"].is_pinned()
        assert batch["touched"].is_pinned()
        assert not batch["touched"].any()
        on_device = batch["number"].to(device, non_blocking=True)
        seen += on_device[:, 0].tolist()
    assert seen == [float(i) for i in range(8)]


def collate(items: list[dict[str, Any]]) -> Batch:
    number = torch.stack([item["number"] for item in items])
    return Batch(number, {"first": number[0].clone()})


def test_data_loader_pins_nested_batches() -> None:
    for batch in DataLoader(Numbers(), batch_size=4, pin_memory=True, num_workers=1, collate_fn=collate):
        assert isinstance(batch, Batch)
        assert batch.numbers.is_pinned()
        assert batch.by_name["first"].is_pinned()


def test_workers_do_not_bring_a_device_to_life(run_python: Run) -> None:
    """In a fresh process, where no device is up: neither asking for the loader nor its workers change that."""
    done = run_python("""
        import torch, cookbook_backend
        from torch.utils.data import DataLoader, Dataset
        up = lambda: [cookbook_backend._C.has_context(i) for i in range(2)]
        class Up(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return torch.tensor(up() + [cookbook_backend._C.is_forked_child()])
        loader = iter(DataLoader(Up(), batch_size=4, num_workers=1, persistent_workers=True, pin_memory=True))
        batch = next(loader)
        print(batch.is_pinned(), batch.any().item(), up())
    """)
    assert done.stdout == "True False [True, False]\n", done.stderr


def test_forked_child_keeps_its_copies_and_cannot_pin(run_python: Run) -> None:
    done = run_python("""
        import os, torch, cookbook_backend
        x = torch.full((1000,), 3.0).pin_memory()
        y = torch.zeros(1000, device="cookbook")
        y.copy_(x, non_blocking=True)
        torch.full((1000,), 4.0).pin_memory()  # lies in the cache now
        pid = os.fork()
        if pid == 0:
            assert (x == 3).all()
            x.fill_(5)
            assert x.is_pinned() is False  # no device may be used here
            del x
            for pin in (lambda: torch.ones(1000).pin_memory(), lambda: torch.empty(3, pin_memory=True)):
                try:
                    pin()
                except RuntimeError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(3)
            raise SystemExit(7)  # through all exit handlers and destructors
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), (y.cpu() == 3).all().item(), (x == 3).all().item())
    """)
    assert done.stdout == "7 True True\n", done.stderr


EXITS = {
    "alive at exit": "keep = torch.ones(1000).pin_memory()",
    "in a cycle": "a = [torch.ones(1000).pin_memory()]; a.append(a); del a",
    "cached at exit": "torch.ones(1000).pin_memory()",
    "freed by an older exit handler": """
import atexit
def late(keep=[torch.ones(1000).pin_memory()]):
    x.copy_(keep[0], non_blocking=True); keep.clear(); torch.ones(1000).pin_memory()
atexit.register(late)""",
    "in flight at exit": "keep = torch.ones(1000).pin_memory(); x.copy_(keep, non_blocking=True)",
    "dropped in flight at exit": "x.copy_(torch.ones(1000).pin_memory(), non_blocking=True)",
    "download in flight at exit": "keep = x.to('cpu', non_blocking=True)",
    "owned by a thread at exit": """
import threading, time
def run():
    keep = torch.ones(1000).pin_memory()
    time.sleep(60)
threading.Thread(target=run, daemon=True).start()""",
    "slice of a dropped parent (B33)": "s = torch.unbind(torch.rand(4, 64).pin_memory().to('cookbook'))[1]; s.cpu()",
    "emptied in flight": "x.copy_(torch.ones(1000).pin_memory(), non_blocking=True); torch.accelerator.empty_host_cache()",
}


@pytest.mark.parametrize("case", sorted(EXITS))
def test_exit(case: str, run_python: Run) -> None:  # B33
    done = run_python(
        f"import torch, cookbook_backend\nx = torch.zeros(1000, device='cookbook')\n{EXITS[case]}\nprint('end')"
    )
    assert (done.stdout, done.returncode, done.stderr) == ("end\n", 0, "")

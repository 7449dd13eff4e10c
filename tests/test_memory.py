# chapter 2
"""Storages: growing, sharing, running out, freeing in order; pinned memory; errors of asynchronous kernels."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator

import pytest
import torch
from conftest import Run
from same_as_cpu import DTYPES
from torch.utils.data import DataLoader

import cookbook_backend

_C = cookbook_backend._C


def allocated(device: torch.device) -> int:
    gc.collect()
    return torch.accelerator.memory_allocated(device.index)


def test_allocation_is_counted_and_given_back(device: torch.device) -> None:
    before = allocated(device)
    x = torch.empty(1000, device=device)
    assert allocated(device) - before == 4096  # rounded to the device's 512 bytes
    y = x[10:]
    del x
    assert allocated(device) - before == 4096
    del y
    assert allocated(device) == before


def test_what_tensors_cost_the_driver(device: torch.device) -> None:
    torch.empty(100, device=device)
    expected = (10, 10, 0)
    # if COOKBOOK_CHAPTER >= 4
    expected = (0, 0, 0)  # the cache
    # endif
    _C.reset_counters(device.index)
    for _ in range(10):
        torch.empty(100, device=device)
    counters = _C.counters(device.index)
    assert (counters["allocations"], counters["frees"], counters["synchronizations"]) == expected


def test_peaks_and_resets(device: torch.device) -> None:
    torch.accelerator.reset_peak_memory_stats(device.index)
    before = allocated(device)
    del [torch.empty(1 << 20, device=device)][:]
    assert torch.accelerator.max_memory_allocated(device.index) >= before + (4 << 20)
    torch.accelerator.reset_peak_memory_stats(device.index)
    assert torch.accelerator.max_memory_allocated(device.index) == allocated(device)


def test_out_of_memory_says_sizes_and_leaves_the_device_usable(run_python: Run) -> None:  # B17
    done = run_python(
        """
        import cookbook_backend, torch
        blocks = [torch.empty(8 << 20, dtype=torch.uint8, device="cookbook") for _ in range(7)]
        try:
            torch.empty(16 << 20, dtype=torch.uint8, device="cookbook")
        except torch.OutOfMemoryError as error:
            print(error)
        del blocks[0], blocks[0]
        torch.empty(16 << 20, dtype=torch.uint8, device="cookbook").fill_(1).sum().item()
        print(torch.accelerator.memory_stats()["num_ooms"])
    """,
        COOKBOOK_DEVICE_MEMORY="64M",
    )
    assert done.returncode == 0, done.stderr
    assert "16.00 MiB" in done.stdout and "64.00 MiB" in done.stdout
    assert done.stdout.endswith("\n1\n")


def test_absurd_size_is_out_of_memory(device: torch.device) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device=device)


def test_a_freed_block_is_reused_behind_its_last_kernel(device: torch.device) -> None:
    _C.inject_fault(device.index, "delay", 1, 20_000)
    x = torch.full((1000,), 1.0, device=device)  # late
    y = x + 1
    del x
    z = torch.full((1000,), 9.0, device=device)  # may have x's block: it is written after y has read it
    assert (y.cpu() == 2).all()
    assert (z.cpu() == 9).all()


def test_resize_keeps_content(device: torch.device) -> None:  # B21
    x = torch.arange(4.0, device=device)
    x.resize_(6)
    assert x[:4].tolist() == [0, 1, 2, 3]
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    out = torch.empty(0, device=device)
    torch.zeros(4, 5, out=out)
    assert out.shape == (4, 5)
    assert out.sum().item() == 0


def test_a_resize_that_fails_changes_nothing(device: torch.device) -> None:
    x = torch.arange(6.0, device=device).view(2, 3).t()
    huge = (1 << 20, 1 << 10, 1 << 10, 2)
    for sizes, format, error in (
        (huge, torch.contiguous_format, "out of memory"),
        (huge, torch.channels_last, "out of memory"),
        ((9, 9), torch.channels_last, "required rank 4 tensor"),
        ((9, 9), torch.preserve_format, "Unsupported memory format"),
    ):
        with pytest.raises(RuntimeError, match=error):
            x.resize_(sizes, memory_format=format)
        assert (x.shape, x.stride()) == ((3, 2), (1, 3))
    assert torch.equal(x.cpu(), torch.arange(6.0).view(2, 3).t())


def test_storage_resize(device: torch.device) -> None:  # B21
    x = torch.arange(4.0, device=device)
    storage = x.untyped_storage()
    before = allocated(device)
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert allocated(device) < before
    storage.resize_(16)
    x.copy_(torch.arange(4.0))
    storage.resize_(1024)
    assert x.tolist() == [0, 1, 2, 3]


def test_set_and_storage_slices(device: torch.device) -> None:  # B30
    x = torch.arange(8.0, device=device)
    y = torch.empty(0, device=device).set_(x.untyped_storage(), 2, (2, 2), (3, 1))
    assert y.tolist() == [[2, 3], [5, 6]]
    assert x.untyped_storage()[0:4].device == device
    assert torch.empty(3, device=device).set_().numel() == 0


def test_set_grows_a_storage_that_is_too_small(device: torch.device) -> None:
    """Core's function for the CPU would grow it as host memory, and end the process."""
    for place in ("cpu", device):
        base = torch.arange(4.0, device=place)
        x = torch.empty(0, device=place).set_(base.untyped_storage(), 2, (3, 2), (2, 1))
        assert base.untyped_storage().nbytes() == 32
        assert x.device == base.device
        assert x.data_ptr() == base.data_ptr() + 8
        assert x[0].tolist() == [2, 3]
        assert x.stride() == (2, 1)
        assert base.tolist() == [0, 1, 2, 3]


def test_a_set_that_fails_changes_nothing(device: torch.device) -> None:
    x, y = torch.arange(4.0, device=device), torch.arange(3.0, device=device)
    address = x.data_ptr()
    for offset, sizes, strides in ((0, (1 << 40,), (1,)), (1 << 40, (1,), (1,)), (2, (2, 1), (1 << 40, 1))):
        with pytest.raises(torch.OutOfMemoryError):
            x.set_(y.untyped_storage(), offset, sizes, strides)
        assert (x.data_ptr(), x.stride(), x.storage_offset()) == (address, (1,), 0)
        assert (x.tolist(), y.tolist()) == ([0, 1, 2, 3], [0, 1, 2])
    with pytest.raises(RuntimeError, match="rank 4"):
        x.resize_(2, 2, memory_format=torch.channels_last)
    assert x.tolist() == [0, 1, 2, 3]


def test_resize_as_the_cpu_does(device: torch.device) -> None:
    results = []
    for place in ("cpu", device):
        x = torch.arange(24.0, device=place).view(2, 3, 4)
        seen: list[object] = [x[:, 1].resize_(2, 3).stride(), x.mT.resize_(2, 4, 3).stride()]
        expanded = torch.ones(1, device=place).expand(5)
        seen += [expanded.resize_(5).stride(), expanded.untyped_storage().nbytes()]
        last = torch.empty(0, device=place).resize_(2, 3, 4, 5, memory_format=torch.channels_last)
        seen += [last.stride(), last.untyped_storage().nbytes()]
        for sizes in ((-2,), (1 << 62, 4)):
            with pytest.raises(RuntimeError, match="overflow|negative"):
                x.resize_(sizes)
            x.resize_(2, 3, 4)  # core's tensor has them now
        with pytest.raises(RuntimeError, match="Unsupported memory format"):
            torch.ones(2, device=place).resize_(2, memory_format=torch.preserve_format)
        results.append(seen)
    assert results[0] == results[1]


def test_empty_tensors_have_no_memory(device: torch.device) -> None:  # B21
    before = allocated(device)
    assert torch.empty(0, device=device).data_ptr() == 0
    assert torch.empty(3, 0, device=device).sum().item() == 0
    assert allocated(device) == before


def test_mixed_devices_are_refused() -> None:
    a, b = torch.ones(2, device="cookbook:0"), torch.ones(2, device="cookbook:1")
    for action in (lambda: a + b, lambda: a + torch.ones(2), lambda: torch.mm(a.view(1, 2), torch.ones(2, 1))):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            action()
    assert (a + torch.tensor(1.0)).tolist() == [2, 2]  # a number is welcome from anywhere


def test_operators_use_their_tensors_device() -> None:  # B05, B08
    x = torch.arange(6.0, device="cookbook:1", requires_grad=True)
    _C.reset_counters(0)
    ((x * 2).view(2, 3) + 1).sum().backward()
    assert x.grad is not None
    assert x.grad.device == torch.device("cookbook:1")
    assert x.grad.tolist() == [2] * 6
    assert cookbook_backend.current_device() == 0
    assert _C.counters(0)["launches"] == _C.counters(0)["allocations"] == 0


def test_a_failing_kernel_is_named_at_the_next_wait(device: torch.device) -> None:
    x = torch.ones(4, device=device)
    torch.accelerator.synchronize(device)
    _C.inject_fault(device.index, "launch", 1, 0)
    y = x * 3  # the launch succeeds
    with pytest.raises(torch.AcceleratorError, match="kernel 'mul'") as caught:
        torch.accelerator.synchronize(device)
    assert caught.value.error_code == 8
    with pytest.raises(torch.AcceleratorError):  # sticky: nothing after the failure can be trusted
        y.cpu()
    _C.reset(device.index)
    assert (x * 3).tolist() == [3] * 4


def test_launch_blocking_reports_at_the_call(run_python: Run) -> None:
    done = run_python(
        """
        import cookbook_backend, torch
        x = torch.ones(4, device="cookbook")
        cookbook_backend._C.inject_fault(0, "launch", 1, 0)
        try:
            x * 3
        except torch.AcceleratorError as error:
            print(str(error)[:30])
        import os; os._exit(0)
    """,
        COOKBOOK_LAUNCH_BLOCKING="1",
    )
    assert done.stdout.startswith("cookbookErrorLaunchFailure"), done.stderr


def test_host_access_to_device_memory_kills_the_process(run_python: Run) -> None:
    done = run_python("""
        import ctypes, cookbook_backend, torch
        x = torch.ones(4, device="cookbook")
        torch.accelerator.synchronize()
        print("before", flush=True)
        ctypes.c_float.from_address(x.data_ptr()).value
    """)
    assert done.stdout == "before\n"
    assert done.returncode == -11


def test_numpy_is_refused(device: torch.device) -> None:
    with pytest.raises(TypeError, match="can't convert cookbook"):
        torch.ones(2, device=device).numpy()


def test_pinned_memory() -> None:  # B14
    pinned = torch.arange(10.0).pin_memory()
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert pinned.device.type == "cpu"
    assert torch.equal(pinned, torch.arange(10.0))
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.empty(0).pin_memory().shape == (0,)
    assert not torch.ones(3, device="cookbook").is_pinned()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="cookbook", pin_memory=True)


def test_data_loader_pins() -> None:  # B14
    for workers in (0, 2):
        batch = next(iter(DataLoader(range(8), batch_size=2, pin_memory=True, num_workers=workers)))
        assert batch.is_pinned()
        assert batch.tolist() == [0, 1]


def test_pickle_deepcopy_and_repr(device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())
    assert pickle.loads(pickle.dumps(x)).device == device
    assert torch.equal(copy.deepcopy(x).cpu(), x.cpu())
    assert repr(x) == f"tensor([0., 1., 2.], device='{device}')"


def test_is_the_first_touch_enough(run_python: Run) -> None:  # B02
    done = run_python("import torch, cookbook_backend; print(torch.arange(3).to('cookbook').sum().item())")
    assert done.stdout == "3\n", done.stderr


def test_kernels_follow_the_programs_threads(run_python: Run) -> None:
    """OpenMP keeps the number of threads per thread: the stream's own has to be told, and told again when it changes."""
    done = run_python("""
        import os, torch, cookbook_backend
        x = torch.ones(700, 700, device="cookbook")
        def threads_after(work):  # polled, not waited for: a host thread that waits would run the kernel itself
            work()
            while not torch.accelerator.current_stream().query():
                pass
            return len(os.listdir("/proc/self/task"))
        torch.set_num_threads(1)
        small = threads_after(lambda: x[0, :1].add_(1))
        one = threads_after(lambda: x @ x)
        torch.set_num_threads(3)
        print(one - small, threads_after(lambda: x @ x) > one)  # how many more is the math library's choice
    """)
    assert done.stdout == "0 True\n", done.stderr


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def resized(device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(3, device=device).to(dtype).resize_(2, 5)


UNWRITTEN = {
    "empty": lambda device, dtype: torch.empty(5, device=device, dtype=dtype),
    "channels last": lambda device, dtype: torch.empty(
        2, 3, 2, 2, device=device, dtype=dtype, memory_format=torch.channels_last
    ),
    "strided": lambda device, dtype: torch.empty_strided((2, 3), (1, 2), device=device, dtype=dtype),
    "permuted": lambda device, dtype: torch.empty_permuted((2, 3), (1, 0), device=device, dtype=dtype),
    "like": lambda device, dtype: torch.empty_like(torch.ones(2, 3, device=device, dtype=dtype).t()),
    "resized": resized,
    "nothing": lambda device, dtype: torch.empty(0, device=device, dtype=dtype),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.uint16], ids=str)
@pytest.mark.parametrize("name", UNWRITTEN)
def test_unwritten_memory_is_filled_in_deterministic_mode(name: str, dtype: torch.dtype) -> None:
    expected = UNWRITTEN[name]("cpu", dtype)
    actual = UNWRITTEN[name]("cookbook", dtype)
    assert actual.stride() == expected.stride()
    raw = torch.uint16 if dtype == torch.uint16 else torch.uint8
    if dtype.is_floating_point or dtype.is_complex:
        assert torch.equal(actual.cpu().to(torch.complex64).isnan(), expected.to(torch.complex64).isnan())
    else:
        assert torch.equal(actual.cpu().contiguous().view(raw), expected.contiguous().view(raw))


@pytest.mark.usefixtures("deterministic")
def test_results_of_operators_are_not_filled_first() -> None:
    x = torch.ones(4, device="cookbook")
    cookbook_backend._C.reset_counters(0)
    x + x
    assert cookbook_backend._C.counters(0)["launches"] == 1


def test_a_module_keeps_its_parameters_when_it_moves() -> None:
    """What an optimizer made before `.to()` holds are the parameters themselves, as on every device of core's list."""
    module = torch.nn.LSTM(3, 2)
    parameters, twin = list(module.parameters()), copy.deepcopy(module)
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    module(torch.ones(1, 3))[0].sum().backward()
    for place in ("cookbook:1", "cpu", "cookbook:0"):
        module.to(place)
        assert all(now is before for now, before in zip(module.parameters(), parameters, strict=True))
        assert all(p.device == p.grad.device == torch.device(place) for p in parameters if p.grad is not None)
    optimizer.zero_grad()
    module(torch.ones(1, 3, device="cookbook"))[0].sum().backward()
    optimizer.step()
    twin(torch.ones(1, 3))[0].sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.5).step()
    for ours, cpu in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), cpu.detach())


def test_data_may_come_from_the_other_side() -> None:
    x = torch.ones(3)
    x.data = torch.full((2, 2), 4.0, device="cookbook:1")
    assert x.device == torch.device("cookbook:1")
    assert (x + 1).tolist() == [[5, 5], [5, 5]]
    x.data = torch.zeros(2)
    assert x.device.type == "cpu"
    assert (x + 1).tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_data_of_another_kind_is_refused(kind: str) -> None:
    other = torch.ones(2, device="meta") if kind == "meta" else torch.eye(2).to_sparse()
    for device in ("cpu", "cookbook"):
        x = torch.ones(2, device=device)
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            x.data = other
        assert x.tolist() == [1, 1]

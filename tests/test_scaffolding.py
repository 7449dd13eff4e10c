# chapter 1
"""The device before it has operators: name, count, current device, guard, hooks, allocator statistics, errors."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from conftest import Run

import cookbook_backend

_C = cookbook_backend._C


def test_accelerator_is_this_device() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("cookbook")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 2
    assert torch.cookbook is cookbook_backend
    assert torch.get_device_module("cookbook") is cookbook_backend


def test_integer_means_this_device() -> None:  # B10
    assert torch.device(1) == torch.device("cookbook:1")


def test_current_device_is_the_drivers() -> None:
    torch.accelerator.set_device_index(1)
    assert cookbook_backend.current_device() == _C.current_device() == torch.accelerator.current_device_index() == 1


def test_current_device_is_a_threads_own() -> None:  # B07
    cookbook_backend.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(cookbook_backend.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert cookbook_backend.current_device() == 1


def test_device_context_restores_after_exception_and_nests() -> None:  # B07
    one = cookbook_backend.device(1)

    def fail() -> None:
        with one:
            assert cookbook_backend.current_device() == 1
            with one, cookbook_backend.device("cookbook:0"):
                assert cookbook_backend.current_device() == 0
            assert cookbook_backend.current_device() == 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert cookbook_backend.current_device() == 0


def test_device_context_without_index_changes_nothing() -> None:
    cookbook_backend.set_device(1)
    with cookbook_backend.device(-1), torch.accelerator.device_index(None):
        assert cookbook_backend.current_device() == 1
    assert cookbook_backend.current_device() == 1


@pytest.mark.parametrize("index", [2, 99])
def test_index_that_does_not_exist(index: int) -> None:  # B04
    for action in (
        lambda: cookbook_backend.set_device(index),
        lambda: torch.accelerator.set_device_index(index),
        lambda: torch.accelerator.synchronize(index),
        lambda: torch.accelerator.current_stream(index),
        lambda: torch.accelerator.memory_stats(index),
        lambda: cookbook_backend.get_device_name(index),
    ):
        with pytest.raises(RuntimeError, match=f"(?i)(device|index).*{index}"):
            action()
    assert cookbook_backend.current_device() == 0


def test_error_carries_the_drivers_code_and_text() -> None:
    with pytest.raises(torch.AcceleratorError, match="cookbookErrorInvalidDevice") as caught:
        cookbook_backend.set_device(7)
    assert caught.value.error_code == 4
    assert isinstance(caught.value, RuntimeError)


def test_wrong_device_type_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="expected a cookbook device, got cpu"):
        cookbook_backend.set_device("cpu")


def test_default_stream_is_the_current_one(device: torch.device) -> None:
    stream = torch.accelerator.current_stream(device)
    assert stream.device == device
    assert stream.query()
    stream.synchronize()


def test_synchronize_is_counted_on_the_device_asked_for() -> None:  # not on the current one
    for device in (0, 1):
        _C.reset_counters(device)
    torch.accelerator.synchronize(1)
    cookbook_backend.synchronize("cookbook:1")
    assert _C.counters(0)["synchronizations"] == 0
    assert _C.counters(1)["synchronizations"] == 2


def test_capability_lists_dtypes() -> None:
    dtypes = torch.accelerator.get_device_capability("cookbook:1")["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= dtypes


def test_factory_function_names_what_is_missing(run_python: Run) -> None:
    """The exact error of chapter 1; from chapter 2 on the call works."""
    done = run_python("import cookbook_backend, torch; print(torch.ones(2, device='cookbook').device)")
    if "cookbook:0" not in done.stdout:
        assert "NotImplementedError: Could not run 'aten::empty.memory_format' with arguments from the 'cookbook'" in (
            done.stderr
        )


def test_memory_functions_before_the_first_allocation(run_python: Run) -> None:  # B19
    done = run_python(
        """
        import cookbook_backend, torch
        for name in ("empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved",
                     "max_memory_reserved", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
            getattr(torch.accelerator, name)()
        free, total = torch.accelerator.get_memory_info()
        assert free == total == 64 << 20, (free, total)
        assert torch.accelerator.memory_allocated() == 0
        assert len(torch.accelerator.memory_stats()) > 100
        print("ok")
    """,
        COOKBOOK_DEVICE_MEMORY="64M",
    )
    assert done.stdout == "ok\n", done.stderr


def test_no_device(run_python: Run) -> None:
    done = run_python(
        """
        import cookbook_backend, torch
        assert not torch.accelerator.is_available() and not torch.cookbook.is_available()
        assert torch.accelerator.device_count() == 0
        try:
            torch.ones(2, device="cookbook")
        except (RuntimeError, NotImplementedError) as error:
            print(type(error).__name__, error)
    """,
        COOKBOOK_DEVICE_COUNT="0",
    )
    assert done.returncode == 0, done.stderr
    assert "Error" in done.stdout


def test_import_starts_no_thread_and_no_device(run_python: Run) -> None:
    done = run_python(
        """
        import os, torch, sys
        before = len(os.listdir("/proc/self/task"))
        import cookbook_backend
        torch.accelerator.is_available()
        print(len(os.listdir("/proc/self/task")) - before, "torch._inductor" in sys.modules)
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout == "0 False\n", done.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "import cookbook_backend",
        "import torch, cookbook_backend",
        "import torch.nn, cookbook_backend",
        "from cookbook_backend import device_count",
    ],
)
def test_import_orders(run_python: Run, imports: str) -> None:  # B78
    done = run_python(f"{imports}\nimport torch\nprint(torch.cookbook.device_count())")
    assert done.stdout == "2\n", done.stderr


def test_a_backend_that_does_not_load_is_a_warning(run_python: Run) -> None:  # B79
    done = run_python(
        """
        import sys, torch, cookbook_autoload
        sys.modules["cookbook_backend._C"] = None  # as if it were not there
        cookbook_autoload.autoload()
        print(hasattr(torch, "cookbook"), "cookbook_backend" in sys.modules)
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout == "False False\n", done.stderr
    assert (
        "RuntimeWarning: torch has no device 'cookbook': ImportError: cookbook_backend's native module" in done.stderr
    )


def test_second_backend_is_refused_with_advice(run_python: Run) -> None:  # B84
    done = run_python(
        """
        import torch
        torch.utils.rename_privateuse1_backend("other")
        import cookbook_backend
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.returncode == 1
    assert "already" in done.stderr and "other" in done.stderr


def test_registering_hooks_again_does_nothing() -> None:
    _C.register_hooks()
    assert torch.accelerator.device_count() == 2


def test_another_torch_is_refused(run_python: Run) -> None:  # B82
    done = run_python(
        "import torch; torch.__version__ = '9.9.0'\nimport cookbook_backend", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert re.search(
        r"ImportError: cookbook_backend was built for torch 2\.\d+\.\*, this is torch 9\.9\.0", done.stderr
    )


def test_fork_before_use_works_and_after_use_is_refused(run_python: Run) -> None:  # B13
    done = run_python("""
        import os, cookbook_backend, torch
        def child(use):
            pid = os.fork()
            if pid == 0:
                try:
                    use()
                    os._exit(0)
                except RuntimeError as error:
                    os._exit(3 if "fork" in str(error).lower() else 4)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        use = lambda: (torch.cookbook._lazy_init(), torch.accelerator.synchronize())
        first = child(use)
        torch.accelerator.synchronize()
        torch.accelerator.current_stream().synchronize()
        cookbook_backend._C.counters(0)
        import ctypes
        print(first, torch.cookbook._is_in_bad_fork())
    """)
    assert done.stdout == "0 False\n", done.stderr


def test_guard_restores_the_device_after_an_exception() -> None:
    def fail() -> None:
        assert cookbook_backend.current_device() == 1
        raise KeyError

    with pytest.raises(KeyError):
        _C.call_under_guard(1, fail)
    assert cookbook_backend.current_device() == 0


def test_guard_destructor_survives_a_driver_error(run_python: Run) -> None:  # B09
    """In a forked child every driver call fails, also the one that the guard's destructor makes."""
    done = run_python("""
        import os, warnings, cookbook_backend, torch
        torch.accelerator.synchronize()
        warnings.simplefilter("error")
        pid = cookbook_backend._C.call_under_guard(1, os.fork)
        if pid == 0:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert done.stdout == "7\n", done.stderr


def test_context_appears_with_first_use(run_python: Run) -> None:
    done = run_python("""
        import cookbook_backend, torch
        contexts = lambda: [cookbook_backend._C.has_context(d) for d in (0, 1)]
        torch.accelerator.is_available(), torch.accelerator.set_device_index(1), torch.ones(3).is_pinned()
        print(contexts())
        torch.accelerator.current_stream(1).synchronize()
        print(contexts())
    """)
    assert done.stdout == "[False, False]\n[False, True]\n", done.stderr


def test_ordinary_memory_is_not_pinned() -> None:  # B14
    assert not any(torch.ones(n).is_pinned() for n in range(1, 250))


def test_counters_start_at_zero_and_reset(device: torch.device) -> None:
    _C.reset_counters(device.index)
    assert set(_C.counters(device.index).values()) == {0}


def test_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'alloc', 'launch', 'delay' or 'none', got 'flood'"):
        _C.inject_fault(0, "flood", 1, 0)

# chapter 1
"""What the staged tests share: the devices, clean counters, and fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch

import cookbook_backend

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    """Start on device 0 without injected faults, and leave no failure behind for the next test."""
    cookbook_backend.set_device(0)
    yield
    for device in range(cookbook_backend.device_count()):
        cookbook_backend._C.inject_fault(device, "none", 1, 0)
        cookbook_backend._C.reset(device)


@pytest.fixture
def run_python() -> Run:
    """Run a script in a process of its own; return what it printed and its exit code."""

    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture(params=["cookbook:0", "cookbook:1"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device in turn."""
    return torch.device(request.param)


# if COOKBOOK_CHAPTER >= 4
import faulthandler


@pytest.fixture
def time_limit() -> Iterator[None]:
    """End the test process with the stacks of all threads when a test takes longer than a minute: it hangs."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


# Whatever happens to the test, its gates are open at the end.
@pytest.fixture
def gate() -> Iterator[Callable[[torch.Stream], cookbook_backend._C.Gate]]:
    """A function that closes a gate in a stream: work queued behind it waits until the gate it returns is opened."""
    gates: list[cookbook_backend._C.Gate] = []

    def close(stream: torch.Stream) -> cookbook_backend._C.Gate:
        gates.append(cookbook_backend._C.Gate(stream))
        return gates[-1]

    yield close
    for made in gates:
        made.open()


# endif

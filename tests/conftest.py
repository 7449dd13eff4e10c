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

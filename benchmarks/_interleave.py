"""Measure alternatives in turns in one process, so that whatever the machine does hits all of them alike.

A time alone says little on a shared machine: the same call costs twice as much a minute later. So every number here is
taken beside the CPU's, and what is reported is their ratio: the median over the rounds, and that of the minima.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

Times = dict[str, list[float]]


def alternate(alternatives: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 2) -> Times:
    """Call each alternative once a round and keep what it returns; every second round in reverse order.

    Args:
        alternatives: name -> a function that measures once and returns seconds.
        rounds: how many values each name gets.
        warm_up: rounds before those, whose values are dropped.
    """
    times: Times = {name: [] for name in alternatives}
    order = list(alternatives)
    was_on = gc.isenabled()
    gc.disable()
    try:
        for turn in range(warm_up + rounds):
            for name in order if turn % 2 == 0 else reversed(order):
                seconds = alternatives[name]()
                if turn >= warm_up:
                    times[name].append(seconds)
            gc.collect(0)
    finally:
        if was_on:
            gc.enable()
    return times


def repeat(function: Callable[[], object], count: int) -> float:
    """Seconds of one call, over `count` calls in a row."""
    begin = time.perf_counter_ns()
    for _ in range(count):
        function()
    return (time.perf_counter_ns() - begin) / count / 1e9


def ratio(times: Sequence[float], base: Sequence[float]) -> str:
    """Median of the rounds' ratios / ratio of the minima.

    Each round compares two neighbours in time. A ratio of medians would compare a slow minute with a fast one.
    """
    return f"{statistics.median(t / b for t, b in zip(times, base, strict=True)):.2f} / {min(times) / min(base):.2f}"


def duration(seconds: float) -> str:
    """A time to read: ns, us or ms with three digits."""
    for unit, scale in (("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def both(times: Sequence[float]) -> str:
    """Median (minimum)."""
    return f"{duration(statistics.median(times))} ({duration(min(times))})"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# The machine


def _jiffies() -> tuple[int, int]:
    """All processor time since boot and the idle part of it, in ticks, as the kernel counts them."""
    fields = [int(field) for field in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def wait_idle(limit: float) -> str:
    """Wait at most `limit` seconds for a second in which the machine is 90 % idle; say how that went."""
    end = time.monotonic() + limit
    idle = 0.0
    while time.monotonic() < end:
        total, rest = _jiffies()
        time.sleep(1)
        total_now, rest_now = _jiffies()
        idle = (rest_now - rest) / max(1, total_now - total)
        if idle >= 0.9:
            return f"began in a second in which the machine was {idle:.0%} idle"
    if limit <= 0:
        return "did not wait for an idle machine"
    return f"waited {limit:.0f} s for an idle machine in vain: it was {idle:.0%} idle at the end"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@contextmanager
def on_this_machine(limit: float, busy: int = 0) -> Iterator[None]:
    """Wait for an idle machine, run the block, and print what the numbers in it are worth.

    Args:
        limit: seconds to wait for an idle machine.
        busy: processes that spin meanwhile, on top of whatever else runs.
    """
    waited = wait_idle(limit)
    load = os.getloadavg()[0]
    with spinning(busy) as spinners:
        total, idle = _jiffies()
        own = time.process_time()
        begin = time.monotonic()
        yield
        seconds = time.monotonic() - begin
        total_now, idle_now = _jiffies()
    tick = os.sysconf("SC_CLK_TCK")
    used = (total_now - total - (idle_now - idle)) / tick
    others = max(0.0, used - (time.process_time() - own)) / seconds
    cores = len(os.sched_getaffinity(0))
    print()
    print(f"* Machine: {_processor()}, {cores} cores, {platform.system()} {platform.release()}.")
    print(f"* torch {torch.__version__}, Python {platform.python_version()}, 1 intra-op thread.")
    spun = f", {len(spinners)} of them by the process that `--busy` starts" if spinners else ""
    print(
        f"* {time.strftime('%Y-%m-%d')}, {seconds:.0f} s: {waited}; load {load:.2f} at the start. "
        f"Other processes kept {others:.2f} cores busy meanwhile{spun}."
    )


SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000): pass\n"


@contextmanager
def spinning(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep `count` cores busy with processes that end with the block, or with this process."""
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(count)]
    try:
        if spinners:
            time.sleep(0.5)
        yield spinners
    finally:
        for process in spinners:
            process.kill()
            process.wait()


def arguments(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="values per number (default: %(default)s)")
    parser.add_argument(
        "--wait-idle",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait at most this long for a second in which the machine is 90 %% idle (default: do not wait)",
    )
    return parser

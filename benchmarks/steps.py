"""What a training step costs on the device and on the CPU, and what it asks of the driver.

The four models of `tests/models.py`, forward, loss, backward and optimizer. A value is the time of some steps and one
wait, per step. The counters do not depend on the machine: they are the same in every run and for every step.

    nox -s bench, or: PYTHONPATH=build/6/src python benchmarks/steps.py --wait-idle 300 [--busy]
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import models
import torch
from _interleave import Times, alternate, arguments, both, markdown, on_this_machine, ratio, repeat

import cookbook_backend

DEVICE = torch.device("cookbook:0")
OPTIMIZERS = ("sgd-foreach", "adam-fused")
STEPS = {"mlp": 20, "convnet": 4, "transformer": 8, "recurrent": 4}
"""Steps that make one value: enough that the wait at the end does not count for much."""
COUNTERS = {
    "launches": ("launches",),
    "copies": ("copies",),
    "fills": ("fills",),
    "allocations": ("allocations",),
    "waits": ("synchronizations",),
    "host bytes": ("bytes_host_to_device", "bytes_device_to_host"),
    "device bytes": ("bytes_device_to_device", "bytes_peer"),
}
"""A column of the table -> the driver's counters that are in it."""


def training(name: str, optimizer: str, device: torch.device | str) -> Callable[[], None]:
    """A function that does one step. It never reads the loss: that would be a wait that training does not need."""
    workload = models.make(name).to(device)
    make, options = models.OPTIMIZERS[optimizer]
    rule = make(workload.model.parameters(), **options)

    def step() -> None:
        rule.zero_grad()
        workload.loss().backward()
        rule.step()

    return step


def measure(name: str, optimizer: str, rounds: int) -> Times:
    """Seconds of a step: `cpu`, `device` with the wait, and `submit`, when the host is through."""
    on_cpu, on_device = training(name, optimizer, "cpu"), training(name, optimizer, DEVICE)
    steps = STEPS[name]
    submitted: list[float] = []

    def device() -> float:
        def run() -> None:
            submitted.append(repeat(on_device, steps))
            cookbook_backend.synchronize()

        return repeat(run, 1) / steps

    times = alternate({"cpu": lambda: repeat(on_cpu, steps), "device": device}, rounds)
    times["submit"] = submitted[-rounds:]
    return times


def counts(name: str, optimizer: str) -> list[str]:
    """What the driver counts in a step, and the operators that fell back. Steps that differ are a range."""
    step = training(name, optimizer, DEVICE)
    for _ in range(2):  # the first makes the optimizer's state
        step()
    cookbook_backend.synchronize()
    cookbook_backend.fallback.reset()
    seen: list[dict[str, int]] = []
    for _ in range(4):
        cookbook_backend._C.reset_counters(DEVICE.index)
        step()
        seen.append(dict(cookbook_backend._C.counters(DEVICE.index)))
    cookbook_backend.synchronize()
    cells = []
    for parts in COUNTERS.values():
        values = {sum(counters[part] for part in parts) for counters in seen}
        cells.append(f"{min(values)}" if len(values) == 1 else f"{min(values)} to {max(values)}")
    fell_back = sum(record.calls for record in cookbook_backend.fallback.report())
    return [name, optimizer, *cells, f"{fell_back}"]


def main() -> None:
    parser = arguments("Time and counters of a training step on the device, against the CPU's, in turns.", 25)
    parser.add_argument(
        "--busy", action="store_true", help="keep all cores but one busy with other processes meanwhile"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    spinners = max(1, len(os.sched_getaffinity(0)) - 1) if options.busy else 0
    rows = []
    with on_this_machine(options.wait_idle, spinners):
        for name in models.MODELS:
            for optimizer in OPTIMIZERS:
                times = measure(name, optimizer, options.rounds)
                share = statistics.median(times["submit"]) / statistics.median(times["device"])
                rows.append(
                    [
                        name,
                        optimizer,
                        both(times["cpu"]),
                        both(times["device"]),
                        ratio(times["device"], times["cpu"]),
                        f"{share:.0%}",
                    ]
                )
    print(
        f"* {options.rounds} values a number: median (minimum). Ratios: median of the rounds' ratios / of the minima.\n"
    )
    print(markdown(["model", "optimizer", "CPU", "device", "device / CPU", "host's share"], rows))
    print()
    rows = [counts(name, optimizer) for name in models.MODELS for optimizer in OPTIMIZERS]
    print(markdown(["model", "optimizer", *COUNTERS, "fallbacks"], rows), flush=True)


if __name__ == "__main__":
    main()

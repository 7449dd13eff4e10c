"""What a training step costs the host with a graph and without: the time until the calls return, and until the work ran.

The four models of `tests/models.py` with SGD. Both alternatives train the same model on the device, in turns in one
process; a value is one step. "host" is the time of the calls alone, with an idle device before each.

    PYTHONPATH=build/6/src python benchmarks/graphs.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import models
import torch
from _interleave import alternate, ratio

DEVICE = torch.device("cookbook:0")
ROUNDS = 31


def alternatives(name: str) -> dict[str, Callable[[], object]]:
    """One step of the model: as calls, and as the replay of a graph."""
    workload = models.make(name).to(DEVICE)
    rule = torch.optim.SGD(workload.model.parameters(), lr=0.05, momentum=0.9)

    def step() -> None:
        rule.zero_grad(set_to_none=True)
        workload.loss().backward()
        rule.step()

    side, graph = torch.Stream(DEVICE), torch.accelerator.Graph()
    with side:
        for _ in range(3):
            step()
    torch.accelerator.synchronize()
    with side, graph:
        step()
    return {"eager": step, "graph": graph.replay}


def measured(step: Callable[[], object], wait: bool) -> Callable[[], float]:
    """A function that measures one step on an idle device; with `wait` until the work has run."""

    def measure() -> float:
        torch.accelerator.synchronize()
        begin = time.perf_counter_ns()
        step()
        if wait:
            torch.accelerator.synchronize()
        return (time.perf_counter_ns() - begin) / 1e9

    return measure


def main() -> None:
    torch.set_num_threads(1)
    print("| model | host, graph / eager | complete, graph / eager |\n| --- | --- | --- |")
    for name in models.MODELS:
        steps = alternatives(name)
        cells = []
        for wait in (False, True):
            times = alternate({kind: measured(step, wait) for kind, step in steps.items()}, ROUNDS)
            cells.append(ratio(times["graph"], times["eager"]))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""What one call costs the host on the device and on the CPU.

Four numbers a call. `CPU`: the call on the CPU, which returns when the work is done. `submit`: the call on the device
returns; nobody waits for the work. `stream`: many calls and one wait, per call: what a program sees that keeps the
device busy. `complete`: the call and a wait for it, each time: what a program sees that reads every result.

    nox -s bench, or: PYTHONPATH=build/6/src python benchmarks/calls.py --wait-idle 300
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from _interleave import Times, alternate, arguments, both, markdown, on_this_machine, ratio, repeat

import cookbook_backend

DEVICE = torch.device("cookbook:0")
CPU = torch.device("cpu")
COPIED = 4 << 20
"""Bytes of a copy."""


@dataclass(frozen=True)
class Call:
    """A call on both sides, and how many of them make one value."""

    name: str
    on_cpu: Callable[[], object]
    on_device: Callable[[], object]
    count: int
    waits: bool = False
    """The call itself returns when the work is done, so that submit and complete are the same."""
    queues: bool = True
    """The call queues work; without any there is nothing to complete."""


def same_on_both(
    name: str, make: Callable[[torch.device], Callable[[], object]], count: int, queues: bool = True
) -> Call:
    return Call(name, make(CPU), make(DEVICE), count, queues=queues)


def wait() -> None:
    """Wait for the device by the binding itself: `torch.cookbook.synchronize` adds 0.7 us of Python to every wait."""
    cookbook_backend._C.synchronize(0)


def empty(device: torch.device) -> Callable[[], object]:
    return lambda: torch.empty(4, device=device)


def add(elements: int) -> Callable[[torch.device], Callable[[], object]]:
    def make(device: torch.device) -> Callable[[], object]:
        a, b = torch.ones(elements).to(device), torch.ones(elements).to(device)
        return lambda: torch.add(a, b)

    return make


def add_out(device: torch.device) -> Callable[[], object]:
    a, b, out = (torch.ones(4).to(device) for _ in range(3))
    return lambda: torch.add(a, b, out=out)


def view(device: torch.device) -> Callable[[], object]:
    a = torch.ones(4).to(device)
    return lambda: a.view(2, 2)


def fill_(device: torch.device) -> Callable[[], object]:
    a = torch.ones(4).to(device)
    return lambda: a.fill_(3.0)


def mul_(device: torch.device) -> Callable[[], object]:
    a, b = torch.ones(4).to(device), torch.ones(4).to(device)
    return lambda: a.mul_(b)


def mm(device: torch.device) -> Callable[[], object]:
    a, b = torch.ones(256, 256).to(device), torch.ones(256, 256).to(device)
    return lambda: torch.mm(a, b)


def item(device: torch.device) -> Callable[[], object]:
    a = torch.ones(()).to(device)
    return lambda: a.item()


def add_and_item(device: torch.device) -> Callable[[], object]:
    a = torch.ones(()).to(device)
    return lambda: torch.add(a, a).item()


def copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Callable[[], object]:
    return lambda: to.copy_(source, non_blocking)


def calls() -> list[Call]:
    host = [torch.ones(COPIED // 4) for _ in range(2)]
    pinned = [tensor.pin_memory() for tensor in host]
    device = [tensor.to(DEVICE) for tensor in host]
    on_cpu = copy(host[0], host[1])
    return [
        same_on_both("`empty(4)`", empty, 300, queues=False),
        same_on_both("`add(4)`", add(4), 300),
        same_on_both("`add_out(4)`", add_out, 300),
        same_on_both("`mul_(4)`", mul_, 300),
        same_on_both("`fill_(4)`", fill_, 300),
        same_on_both("`view`", view, 300, queues=False),
        Call("`item()`, stream idle", item(CPU), item(DEVICE), 300, waits=True),
        Call("`add` and `item()`", add_and_item(CPU), add_and_item(DEVICE), 100, waits=True),
        same_on_both("`add(1 Mi)`", add(1 << 20), 10),
        same_on_both("`mm(256)`", mm, 10),
        Call("copy 4 MiB to the device", on_cpu, copy(device[0], host[0]), 4, waits=True),
        Call("... from pinned memory", on_cpu, copy(device[0], pinned[0], True), 4),
        Call("copy 4 MiB to the host", on_cpu, copy(host[0], device[0]), 4, waits=True),
        Call("... to pinned memory", on_cpu, copy(pinned[0], device[0], True), 4),
        Call("copy 4 MiB on the device", on_cpu, copy(device[0], device[1]), 4),
    ]


def measure(call: Call, rounds: int) -> Times:
    """Seconds of one call: `cpu`, `submit`, `stream` and `complete`, one value a round."""
    submitted: list[float] = []

    def stream() -> float:
        def run() -> None:
            submitted.append(repeat(call.on_device, call.count))
            wait()

        return repeat(run, 1) / call.count

    def call_and_wait() -> None:
        call.on_device()
        wait()

    alternatives = {"cpu": lambda: repeat(call.on_cpu, call.count), "stream": stream}
    if call.queues and not call.waits:
        alternatives["complete"] = lambda: repeat(call_and_wait, max(3, call.count // 3))
    times = alternate(alternatives, rounds)
    times["submit"] = submitted[-rounds:]
    if not call.queues:
        del times["stream"]
    return times


def row(call: Call, times: Times) -> list[str]:
    def cells(kind: str) -> list[str]:
        return [both(times[kind]), ratio(times[kind], times["cpu"])] if kind in times else ["", ""]

    if call.waits:
        times = {"cpu": times["cpu"], "complete": times["submit"]}
    return [call.name, both(times["cpu"]), *cells("submit"), *cells("stream"), *cells("complete")]


def main() -> None:
    options = arguments("Host cost of single calls on the device, against the CPU's, in turns.", 41).parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    header = ["call", "CPU", "submit", "/ CPU", "stream", "/ CPU", "complete", "/ CPU"]
    table = calls()
    with on_this_machine(options.wait_idle):
        rows = [row(call, measure(call, options.rounds)) for call in table]
    print(
        f"* {options.rounds} values a number: median (minimum). Ratios: median of the rounds' ratios / of the minima.\n"
    )
    print(markdown(header, rows), flush=True)


if __name__ == "__main__":
    main()

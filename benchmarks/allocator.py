"""What a block of memory costs the host: allocating and freeing it, with the cache, without, and on the CPU.

The three are timed in C++ through `c10::Allocator`, the interface that storages use, with an idle device: `cache` is the
device's allocator, `direct` is chapter 1's, which asks the driver each time (cookbookMallocAsync, cookbookFreeAsync), and
`CPU` is what CPU tensors use (posix_memalign, free). The second table is the same for `torch.empty`, so with the call
from Python, the dispatcher and the tensor around it.

    nox -s bench, or: PYTHONPATH=build/6/src python benchmarks/allocator.py --wait-idle 300
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from _interleave import Times, alternate, arguments, both, markdown, on_this_machine, ratio, repeat

import cookbook_backend

DEVICE = torch.device("cookbook:0")
KIB, MIB = 1 << 10, 1 << 20
SIZES = {"16 B": 16, "1 KiB": KIB, "64 KiB": 64 * KIB, "1 MiB": MIB, "4 MiB": 4 * MIB, "32 MiB": 32 * MIB}
PAIRS = 3000
"""Pairs of allocate and free that make one value."""


def pairs(allocator: str, size: int) -> Callable[[], float]:
    """Return a function that measures the seconds of one pair."""
    return lambda: cookbook_backend._C.time_pairs(allocator, size, PAIRS) / PAIRS


def empty(size: int, device: str | torch.device) -> Callable[[], float]:
    """Return a function that measures the seconds of one `torch.empty` and its end."""
    return lambda: repeat(lambda: torch.empty(size, dtype=torch.uint8, device=device), PAIRS // 10)


def fragmented() -> list[torch.Tensor]:
    """Leave holes of many sizes in the cache, and return what lies between them."""
    tensors = [torch.empty(512 * (1 + i % 97), dtype=torch.uint8, device=DEVICE) for i in range(2000)]
    return tensors[::2]


def measure_pairs(size: int, rounds: int) -> Times:
    return alternate({name: pairs(name, size) for name in ("cpu", "cache", "direct")}, rounds)


def measure_empty(size: int, rounds: int) -> Times:
    return alternate({"cpu": empty(size, "cpu"), "cache": empty(size, DEVICE)}, rounds)


def pair_row(name: str, times: Times) -> list[str]:
    cpu, cache, direct = times["cpu"], times["cache"], times["direct"]
    return [name, both(cpu), both(cache), ratio(cache, cpu), both(direct), ratio(direct, cpu), ratio(cache, direct)]


def empty_row(name: str, times: Times) -> list[str]:
    return [name, both(times["cpu"]), both(times["cache"]), ratio(times["cache"], times["cpu"])]


def main() -> None:
    options = arguments("Host cost of allocating and freeing memory, against the CPU's, in turns.", 41).parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    with on_this_machine(options.wait_idle):
        rows = [pair_row(name, measure_pairs(size, options.rounds)) for name, size in SIZES.items()]
        kept = fragmented()
        rows += [pair_row(f"{name}, holes", measure_pairs(SIZES[name], options.rounds)) for name in ("1 KiB", "64 KiB")]
        del kept
        empties = [empty_row(name, measure_empty(size, options.rounds)) for name, size in SIZES.items()]
    print(f"* {options.rounds} values a number: median (minimum). Ratios: median of the rounds' / of the minima.")
    print("* `holes`: the same with 1000 free blocks of 97 sizes in the cache.\n")
    header = ["allocate and free", "CPU", "cache", "/ CPU", "direct", "/ CPU", "cache / direct"]
    print(markdown(header, rows), end="\n\n")
    print(markdown(["`torch.empty`", "CPU", "cache", "/ CPU"], empties), flush=True)


if __name__ == "__main__":
    main()

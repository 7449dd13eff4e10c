# chapter 6
"""A program that uses the module's names; test_typing.py has mypy --strict read it, and runs it."""

import torch

import cookbook_backend as cookbook


def describe(index: int) -> str:
    properties: cookbook.DeviceProperties = cookbook.get_device_properties(index)
    major, minor = cookbook.get_device_capability(torch.device("cookbook", index))
    return f"{properties.name} {major}.{minor}, {properties.total_memory >> 20} MiB"


def train(steps: int) -> float:
    stream: torch.Stream = cookbook.default_stream("cookbook:1")
    generator: torch.Generator = cookbook.default_generators[1]
    with cookbook.device(1), cookbook.stream(stream):
        cookbook.manual_seed(1)
        net = torch.nn.Linear(4, 1, device="cookbook")
        for _ in range(steps):
            x = torch.randn(8, 4, device="cookbook", generator=generator)
            net(x).square().mean().backward()
    event: cookbook.Event = stream.record_event()
    event.synchronize()
    cookbook.synchronize(1)
    cookbook.set_metadata(x, {"layout": "rows"})
    layout: dict[str, str] = cookbook.get_metadata(x)
    stats: dict[str, int] = {r.name: r.calls for r in cookbook.fallback.report()}
    state: torch.Tensor = cookbook.get_rng_state("cookbook:1")
    free, total = cookbook.mem_get_info(1)
    with cookbook.device_of(x), cookbook.fallback.policy("warn"):
        current: int = cookbook.current_device()
    return len(layout) + len(stats) + state.numel() + current + float(free <= total)


if __name__ == "__main__":
    print(describe(0), train(2))

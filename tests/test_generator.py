# chapter 4
"""The device's generators: seeds, states, copies, defaults, and what PyTorch's own code does with them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from conftest import Run
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
DEFAULT_SEED = 67280421310721  # c10::default_rng_seed_val


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def made(device: str | torch.device, seed: int = 3, offset: int = 0) -> torch.Generator:
    generator = torch.Generator(device).manual_seed(seed)
    generator.set_offset(offset)
    return generator


def test_a_generator_has_a_device_with_an_index(device: torch.device) -> None:  # B58
    generator = torch.Generator(device)
    assert generator.device == device
    assert (generator.initial_seed(), generator.get_offset()) == (DEFAULT_SEED, 0)
    with torch.cookbook.device(1):
        assert torch.Generator("cookbook").device == torch.device("cookbook:1")


def test_an_index_that_does_not_exist_is_an_error() -> None:  # B04
    for call in (
        lambda: torch.Generator("cookbook:2"),
        lambda: torch.cookbook.get_rng_state(7),
        lambda: torch.cookbook.set_rng_state(torch.cookbook.get_rng_state(), "cookbook:2"),
        lambda: _C.default_generator(2),
    ):
        with pytest.raises(RuntimeError, match="invalid device index: got cookbook:[27], but there are 2 devices"):
            call()
    assert torch.Generator("cookbook:1").device.index == 1


def test_the_state_is_seed_and_offset_in_16_bytes(device: torch.device) -> None:  # B59
    generator = made(device, seed=0x0123456789ABCDEF, offset=4 * 77)
    state = generator.get_state()
    assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (16,), "cpu")
    assert bytes(state.tolist()) == (0x0123456789ABCDEF).to_bytes(8, "little") + (308).to_bytes(8, "little")
    assert state.view(torch.int64).tolist() == [0x0123456789ABCDEF, 308]
    written = torch.tensor([5, 40]).view(torch.uint8)
    generator.set_state(written)
    assert (generator.initial_seed(), generator.get_offset()) == (5, 40)
    written.zero_()
    assert generator.initial_seed() == 5


STATES: dict[str, tuple[Callable[[], Tensor], type[Exception], str]] = {
    "too short": (lambda: torch.zeros(3, dtype=torch.uint8), RuntimeError, "wrong size: expected 16 bytes .*got 3"),
    "too long": (lambda: torch.zeros(17, dtype=torch.uint8), RuntimeError, "wrong size"),
    "a CPU generator's": (torch.get_rng_state, RuntimeError, "wrong size"),
    "other dtype": (lambda: torch.zeros(16), TypeError, "must be a torch.ByteTensor"),
    "on the device": (lambda: torch.zeros(16, dtype=torch.uint8, device="cookbook"), TypeError, "torch.ByteTensor"),
    "with gaps": (lambda: torch.zeros(32, dtype=torch.uint8)[::2], RuntimeError, "must be contiguous"),
    "odd offset": (lambda: torch.tensor([1, 2]).view(torch.uint8), RuntimeError, "multiple of 4, got 2"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_wrong_state_is_refused_and_changes_nothing(case: str, device: torch.device) -> None:  # B58
    state, kind, text = STATES[case]
    generator = made(device, 3, 8)
    with pytest.raises(kind, match=text) as raised:
        generator.set_state(state())
    assert raised.type is kind
    assert (generator.initial_seed(), generator.get_offset()) == (3, 8)


def test_a_wrong_state_raises_what_the_cpus_generator_raises() -> None:
    for state in (torch.zeros(16), torch.zeros(32, dtype=torch.uint8)[::2], torch.zeros(3, dtype=torch.uint8)):
        errors = []
        for where in ("cpu", "cookbook"):
            with pytest.raises((RuntimeError, TypeError)) as raised:
                torch.Generator(where).set_state(state)
            errors.append((raised.type, str(raised.value)))
        assert errors[0][0] is errors[1][0]
        assert state.numel() == 3 or errors[0][1] == errors[1][1]


def test_offsets(device: torch.device) -> None:
    generator = made(device)
    torch.rand(5, device=device, generator=generator)
    assert generator.get_offset() == 8  # five columns, in whole blocks of four
    generator.set_offset(2**64 - 4)
    assert generator.get_offset() == 2**64 - 4
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4, got 6"):
        generator.set_offset(6)
    generator.manual_seed(9)
    assert (generator.initial_seed(), generator.get_offset()) == (9, 0)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1, -1, -(2**63)])
def test_seeds_have_the_range_of_the_cpus(seed: int) -> None:
    assert (
        torch.Generator("cookbook").manual_seed(seed).initial_seed()
        == torch.Generator().manual_seed(seed).initial_seed()
    )


def test_seed_is_unpredictable(device: torch.device) -> None:
    generator = made(device, offset=4)
    seeds = {generator.seed() for _ in range(4)}
    assert len(seeds) == 4
    assert generator.initial_seed() in seeds
    assert generator.get_offset() == 0


def test_state_and_numbers_belong_together(device: torch.device) -> None:  # B58
    generator = made(device)
    torch.randn(10, device=device, generator=generator)
    state = generator.get_state()
    first = torch.randn(10, device=device, generator=generator)
    second = torch.randn(10, device=device, generator=generator)
    assert not torch.equal(first.cpu(), second.cpu())
    generator.set_state(state)
    assert torch.equal(first.cpu(), torch.randn(10, device=device, generator=generator).cpu())


def test_a_clone_goes_its_own_way(device: torch.device) -> None:
    generator = made(device, offset=12)
    copy = generator.clone_state()
    assert (copy.device, copy.initial_seed(), copy.get_offset()) == (device, 3, 12)
    torch.rand(4, device=device, generator=copy)
    assert (generator.get_offset(), copy.get_offset()) == (12, 16)


def test_graphsafe_state_is_shared(device: torch.device) -> None:
    generator = made(device, offset=12)
    shared = generator.graphsafe_get_state()
    torch.rand(4, device=device, generator=generator)
    assert shared.get_offset() == 16
    other = made(device, seed=8)
    generator.graphsafe_set_state(other)
    torch.rand(4, device=device, generator=generator)
    assert (other.get_offset(), shared.get_offset(), generator.initial_seed()) == (4, 16, 8)
    for wrong in (torch.Generator(), torch.Generator(f"cookbook:{1 - device.index}")):
        with pytest.raises(RuntimeError, match=f"expected a generator of {device}, got one of {wrong.device}"):
            generator.graphsafe_set_state(wrong)


USES: dict[str, Callable[[torch.device, torch.Generator], object]] = {
    "rand": lambda d, g: torch.rand(4, device=d, generator=g),
    "randn": lambda d, g: torch.randn(4, device=d, generator=g),
    "randint": lambda d, g: torch.randint(9, (4,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(4, device=d, generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(4, device=d), 1.0, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((4,), 0.5, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(4, device=d), 2, generator=g),
    "multinomial with replacement": lambda d, g: torch.multinomial(torch.ones(4, device=d), 2, True, generator=g),
    "exponential_": lambda d, g: torch.ones(4, device=d).exponential_(generator=g),
    "poisson": lambda d, g: torch.poisson(torch.ones(4, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(torch.ones(4, device=d), torch.ones(4, device=d), generator=g),
    "gamma": lambda d, g: torch._standard_gamma(torch.ones(4, device=d), generator=g),
    "dirichlet": lambda d, g: torch._sample_dirichlet(torch.ones(4, device=d), generator=g),
    "rrelu": lambda d, g: torch.ops.aten.rrelu_with_noise(
        -torch.ones(4, device=d), torch.ones(4, device=d), 0.1, 0.3, True, g
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_generator_is_used_on_its_own_device_only(use: str) -> None:  # B58
    torch.cookbook.default_generators[0].set_offset(0)
    USES[use](torch.device("cookbook"), made("cookbook:0"))
    for generator, text in (
        (made("cookbook:1"), "Expected a 'cookbook:0' generator device but found 'cookbook:1'"),
        (torch.Generator(), "Expected a 'cookbook' device type for generator but found 'cpu'"),
    ):
        before = generator.get_state()
        with pytest.raises(RuntimeError, match=text):
            USES[use](torch.device("cookbook:0"), generator)
        assert torch.equal(generator.get_state(), before)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' .*generator.* but found 'cookbook"):
        USES[use](torch.device("cpu"), made("cookbook:0"))
    assert torch.cookbook.default_generators[0].get_offset() == 0


def test_the_default_generators(device: torch.device) -> None:
    generator = torch.cookbook.default_generators[device.index]
    assert len(torch.cookbook.default_generators) == torch.cookbook.device_count() == 2
    assert generator is _C.default_generator(device.index)
    assert generator.device == device
    generator.manual_seed(3)
    assert torch.equal(torch.rand(4, device=device).cpu(), torch.rand(4, device=device, generator=made(device)).cpu())
    with torch.cookbook.device(device):
        assert _C.default_generator(-1) is generator
        assert torch.cookbook.initial_seed() == 3


def test_manual_seed_seeds_every_device_and_warns_of_nothing() -> None:  # B56
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(5)
    draws = [torch.rand(3, device=f"cookbook:{i}").cpu() for i in (0, 1)]
    torch.manual_seed(5)
    torch.rand(7)  # what the CPU draws does not move the devices
    torch.rand(9, device="cookbook:1")
    assert torch.equal(torch.rand(3, device="cookbook:0").cpu(), draws[0])
    assert torch.equal(draws[0], draws[1])
    state = torch.get_rng_state()
    torch.rand(3, device="cookbook")
    assert torch.equal(torch.get_rng_state(), state)


def test_module_functions() -> None:
    cookbook = torch.cookbook
    cookbook.manual_seed_all(11)
    with cookbook.device(1):
        cookbook.manual_seed(12)
        assert cookbook.initial_seed() == 12
    assert [g.initial_seed() for g in cookbook.default_generators] == [11, 12]
    cookbook.seed()
    assert cookbook.default_generators[0].initial_seed() not in (11, 12)
    assert cookbook.default_generators[1].initial_seed() == 12
    cookbook.seed_all()
    first, second = (g.initial_seed() for g in cookbook.default_generators)
    assert first == second != 12
    torch.seed()
    assert {g.initial_seed() for g in cookbook.default_generators} == {torch.initial_seed()}


@pytest.mark.parametrize("spelled", [1, "cookbook:1", torch.device("cookbook", 1)])
def test_states_of_devices(spelled: int | str | torch.device) -> None:  # B57
    torch.cookbook.manual_seed_all(1)
    torch.rand(4, device="cookbook:1")
    state = torch.cookbook.get_rng_state(spelled)
    assert state.view(torch.int64).tolist() == [1, 4]
    with torch.cookbook.device(1):
        assert torch.equal(torch.cookbook.get_rng_state(), state)
    assert torch.cookbook.get_rng_state().view(torch.int64).tolist() == [1, 0]
    torch.cookbook.set_rng_state(torch.tensor([2, 8]).view(torch.uint8), spelled)
    assert torch.cookbook.default_generators[1].get_offset() == 8
    everything = torch.cookbook.get_rng_state_all()
    torch.cookbook.manual_seed_all(6)
    torch.cookbook.set_rng_state_all(everything)
    assert [s.view(torch.int64).tolist() for s in torch.cookbook.get_rng_state_all()] == [[1, 0], [2, 8]]
    with pytest.raises(ValueError, match="expected a cookbook device, got cpu"):
        torch.cookbook.get_rng_state("cpu")


@pytest.mark.parametrize("kind", ["cookbook", None])
def test_fork_rng_restores_every_device(kind: str | None) -> None:  # B57
    before = [torch.get_rng_state(), *torch.cookbook.get_rng_state_all()]

    def draw_and_fail() -> None:
        torch.rand(3), torch.rand(3, device="cookbook:0"), torch.rand(3, device="cookbook:1")
        raise KeyError

    with pytest.raises(KeyError), torch.random.fork_rng(devices=[0, 1], device_type=kind):
        draw_and_fail()
    after = [torch.get_rng_state(), *torch.cookbook.get_rng_state_all()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with torch.random.fork_rng(devices=[torch.device("cookbook:1")], device_type=kind):
        torch.rand(3, device="cookbook:0"), torch.rand(3, device="cookbook:1")
    assert [g.get_offset() for g in torch.cookbook.default_generators] == [4, 0]


def test_generators_need_no_device(run_python: Run) -> None:
    done = run_python("""
        import torch, cookbook_backend
        torch.manual_seed(4)
        torch.cookbook.seed_all()
        torch.manual_seed(4)
        g = torch.Generator("cookbook:1"); g.manual_seed(1); g.set_state(g.get_state())
        with torch.random.fork_rng(devices=[0, 1]): pass
        assert not any(cookbook_backend._C.has_context(i) for i in (0, 1))
        a = torch.rand(3, device="cookbook:1")  # the seed was kept until now
        torch.manual_seed(4)
        assert torch.equal(a.cpu(), torch.rand(3, device="cookbook:1").cpu())
    """)
    assert done.returncode == 0, done.stderr


def test_a_machine_without_a_device_can_be_seeded(run_python: Run) -> None:
    done = run_python(
        """
        import warnings; warnings.simplefilter("error")
        import pytest, torch, cookbook_backend
        torch.manual_seed(4); torch.seed()
        torch.cookbook.manual_seed(1); torch.cookbook.manual_seed_all(1); torch.cookbook.seed(); torch.cookbook.seed_all()
        assert torch.cookbook.default_generators == () and torch.cookbook.get_rng_state_all() == []
        with torch.random.fork_rng(): pass
        for call in (lambda: torch.Generator("cookbook"), torch.cookbook.get_rng_state, torch.cookbook.initial_seed):
            with pytest.raises(RuntimeError, match="NoDevice|InvalidDevice"): call()
        """,
        COOKBOOK_DEVICE_COUNT="0",
    )
    assert done.returncode == 0, done.stderr


def test_a_process_starts_with_a_seed_of_its_own(run_python: Run) -> None:
    script = "import torch, cookbook_backend; print([g.initial_seed() for g in torch.cookbook.default_generators])"
    assert len({run_python(script).stdout for _ in range(2)}) == 2


def test_a_forked_child_can_seed(run_python: Run) -> None:
    done = run_python("""
        import os, torch, cookbook_backend
        torch.rand(1, device="cookbook").cpu()
        if (child := os.fork()) == 0:
            torch.manual_seed(1)  # what every DataLoader worker does first
            os._exit(0 if torch.initial_seed() == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    """)
    assert done.returncode == 0, done.stderr


def test_threads_never_get_the_same_numbers() -> None:
    generator = made("cookbook:0")
    draws: list[Tensor] = []

    def draw() -> None:
        for _ in range(50):
            x = torch.empty(6, dtype=torch.int64, device="cookbook")
            draws.append(x.random_(-(2**63), None, generator=generator))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = torch.cat(draws).cpu()
    assert generator.get_offset() == 200 * 8
    assert numbers.unique().numel() == 200 * 6


# Capture


def cell(device: torch.device) -> Tensor:
    return torch.zeros(2, dtype=torch.int64, device=device)


def bits(generator: torch.Generator, *counts: int) -> list[Tensor]:
    """What eager calls draw."""
    return [
        torch.empty(n, dtype=torch.int64, device=generator.device).random_(-(2**63), None, generator=generator).cpu()
        for n in counts
    ]


def test_a_captured_launch_reads_its_cell_when_it_runs(
    device: torch.device, gate: Callable[[torch.Stream], cookbook_backend._C.Gate]
) -> None:
    generator, eager, memory = made(device), made(device), cell(device)
    counts = (6, 3, 40)
    _C.begin_random_capture(generator, 1, memory)
    outs = [torch.empty(n, dtype=torch.int64, device=device) for n in counts]
    runs = []
    closed = gate(torch.accelerator.current_stream(device))
    for _ in range(3):  # a replay writes the cell, then runs the launches; here they are queued again by hand
        _C.replay_random(generator, 8 + 4 + 40, memory)
        for out in outs:
            _C.captured_bits(out, generator, 1)
        assert _C.end_random_capture(generator, 1) == 8 + 4 + 40
        runs.append([out.clone() for out in outs])
        _C.begin_random_capture(generator, 1, memory)
    assert generator.get_offset() == 3 * 52
    generator.manual_seed(99)  # too late for what is queued
    closed.open()
    for run in runs:
        expected = bits(eager, *counts)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(run, expected, strict=True))
    _C.end_random_capture(generator, 1)


def test_captures_of_two_graphs_do_not_mix(device: torch.device) -> None:
    generator, cells = made(device), [cell(device), cell(device)]
    for graph, memory in enumerate(cells, 1):
        _C.begin_random_capture(generator, graph, memory)
    out = torch.empty(5, dtype=torch.int64, device=device)
    for graph in (1, 2, 1):
        _C.captured_bits(out, generator, graph)
    assert generator.get_offset() == 0
    assert [_C.end_random_capture(generator, graph) for graph in (1, 2)] == [16, 8]
    with pytest.raises(RuntimeError, match="not part of the graph"):
        _C.captured_bits(out, generator, 1)
    torch.cookbook.synchronize(device)


def test_a_cell_of_another_device_is_an_illegal_address() -> None:
    generator = made("cookbook:0")
    _C.begin_random_capture(generator, 1, cell(torch.device("cookbook:1")))
    _C.captured_bits(torch.empty(4, dtype=torch.int64, device="cookbook:0"), generator, 1)
    with pytest.raises(torch.AcceleratorError, match="graph's cell is not on device 0"):
        torch.cookbook.synchronize(0)
    _C.end_random_capture(generator, 1)


# PyTorch's own users of states


def dropped(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x.sin(), 0.5).exp()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_drops_the_same_elements_again(device: torch.device, reentrant: bool) -> None:
    x = torch.randn(64, 64, device=device, requires_grad=True)
    state = torch.cookbook.get_rng_state(device)
    (expected,) = torch.autograd.grad(dropped(x).sum(), x)
    torch.cookbook.set_rng_state(state, device)
    loss = torch.utils.checkpoint.checkpoint(dropped, x, use_reentrant=reentrant).sum()
    after = torch.cookbook.get_rng_state(device)
    torch.rand(5, device=device)
    loss.backward()
    assert torch.equal(x.grad.cpu(), expected.cpu())
    assert torch.cookbook.get_rng_state(device).view(torch.int64)[1] == after.view(torch.int64)[1] + 8
    assert (expected == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_autocast_says_that_it_is_off() -> None:  # B61: what checkpointing needs of autocast promises nothing else
    with pytest.warns(UserWarning, match="Disabling autocast"), torch.autocast("cookbook"):
        assert not torch.is_autocast_enabled("cookbook")


# if COOKBOOK_CHAPTER >= 6
del test_autocast_says_that_it_is_off
# endif


SHARDS = """
    import torch, cookbook_backend
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("cpu:fake,cookbook:fake", rank={rank}, world_size=2, store=FakeStore())
    torch.cookbook.set_device({rank})
    mesh = DeviceMesh("cookbook", [0, 1])
    torch.manual_seed(7)
    results = []
    for placement in (Shard(0), Replicate()):
        d = distribute_tensor(torch.zeros(8, 6), mesh, [placement])
        results += [d.uniform_().to_local().cpu(), d.normal_().to_local().cpu(), d.bernoulli_(0.3).to_local().cpu()]
    torch.save((results, torch.cookbook.get_rng_state()), r"{path}")
"""


def test_shards_of_a_dtensor_are_the_rows_of_the_whole(
    run_python: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # B59: torch.distributed packs our state itself, and hands each rank an offset that counts elements.
    folder = tmp_path_factory.mktemp("shards")
    for rank in (0, 1):
        done = run_python(SHARDS.format(rank=rank, path=folder / str(rank)))
        assert done.returncode == 0, done.stderr
    (first, state), (second, other_state) = (torch.load(folder / str(rank)) for rank in (0, 1))
    torch.manual_seed(7)
    whole = torch.zeros(8, 6, device="cookbook")
    for i in range(3):
        expected = (whole.uniform_, whole.normal_, lambda: whole.bernoulli_(0.3))[i]().cpu()
        assert torch.equal(torch.cat([first[i], second[i]]), expected)
    for i in range(3, 6):
        expected = (whole.uniform_, whole.normal_, lambda: whole.bernoulli_(0.3))[i - 3]().cpu()
        assert torch.equal(first[i], expected)
        assert torch.equal(second[i], expected)
    assert torch.equal(state, torch.cookbook.get_rng_state(0))
    assert torch.equal(other_state, state)

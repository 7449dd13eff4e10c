# chapter 4
"""Random numbers: which they are, how they are distributed, and that nothing but seed and offset decides."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scipy.stats
import torch
from gradients import never_waiting
from same_as_cpu import mirror
from torch import Tensor
from torch.nn import functional

import cookbook_backend

CloseGate = Callable[[torch.Stream], cookbook_backend._C.Gate]

_C = cookbook_backend._C
aten = torch.ops.aten
MASK = 2**32 - 1
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (
    *FLOATS,
    *INTEGERS,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex64,
    torch.float8_e4m3fn,
)
COUNT = 40_000
# Of a hundred sound samples one has a p-value below 0.01. None of a hundred should be below this; a wrong distribution is far
# below it.
P_VALUE = 1e-4


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def made(device: str | torch.device = "cookbook:0", seed: int = 3, offset: int = 0) -> torch.Generator:
    generator = torch.Generator(device).manual_seed(seed)
    generator.set_offset(offset)
    return generator


# Philox


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10, written down a second time."""
    c, k = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def word(seed: int, column: int, row: int) -> int:
    call = column // 4
    return philox([call & MASK, call >> 32, row & MASK, row >> 32], [seed & MASK, seed >> 32])[column % 4]


def test_the_reference_gives_the_published_answers() -> None:  # Random123, kat_vectors, philox4x32 10
    ones, pi = [MASK] * 4, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox([0] * 4, [0, 0]) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(ones, [MASK, MASK]) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox(pi, [0xA4093822, 0x299F31D0]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("offset", [0, 4, 4 * (2**32 - 1), 2**36 + 8])
@pytest.mark.parametrize("seed", [0, 0xA40938_22299F31, 2**64 - 1])
def test_an_element_gets_the_words_of_its_column(seed: int, offset: int, device: torch.device) -> None:
    x = torch.empty(3, 23, dtype=torch.int64, device=device)
    x.random_(-(2**63), None, generator=made(device, seed, offset))
    for i, number in enumerate(x.flatten().tolist()):
        assert number % 2**64 == word(seed, offset + i, 0) | word(seed, offset + i, 1) << 32
    y = torch.empty(40, device=device).uniform_(generator=made(device, seed, offset))
    expected = [(word(seed, offset + i, 0) % 2**24) / 2**24 for i in range(40)]
    assert y.tolist() == expected


def test_many_words_for_one_element() -> None:
    # A Poisson number with a rate below 10 multiplies uniform numbers: it goes down its column, past what is kept.
    rates = torch.full((64,), 9.5)
    drawn = torch.poisson(rates.to("cookbook"), made()).tolist()
    for i, events in enumerate(drawn):
        product, expected, row = 1.0, -1, 0
        while product > math.exp(-9.5) or expected < 0:
            bits = word(3, i, row) | word(3, i, row + 1) << 32
            product *= (bits >> 11 | 1) / 2**53
            expected, row = expected + 1, row + 2
        assert events == expected
    assert max(drawn) > 8  # with two words a number: more than 16 rows


# What a result depends on

Draw = Callable[[Tensor, torch.Generator], Any]
IN_PLACE: dict[str, Draw] = {
    "random_": lambda x, g: x.random_(generator=g),
    "random_.from": lambda x, g: x.random_(-50, 60, generator=g),
    "uniform_": lambda x, g: x.uniform_(-1, 3, generator=g),
    "normal_": lambda x, g: x.normal_(1, 2, generator=g),
    "log_normal_": lambda x, g: x.log_normal_(generator=g),
    "exponential_": lambda x, g: x.exponential_(2, generator=g),
    "cauchy_": lambda x, g: x.cauchy_(generator=g),
    "geometric_": lambda x, g: x.geometric_(0.3, generator=g),
    "bernoulli_": lambda x, g: x.bernoulli_(0.3, generator=g),
    "bernoulli_.Tensor": lambda x, g: x.bernoulli_(torch.linspace(0, 1, 5, device=x.device)[:, None], generator=g),
}


def shapes(device: torch.device) -> list[Tensor]:
    """A 5 by 8 tensor in several layouts."""
    whole = torch.zeros(17, 31, device=device)
    return [
        torch.zeros(5, 8, device=device),
        torch.zeros(8, 5, device=device).t(),
        whole[2:7, 3:19:2],
        whole.t()[1:25:3, 5:10].t(),
        whole[:5, 23:],
    ]


@pytest.mark.parametrize("name", IN_PLACE)
def test_layout_and_device_do_not_matter(name: str) -> None:
    expected = torch.zeros(5, 8, device="cookbook")
    IN_PLACE[name](expected, made())
    for device in (torch.device("cookbook:0"), torch.device("cookbook:1")):
        for x in shapes(device):
            storage = x.as_strided((x.untyped_storage().nbytes() // 4,), (1,), 0)
            generator = made(device)
            IN_PLACE[name](x, generator)
            assert torch.equal(x.cpu(), expected.cpu())
            assert generator.get_offset() == 40
            x.zero_()
            assert storage.count_nonzero().item() == 0  # and nothing beside the view was written


# bernoulli_ with a tensor of probabilities has one for each of five rows, and a part has fewer rows.
@pytest.mark.parametrize("name", [name for name in IN_PLACE if name != "bernoulli_.Tensor"])
def test_a_part_can_be_drawn_alone(name: str) -> None:
    whole, part = torch.zeros(9, 8, device="cookbook"), torch.zeros(4, 8, device="cookbook")
    IN_PLACE[name](whole, made())
    IN_PLACE[name](part, made(offset=3 * 8))
    assert torch.equal(part.cpu(), whole[3:7].cpu())


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


LARGE: dict[str, Callable[[torch.Generator], Tensor]] = {
    "uniform": lambda g: torch.rand(COUNT + 3, device="cookbook", generator=g),
    "normal": lambda g: torch.randn(COUNT + 3, device="cookbook", generator=g),
    "strided": lambda g: torch.zeros(211, 200, device="cookbook").t().normal_(generator=g),
    "poisson": lambda g: torch.poisson(torch.full((COUNT + 3,), 30.0, device="cookbook"), generator=g),
    "gamma": lambda g: torch._standard_gamma(torch.full((COUNT + 3,), 0.3, device="cookbook"), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(7, device="cookbook"), COUNT + 3, True, generator=g),
    "randperm": lambda g: torch.randperm(COUNT + 3, device="cookbook", generator=g),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_number_of_threads_does_not_matter(name: str) -> None:
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(LARGE[name](made()).cpu())
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_stream_does_not_matter(device: torch.device, gate: Callable[[torch.Stream], Any]) -> None:
    expected = [torch.randn(100, device=device, generator=generator) for generator in [made(device)] for _ in range(3)]
    side, generator = torch.Stream(device), made(device)
    closed = gate(side)
    with side:
        first = torch.randn(100, device=device, generator=generator)
    second = torch.randn(100, device=device, generator=generator)
    with side:
        third = torch.randn(100, device=device, generator=generator)
    assert torch.equal(second.cpu(), expected[1].cpu())  # has run before the first
    closed.open()
    torch.accelerator.synchronize(device)
    assert torch.equal(first.cpu(), expected[0].cpu())
    assert torch.equal(third.cpu(), expected[2].cpu())


def test_numbers_are_fixed_by_the_call_not_by_its_run(
    device: torch.device, gate: Callable[[torch.Stream], Any]
) -> None:
    generator = made(device)
    expected = torch.rand(50, device=device, generator=made(device))
    closed = gate(torch.accelerator.current_stream(device))
    queued = torch.rand(50, device=device, generator=generator)
    generator.manual_seed(77)
    torch.rand(50, device=device, generator=generator)
    del generator
    closed.open()
    assert torch.equal(queued.cpu(), expected.cpu())


WAITING: dict[str, Callable[[Tensor], Any]] = {
    **{name: lambda x, f=f: f(x.clone(), made()) for name, f in IN_PLACE.items() if name != "bernoulli_.Tensor"},
    "rand": lambda x: torch.rand(4, device=x.device),
    "randint": lambda x: torch.randint(9, (4,), device=x.device),
    "randperm": lambda x: torch.randperm(9, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x),
    "dropout": lambda x: functional.dropout(x, 0.3),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "multinomial": lambda x: torch.multinomial(x, 3),
    "one of multinomial": lambda x: torch.multinomial(x, 1),
    "multinomial with replacement": lambda x: torch.multinomial(x, 30, True),
    "poisson": lambda x: torch.poisson(x),
    "binomial": lambda x: torch.binomial(x, x),
    "gamma": lambda x: torch._standard_gamma(x),
    "dirichlet": lambda x: torch._sample_dirichlet(x),
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x),
}


@pytest.mark.parametrize("name", WAITING)
def test_no_random_operator_waits_or_falls_back(name: str) -> None:
    x = torch.full((4, 8), 0.5, device="cookbook")
    cookbook_backend.fallback.reset()
    with never_waiting() as counters, cookbook_backend.fallback.policy("error"):
        WAITING[name](x)
    assert counters["launches"] >= 1


def test_every_operator_that_draws_on_the_cpu_draws_on_the_device() -> None:
    missing = []
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        packet = getattr(aten, schema.name.removeprefix("aten::"), None)
        if not schema.name.startswith("aten::") or packet is None:
            continue
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is None or torch.Tag.nondeterministic_seeded not in overload.tags:
            continue
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if has(name, "CPU") and not has(name, "PrivateUse1"):
            missing.append(name)
    # The CPU's flash attention refuses dropout; on the device attention with dropout takes the way of `math`.
    assert missing == ["aten::_scaled_dot_product_flash_attention_for_cpu"]


# Distributions: the samples are fixed by the seed, so these tests give the same answer in every run.

Sample = Callable[[torch.device, torch.dtype], Tensor]


def empty(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(COUNT, device=device, dtype=dtype)


def full(value: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.full((COUNT,), value, device=device, dtype=dtype)


CONTINUOUS: dict[str, tuple[Sample, Any]] = {
    "uniform": (lambda d, t: empty(d, t).uniform_(-2, 5), scipy.stats.uniform(-2, 7)),
    "normal": (lambda d, t: empty(d, t).normal_(1, 3), scipy.stats.norm(1, 3)),
    "normal of tensors": (lambda d, t: torch.normal(full(1, d, t), full(3, d, t)), scipy.stats.norm(1, 3)),
    "log_normal": (lambda d, t: empty(d, t).log_normal_(0.5, 0.7), scipy.stats.lognorm(0.7, scale=math.exp(0.5))),
    "exponential": (lambda d, t: empty(d, t).exponential_(0.5), scipy.stats.expon(scale=2)),
    "cauchy": (lambda d, t: empty(d, t).cauchy_(1, 2), scipy.stats.cauchy(1, 2)),
    "gamma 0.3": (lambda d, t: torch._standard_gamma(full(0.3, d, t)), scipy.stats.gamma(0.3)),
    "gamma 7": (lambda d, t: torch._standard_gamma(full(7, d, t)), scipy.stats.gamma(7)),
    "dirichlet": (
        lambda d, t: torch._sample_dirichlet(torch.tensor([2.0, 3.0], device=d, dtype=t).expand(COUNT, 2))[:, 0],
        scipy.stats.beta(2, 3),
    ),
    "rrelu": (
        lambda d, t: functional.rrelu(full(-1, d, t), 0.2, 0.9, training=True),
        scipy.stats.uniform(-0.9, 0.7),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str, dtype: torch.dtype, device: torch.device) -> None:
    draw, expected = CONTINUOUS[name]
    sample = draw(device, dtype)
    assert (sample.dtype, sample.device) == (dtype, device)
    numbers = sample.cpu().double().numpy()
    assert scipy.stats.kstest(numbers, expected.cdf).pvalue > P_VALUE
    if name != "cauchy":  # which has neither
        error = expected.std() / math.sqrt(COUNT)
        assert abs(numbers.mean() - expected.mean()) < 4 * error
        assert numbers.var() == pytest.approx(expected.var(), rel=0.1)
    # Neighbours, and numbers in the same place of neighbouring blocks, have nothing to do with each other.
    ranks = scipy.stats.rankdata(numbers)
    for distance in (1, 2, 4, 32):
        assert abs(scipy.stats.pearsonr(ranks[:-distance], ranks[distance:]).statistic) < 4 / math.sqrt(COUNT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["uniform", "normal", "log_normal", "exponential", "cauchy"])
def test_narrow_dtypes_round_the_wide_ones_numbers(name: str, dtype: torch.dtype) -> None:
    draw, _ = CONTINUOUS[name]
    torch.manual_seed(1)
    narrow = draw(torch.device("cookbook"), dtype)
    torch.manual_seed(1)
    wide = draw(torch.device("cookbook"), torch.float32)
    assert narrow.dtype == dtype
    same = narrow.cpu() == wide.cpu().to(dtype)
    assert same.float().mean().item() > 0.99  # one that is rounded to the end of its range becomes its beginning


DISCRETE: dict[str, tuple[Sample, Any]] = {
    "bernoulli_": (lambda d, t: empty(d, t).bernoulli_(0.2), scipy.stats.bernoulli(0.2)),
    "bernoulli": (lambda d, t: torch.bernoulli(full(0.2, d, t)), scipy.stats.bernoulli(0.2)),
    "bernoulli.p": (lambda d, t: torch.bernoulli(empty(d, t), 0.2), scipy.stats.bernoulli(0.2)),
    "geometric": (lambda d, t: empty(d, t).geometric_(0.3), scipy.stats.geom(0.3)),
    "random": (lambda d, t: empty(d, t).random_(3, 20), scipy.stats.randint(3, 20)),
    "poisson 0.4": (lambda d, t: torch.poisson(full(0.4, d, t)), scipy.stats.poisson(0.4)),
    "poisson 9.9": (lambda d, t: torch.poisson(full(9.9, d, t)), scipy.stats.poisson(9.9)),
    "poisson 10": (lambda d, t: torch.poisson(full(10, d, t)), scipy.stats.poisson(10)),
    "poisson 300": (lambda d, t: torch.poisson(full(300, d, t)), scipy.stats.poisson(300)),
    "binomial": (lambda d, t: torch.binomial(full(9, d, t), full(0.3, d, t)), scipy.stats.binom(9, 0.3)),
    "binomial large": (lambda d, t: torch.binomial(full(200, d, t), full(0.7, d, t)), scipy.stats.binom(200, 0.7)),
    "multinomial": (
        lambda d, t: torch.multinomial(torch.tensor([1, 0, 3, 6.0], device=d, dtype=t), COUNT, True),
        scipy.stats.rv_discrete(values=([0, 2, 3], [0.1, 0.3, 0.6])),
    ),
    "one of multinomial": (
        lambda d, t: torch.multinomial(torch.tensor([1, 0, 3, 6.0], device=d, dtype=t).expand(COUNT, 4), 1)[:, 0],
        scipy.stats.rv_discrete(values=([0, 2, 3], [0.1, 0.3, 0.6])),
    ),
    "dropout": (lambda d, t: functional.dropout(full(0.75, d, t), 0.25), scipy.stats.bernoulli(0.75)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name: str, dtype: torch.dtype, device: torch.device) -> None:
    draw, expected = DISCRETE[name]
    counts = collections.Counter(draw(device, dtype).cpu().tolist())
    assert all(number == int(number) for number in counts)
    # Chi-squared, with rare numbers put together.
    observed, wanted = [0.0], [0.0]
    low, high = int(expected.ppf(1e-9)), int(expected.ppf(1 - 1e-9))
    for k in range(low, high + 1):
        if wanted[-1] >= 8:
            observed.append(0.0)
            wanted.append(0.0)
        observed[-1] += counts.pop(k, 0)
        wanted[-1] += COUNT * expected.pmf(k)
    assert not counts  # nothing impossible
    if wanted[-1] < 8 and len(wanted) > 1:
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    scale = sum(observed) / sum(wanted)
    assert scipy.stats.chisquare(observed, [w * scale for w in wanted]).pvalue > P_VALUE


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.bfloat16], ids=str)
def test_permutations(dtype: torch.dtype, device: torch.device) -> None:
    n = 200
    x = torch.randperm(n, dtype=dtype, device=device)
    assert (x.dtype, x.device, x.is_contiguous()) == (dtype, device, True)
    assert x.cpu().sort().values.tolist() == list(range(n))
    assert torch.equal(
        torch.randperm(n, device=device, dtype=dtype, generator=made(device)).cpu().long(),
        torch.randperm(n, device=device, generator=made(device)).cpu(),
    )
    out = torch.zeros(2 * n, dtype=dtype, device=device)[::2]
    torch.randperm(n, out=out, generator=made(device))
    assert torch.equal(out.cpu().long(), torch.randperm(n, device=device, generator=made(device)).cpu())


def test_every_permutation_is_equally_likely() -> None:
    drawn = [torch.randperm(3, device="cookbook") for _ in range(1200)]
    counts = collections.Counter(map(tuple, torch.stack(drawn).tolist()))
    assert len(counts) == 6
    assert scipy.stats.chisquare(list(counts.values())).pvalue > P_VALUE


def test_samples_without_replacement() -> None:
    weights = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.4], device="cookbook").expand(COUNT // 4, 5)
    drawn = torch.multinomial(weights, 4).cpu()
    assert drawn.sort(-1).values.tolist() == [[0, 2, 3, 4]] * (COUNT // 4)
    firsts = drawn[:, 0].bincount(minlength=5).tolist()
    assert (
        scipy.stats.chisquare([firsts[i] for i in (0, 2, 3, 4)], [COUNT // 40 * i for i in (1, 2, 3, 4)]).pvalue
        > P_VALUE
    )


def test_complex_numbers(device: torch.device) -> None:
    z = torch.randn(COUNT, dtype=torch.complex64, device=device).cpu()
    for part in (z.real, z.imag):  # the variance of the whole is 1
        assert scipy.stats.kstest(part.numpy(), scipy.stats.norm(0, math.sqrt(0.5)).cdf).pvalue > P_VALUE
    u = torch.rand(COUNT, dtype=torch.complex128, device=device).cpu()
    for part in (u.real, u.imag):
        assert scipy.stats.kstest(part.numpy(), scipy.stats.uniform().cdf).pvalue > P_VALUE


# Ranges


def extremes(draw: Callable[[torch.Generator], Tensor], offset: int = 0) -> tuple[float, float]:
    x = draw(made(offset=offset)).cpu()
    return x.min().item(), x.max().item()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_random_without_bounds_has_the_cpus_range(dtype: torch.dtype) -> None:
    if dtype == torch.bool:
        low, high = 0, 1
    elif dtype.is_floating_point:
        low, high = 0, 2 ** {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}[dtype]
    else:
        low, high = 0, torch.iinfo(dtype).max
    for x in (torch.empty(COUNT, dtype=dtype, device="cookbook").random_(), torch.empty(COUNT, dtype=dtype).random_()):
        x = x.cpu().double() if dtype != torch.int64 else x.cpu()
        small = high <= 2**11
        assert low <= x.min().item() <= (0 if small else high / 1000)
        assert (high if small else high - high / 1000) <= x.max().item() <= high


BOUNDS = [(0, 1), (0, 2), (-1, 1), (5, 6), (-128, 128), (0, 256), (0, 2**31), (-(2**31), 2**31), (2**62, 2**63 - 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_with_bounds(dtype: torch.dtype) -> None:
    for low, high in [*BOUNDS, (0, None), (7, None), (-(2**63), None), (3, 3), (65504, 65505), (0, 65505)]:
        results: list[Any] = []
        for device in ("cpu", "cookbook"):
            try:
                x = torch.empty(2000, dtype=dtype, device=device).random_(low, high)
                torch.cookbook.synchronize()
                numbers = x.cpu().tolist()
                results.append((min(numbers), max(numbers)))
            except Exception as error:
                results.append((type(error), str(error)))
        cpu, ours = results
        if isinstance(cpu[0], type):
            assert ours == cpu, (low, high)
            continue
        end = high
        assert low <= ours[0] or cpu[0] < low, (low, high, ours)
        # Where rounding lets the CPU's numbers reach the end, it may do so here.
        assert end is None or ours[1] < end or cpu[1] >= end, (low, high, ours)
        if end is not None and end - low <= 256 and dtype not in (torch.bool, torch.bfloat16, torch.float16):
            assert ours == (low, end - 1)
        width = max(abs(float(cpu[1])), abs(float(cpu[0])), 1.0)
        assert abs(float(ours[0]) - float(cpu[0])) <= width / 100
        assert abs(float(ours[1]) - float(cpu[1])) <= width / 100


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_has_its_beginning_and_not_its_end(dtype: torch.dtype) -> None:
    x = torch.empty(COUNT * 8, dtype=dtype, device="cookbook")
    for low, high in ((0.0, 1.0), (1.0, 1.5), (-3.0, 1.0), (0.0, 1e-3)):
        x.uniform_(low, high)
        least, most = x.min().item(), x.max().item()
        assert low <= least <= low + (high - low) / 100
        assert high - (high - low) / 50 < most < high
    assert (torch.empty(9, dtype=dtype, device="cookbook").uniform_(0.5, 0.5) == 0.5).all()


def test_no_logarithm_of_zero() -> None:
    for dtype in FLOATS:
        for name in ("exponential_", "normal_", "log_normal_", "geometric_", "cauchy_"):
            x = torch.zeros(COUNT * 4, dtype=dtype, device="cookbook")
            IN_PLACE[name](x, made())
            if not (dtype == torch.float16 and name in ("cauchy_", "log_normal_")):  # which half cannot hold
                assert x.isfinite().all(), (name, dtype)
            if name in ("exponential_", "geometric_"):
                assert (x > 0).all()


def test_exponential_numbers_of_half_are_never_zero() -> None:
    # Below half of its smallest number, 6e-8, half rounds to 0; with a large rate that is where nearly all of them lie.
    x = torch.empty(COUNT, dtype=torch.float16, device="cookbook").exponential_(1e9)
    assert (x > 0).all()
    assert x.max().item() <= 6e-8
    assert x.log().isfinite().all()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_geometric_numbers_saturate(dtype: torch.dtype) -> None:
    x = torch.empty(1000, dtype=dtype, device="cookbook").geometric_(1e-300)
    largest = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    if dtype == torch.float64:
        assert (x > 1e290).all()
    else:
        assert (x == largest).all()
    assert (torch.empty(1000, dtype=dtype, device="cookbook").geometric_(1 - 1e-16) == 1).all()


def test_certain_coins(device: torch.device) -> None:
    for p in (0.0, 1.0):
        assert (torch.empty(1000, device=device).bernoulli_(p) == p).all()
        assert (torch.bernoulli(torch.full((1000,), p, device=device)) == p).all()
    x = torch.rand(1000, device=device)
    assert torch.equal(functional.dropout(x, 0.0).cpu(), x.cpu())
    assert functional.dropout(x, 1.0).count_nonzero().item() == 0
    assert (torch.binomial(torch.full((50,), 12.0, device=device), torch.ones(50, device=device)) == 12).all()
    assert (torch.poisson(torch.zeros(50, device=device)) == 0).all()


@pytest.mark.parametrize("function", ["gamma", "binomial", "dirichlet"])
def test_a_parameter_outside_the_domain_gives_nan_and_ends(function: str) -> None:
    bad = torch.tensor([math.nan, -1.0, 2.0], device="cookbook")
    if function == "gamma":
        assert torch._standard_gamma(bad).isnan().tolist() == [True, True, False]
    elif function == "dirichlet":
        assert torch._sample_dirichlet(bad).isnan().any()
    else:
        good = torch.full((3,), 0.5, device="cookbook")
        assert torch.binomial(bad, good).isnan().tolist() == [True, False, False]
        assert torch.binomial(good * 8, bad).isnan().tolist() == [True, False, False]


# Errors and dtypes are the CPU's

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "random_": lambda x: x.random_(),
    "random_ to": lambda x: x.random_(2),
    "random_ from": lambda x: x.random_(0, 2),
    "random_ open": lambda x: x.random_(1, None),
    "random_ all bits": lambda x: x.random_(-(2**63), None),
    "random_ empty range": lambda x: x.random_(3, 3),
    "uniform_": lambda x: x.uniform_(),
    "uniform_ reversed": lambda x: x.uniform_(2, 1),
    "uniform_ too wide": lambda x: x.uniform_(-1e300, 1e300),
    "normal_": lambda x: x.normal_(),
    "normal_ negative": lambda x: x.normal_(0, -1),
    "exponential_": lambda x: x.exponential_(),
    "exponential_ 0": lambda x: x.exponential_(0),
    "cauchy_": lambda x: x.cauchy_(),
    "cauchy_ 0": lambda x: x.cauchy_(0, 0),
    "log_normal_": lambda x: x.log_normal_(),
    "log_normal_ 0": lambda x: x.log_normal_(0, 0),
    "geometric_": lambda x: x.geometric_(0.5),
    "geometric_ 0": lambda x: x.geometric_(0),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "bernoulli_ 2": lambda x: x.bernoulli_(2),
    "bernoulli_ of a tensor": lambda x: x.bernoulli_(torch.tensor([[0.5], [0.1]], device=x.device)),
    "bernoulli_ of doubles": lambda x: x.bernoulli_(torch.tensor([[0.5], [0.1]], device=x.device).double()),
    "bernoulli_ of integers": lambda x: x.bernoulli_(torch.tensor([[1], [0]], device=x.device)),
    "bernoulli_ of another shape": lambda x: x.bernoulli_(torch.tensor([0.5, 0.1], device=x.device)),
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.2),
    "bernoulli out": lambda x: torch.bernoulli(torch.full((3,), 0.5, device=x.device), out=torch.empty_like(x)[0]),
    "poisson": lambda x: torch.poisson(x),
    "binomial": lambda x: torch.binomial(x, x),
    "binomial of two dtypes": lambda x: torch.binomial(x, torch.ones(3, dtype=torch.float64, device=x.device)),
    "binomial broadcast": lambda x: torch.binomial(x, x[:, :1]),
    "binomial of two shapes": lambda x: torch.binomial(x, x[:, :2]),
    "gamma": lambda x: torch._standard_gamma(x),
    "dirichlet": lambda x: torch._sample_dirichlet(x),
    "dirichlet of a scalar": lambda x: torch._sample_dirichlet(x[0, 0]),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "multinomial with replacement": lambda x: torch.multinomial(x, 7, True),
    "multinomial of a scalar": lambda x: torch.multinomial(x[0, 0], 1),
    "multinomial too many": lambda x: torch.multinomial(x, 7),
    "multinomial none": lambda x: torch.multinomial(x, 0),
    "multinomial out": lambda x: torch.multinomial(x, 1, out=torch.empty(0, dtype=torch.int32, device=x.device)),
    "dropout": lambda x: torch.native_dropout(x, 0.5, True),
    "dropout off": lambda x: torch.native_dropout(x, 0.5, False),
    "dropout 2": lambda x: torch.native_dropout(x, 2, True),
    "dropout backward": lambda x: aten.native_dropout_backward(x, x > 0, 2.0),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "rrelu off": lambda x: functional.rrelu(x, 0.2, 0.4),
    "rrelu_": lambda x: functional.rrelu(x, training=True, inplace=True),
    "rrelu noise": lambda x: aten.rrelu_with_noise(x, x[:1], 0.1, 0.2, True),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "randperm": lambda x: torch.randperm(5, dtype=x.dtype, device=x.device),
    "randperm 300": lambda x: torch.randperm(300, dtype=x.dtype, device=x.device),
    "randperm 5000": lambda x: torch.randperm(5000, dtype=x.dtype, device=x.device),
    "normal of a tensor": lambda x: torch.normal(x, 1.0),
    "normal of two": lambda x: torch.normal(x, x),
    "normal of a deviation": lambda x: torch.normal(0.0, x),
    "normal of a negative one": lambda x: torch.normal(0.0, -x),
    "normal out": lambda x: torch.normal(x, x, out=torch.empty(0, dtype=x.dtype, device=x.device)),
    "overlap": lambda x: x[:, :1].expand(2, 3).uniform_(),
    "empty": lambda x: x[:0].random_(),
}


def outcome(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Everything of a result but its numbers; or the error."""
    try:
        result = call(x)
        torch.cookbook.synchronize()
    except Exception as error:
        return type(error), str(error).splitlines()[0].replace("cookbook:0", "cpu")
    tensors = result if isinstance(result, tuple) else (result,)
    return [(t.dtype, tuple(t.shape), t.stride()) for t in tensors]


@pytest.mark.filterwarnings("ignore:.*out of bounds:UserWarning", "ignore:An output with one or more:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_shapes_strides_and_errors_are_the_cpus(dtype: torch.dtype) -> None:
    for name, call in CALLS.items():
        for x in (torch.ones(2, 3).to(dtype), torch.ones(3, 4)[:, ::2].to(dtype).t()):
            before = torch.cookbook.default_generators[0].get_offset()
            ours, cpu = outcome(call, mirror(x)), outcome(call, x)
            assert ours == cpu, f"{name} of {dtype}: {ours}, the CPU gives {cpu}"
            # What the host refuses takes no numbers; but core's dropout draws a mask and then finds the dtype wrong.
            offset = torch.cookbook.default_generators[0].get_offset()
            assert isinstance(cpu, list) or offset == before or name == "dropout", name


LATE: dict[str, tuple[Callable[[Tensor], Any], float, str]] = {
    "bernoulli": (torch.bernoulli, 1.5, "bernoulli_each.*p to be in"),
    "bernoulli nan": (torch.bernoulli, math.nan, "bernoulli_each.*p to be in"),
    "poisson": (torch.poisson, -1.0, "poisson.*invalid Poisson rate, expected rate to be non-negative"),
    "multinomial": (
        lambda x: torch.multinomial(x, 2),
        -1.0,
        "assert_async.*contains either `inf`, `nan` or element < 0",
    ),
    "multinomial nan": (lambda x: torch.multinomial(x, 2), math.nan, "assert_async.*probability tensor contains"),
    "multinomial 0": (lambda x: torch.multinomial(x * 0, 2), 0.0, r"assert_async.*sum of probabilities <= 0"),
    "with replacement": (
        lambda x: torch.multinomial(x, 9, True),
        -1.0,
        "multinomial.*encountering probability entry < 0",
    ),
    "with replacement inf": (lambda x: torch.multinomial(x, 9, True), math.inf, "multinomial.*infinity or NaN"),
    "with replacement 0": (lambda x: torch.multinomial(x * 0, 9, True), 0.0, "multinomial.*sum of probabilities <= 0"),
}


@pytest.mark.parametrize("case", LATE)
def test_what_the_values_are_wrong_for_is_reported_at_the_next_synchronization(case: str, gate: CloseGate) -> None:
    call, value, text = LATE[case]
    x = torch.full((4,), 0.5)
    x[2] = value
    with pytest.raises(RuntimeError):
        call(x)
    there = x.to("cookbook")
    closed = gate(torch.accelerator.current_stream())
    call(there)  # returns, so it waits for nothing; without the gate its own second launch might meet the first's error
    closed.open()
    with pytest.raises(torch.AcceleratorError, match=f"kernel '{text}"):
        torch.cookbook.synchronize()


# Layers


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_and_its_gradient(dtype: torch.dtype, device: torch.device) -> None:
    def spread(where: str | torch.device) -> Tensor:  # what `sum().backward()` gives
        return torch.ones((), device=where, dtype=dtype).expand(40, 30)

    x = torch.randn(30, 40, device=device, dtype=dtype).t().requires_grad_()
    y, mask = torch.native_dropout(x, 0.4, True)
    assert (mask.dtype, mask.stride(), y.stride()) == (torch.bool, x.stride(), x.stride())
    torch.testing.assert_close(y.cpu(), (x.cpu() * mask.cpu()) * (1 / 0.6))
    torch.manual_seed(0)
    torch.randn(30, 40, device=device, dtype=dtype)
    assert torch.equal(mask.cpu(), torch.empty(40, 30, device=device).bernoulli_(0.6).bool().cpu())
    for make in (lambda where: torch.linspace(-2, 2, 1200).view(40, 30).to(where, dtype), spread):
        ours = aten.native_dropout_backward(make(device), mask, 1 / 0.6)
        theirs = aten.native_dropout_backward(make("cpu"), mask.cpu(), 1 / 0.6)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        assert torch.equal(ours.cpu(), theirs)


def test_dropout_is_one_launch() -> None:
    x = torch.randn(30, 40, device="cookbook", requires_grad=True)
    with never_waiting() as counters:
        y = functional.dropout(x)
    assert counters["launches"] == 1
    grad = torch.ones_like(y)
    with never_waiting() as counters:
        torch.autograd.grad(y, x, grad)
    assert counters["launches"] == 1


@pytest.mark.parametrize("kind", ["dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"])
def test_the_other_dropouts(kind: str) -> None:
    shape = {"dropout1d": (40, 50, 3), "dropout3d": (40, 50, 2, 2, 2)}.get(kind, (40, 50, 3, 3))
    x = torch.ones(shape, device="cookbook", requires_grad=True)
    with cookbook_backend.fallback.policy("error"):
        y = getattr(functional, kind)(x, 0.3, True)
        (grad,) = torch.autograd.grad(y.sum(), x)
    y = y.detach().cpu()
    kept = grad.cpu() != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.03)
    if kind != "alpha_dropout":  # whole channels
        assert torch.equal(kept, kept.flatten(2)[:, :, :1].reshape(40, 50, *[1] * (y.dim() - 2)).expand_as(kept))
    assert y[kept].unique().numel() == y[~kept].unique().numel() == 1


def test_rrelu_keeps_its_noise_for_the_gradient(device: torch.device) -> None:
    x = torch.randn(30, 40, device=device).requires_grad_()
    noise = torch.zeros(40, 30, device=device).t()
    y = aten.rrelu_with_noise(x, noise, 0.1, 0.5, True, made(device))
    flat, slopes = x.detach().cpu(), noise.cpu()
    assert ((slopes >= 0.1) & (slopes < 0.5) | (flat > 0)).all()
    assert (slopes[flat > 0] == 1).all()
    torch.testing.assert_close(y.detach().cpu(), flat * slopes)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad.cpu(), slopes)
    z = x.detach().clone()
    aten.rrelu_with_noise_(z, torch.zeros(30, 40, device=device), 0.1, 0.5, True, made(device))
    assert torch.equal(z.cpu(), y.detach().cpu())


def attention(seed: int, device: torch.device, p: float) -> list[Tensor]:
    torch.manual_seed(1)
    q = torch.randn(2, 3, 16, 8).to(device).requires_grad_()
    torch.manual_seed(seed)
    y = functional.scaled_dot_product_attention(q, q, q, dropout_p=p)
    return [y.detach().cpu(), torch.autograd.grad(y.sum(), q)[0].cpu()]


def test_attention_with_dropout_draws_from_the_device(device: torch.device) -> None:
    state = torch.get_rng_state()
    first, again, other = attention(5, device, 0.5), attention(5, device, 0.5), attention(6, device, 0.5)
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.cookbook.default_generators[device.index].get_offset() == 2 * 3 * 16 * 16
    mean = torch.stack([attention(seed, device, 0.5)[0] for seed in range(200)]).mean(0)
    torch.testing.assert_close(mean, attention(0, device, 0.0)[0], atol=0.3, rtol=0)


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "lstm": lambda: torch.nn.LSTM(8, 8, 3, dropout=0.5),
    "gru": lambda: torch.nn.GRU(8, 8, 3, dropout=0.5),
    "attention": lambda: torch.nn.MultiheadAttention(8, 2, dropout=0.5),
    "encoder": lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_dropout_train_on_the_device_alone(name: str, device: torch.device) -> None:
    layer = LAYERS[name]().to(device)
    x = torch.randn(5, 4, 8).to(device)
    arguments = (x, x, x) if name == "attention" else (x,)

    def run() -> Tensor:
        torch.cookbook.manual_seed_all(2)
        result = layer(*arguments)
        result = result[0] if isinstance(result, tuple) else result
        result.sum().backward()
        return result.detach().cpu()

    state = torch.get_rng_state()
    with cookbook_backend.fallback.policy("error"):
        first, second = run(), run()
    assert torch.equal(first, second)
    assert torch.cookbook.default_generators[device.index].get_offset() > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_factories(device: torch.device) -> None:
    d = device
    for call in (
        lambda g: torch.rand(2, 3, device=d, generator=g),
        lambda g: torch.randn(2, 3, device=d, generator=g),
        lambda g: torch.randint(-4, 9, (2, 3), device=d, generator=g),
        lambda g: torch.normal(1.0, 2.0, (2, 3), device=d, generator=g),
        lambda g: torch.rand(2, 3, generator=g, out=torch.empty(6, device=d).view(2, 3)),
        lambda g: torch.bernoulli(torch.full((2, 3), 0.5, device=d), generator=g),
    ):
        first, second = call(made(d)), call(made(d))
        assert first.shape == (2, 3)
        assert first.device == d
        assert torch.equal(first.cpu(), second.cpu())
        assert first.unique().numel() > 1
    linear = torch.nn.Linear(20, 30, device=d)
    bound = 1 / math.sqrt(20)
    assert 0.9 * bound < linear.weight.abs().max().item() <= bound


def test_torch_distributions(device: torch.device) -> None:
    scale = torch.tensor(2.0, device=device, requires_grad=True)
    with cookbook_backend.fallback.policy("error"):
        x = torch.distributions.Normal(torch.zeros((), device=device), scale).rsample((100,))
        (grad,) = torch.autograd.grad(x.sum(), scale)
    torch.testing.assert_close(grad.cpu(), (x / 2).sum().detach().cpu())
    probs = torch.tensor([0.2, 0.8], device=device)
    assert torch.distributions.Categorical(probs).sample((500,)).float().mean().item() == pytest.approx(0.8, abs=0.06)


def test_autograd_through_random_operators_is_the_cpus(device: torch.device) -> None:
    x = torch.full((5,), 2.0, device=device, requires_grad=True)
    for call in (torch.poisson, lambda t: torch.bernoulli(t / 4), lambda t: t.clone().uniform_()):
        (grad,) = torch.autograd.grad(call(x).sum(), x)
        assert grad.count_nonzero().item() == 0
    y = x.detach().clone()
    version = y._version
    y.normal_()
    assert y._version == version + 1

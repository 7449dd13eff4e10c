# chapter 3
"""Judge the device with PyTorch's own samples: every operator of `op_db`, on the device against the CPU.

A pair is an operator and a dtype. Its samples are made on the CPU and copied to the device with the same strides and the
same sharing of storage. The CPU runs each sample twice, the device once; where the CPU agrees with itself, the device
must give the same values (within `assert_close`'s tolerance for the dtype), dtype, shape and strides, must alias the same
inputs, and must leave its result on the device.

Workers are forks of a process that has read `op_db` (which takes seconds) and has never touched the device, so that a
pair that ends its process costs a fork and nothing else.

`op_db` also has calls that must fail. They are judged as a pair with the dtype `errors`: the device must raise the CPU's
type of exception, from the call itself.

Run it as a script to judge the first float32 sample and all failing calls of each operator: `opinfo_judge.py OUT.json`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

DEVICE = "cookbook:0"
SECONDS_A_PAIR = 120
ERRORS = "errors"  # stands for a dtype: the calls that must fail

Verdict = Literal["PASS", "FAIL", "CRASH", "TIMEOUT", "SKIP"]


@dataclass(frozen=True)
class Pair:
    """An operator, by its position in `op_db` and its name, a dtype, a direction and how many samples to take (0: all)."""

    index: int
    op: str
    dtype: str
    backward: bool = False
    samples: int = 0


@dataclass
class Row:
    """What became of a pair. A pair that the CPU itself cannot do, or cannot do twice alike, is SKIP and does not count."""

    op: str
    dtype: str
    backward: bool
    verdict: Verdict = "PASS"
    reason: str = ""
    samples: int = 0
    failures: int = 0
    skipped: int = 0
    fell_back: dict[str, int] = field(default_factory=dict)
    """Operators that ran on the CPU because the device has no kernel, with their calls."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Known:
    """A difference that is known, and why it is there."""

    op: str
    """The operator's name in `op_db`."""
    reason: str
    dtypes: tuple[str, ...] = ()
    """Only these; empty is all that are dtypes."""
    backward: bool | None = None
    """Only this direction; None is both."""

    def covers(self, row: Row) -> bool:
        """Whether this explains a row."""
        return (
            self.op == row.op
            and (row.dtype in self.dtypes if self.dtypes else row.dtype != ERRORS)
            and self.backward in (None, row.backward)
        )


SPARSE = "the device stores dense tensors only, and refuses by name what would make or take a sparse one"

INDEX = "an index out of range is found by the kernel: the device reports it at the next synchronization"

# What remains. A pair that is listed and passes is as wrong as one that fails and is not listed.
SAME_OUT = "`out` is an argument itself, which only the CPU's kernel refuses; the fallback gives it copies of both"
KNOWN = (
    Known("to_sparse", SPARSE),
    Known("sparse_sampled_addmm", SPARSE),
    Known("sparse_mm_reduce", SPARSE),
    Known(
        "nn_functional_linear_cross_entropy_chunked_none",
        "PyTorch itself picks how it accumulates by the device's name: 'accurate' for cpu, 'balanced' for all others",
        ("bfloat16", "float16"),
    ),
    Known("gather", INDEX, (ERRORS,)),
    Known("scatter", INDEX, (ERRORS,)),
    Known("scatter_add", INDEX, (ERRORS,)),
    Known(
        "masked_fill",
        "whether the value fits is data: it is a tensor on the device, and nothing waits for it",
        (ERRORS,),
    ),
    Known("kthvalue", SAME_OUT, (ERRORS,)),
    Known("take", SAME_OUT, (ERRORS,)),
    Known(
        "narrow_copy",
        "PyTorch's own decomposition checks the dimension first (IndexError); only the CPU has a kernel that does not",
        (ERRORS,),
    ),
)


class Timeout(BaseException):
    """The alarm of a pair. Not an Exception: no `except Exception` of an operator may swallow it."""


class Difference(AssertionError):
    """The device gave something else than the CPU."""


def load() -> list[Any]:
    """Return `op_db` without bringing the device to life, so that this process may fork."""
    if "cookbook_backend" in sys.modules:
        raise RuntimeError("opinfo_judge forks its workers and must start in a process that has not loaded the backend")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    return list(op_db)


def plan(
    ops: Sequence[Any],
    *,
    backward: bool = False,
    dtype: str | None = None,
    op: str | None = None,
    samples: Callable[[str], int] = lambda dtype: 0,
) -> list[Pair]:
    """Return the pairs that the CPU claims to support.

    Args:
        ops: `op_db`.
        backward: differentiate too; only operators and dtypes that have a derivative.
        dtype: only this one, e.g. `"float32"`; `"errors"` takes the calls that must fail instead.
        op: only operators whose name matches this regular expression in full.
        samples: how many samples of a pair of this dtype; 0 is all.
    """
    pairs = []
    for index, info in enumerate(ops):
        if op and not re.fullmatch(op, info.formatted_name):
            continue
        if backward and not info.supports_autograd:
            continue
        if dtype == ERRORS:
            pairs += [Pair(index, info.formatted_name, ERRORS)] if info.error_inputs_func else []
            continue
        dtypes = info.supported_backward_dtypes("cpu") if backward else info.supported_dtypes("cpu")
        for name in sorted(str(d).removeprefix("torch.") for d in dtypes):
            if dtype in (None, name):
                pairs.append(Pair(index, info.formatted_name, name, backward, samples(name)))
    return pairs


# Copies


# Operators whose positional arguments are read by the host, on any device.
READ_BY_THE_HOST = ("tensor_split",)


def transfer(value: Any, device: str) -> Any:
    """Copy a sample's parts to a device: same strides, offsets and bits, tensors that shared a storage share one again."""
    import torch
    import torch.utils._pytree as pytree

    storages: dict[int, torch.Tensor] = {}

    def tensor(t: torch.Tensor) -> torch.Tensor:
        if t.layout != torch.strided:
            return t.detach().to(device, copy=True).requires_grad_(t.requires_grad)
        with torch.no_grad():
            plain = t.detach()
            conj, neg = plain.is_conj(), plain.is_neg()
            plain = plain.conj() if conj else plain
            plain = torch._neg_view(plain) if neg else plain
            storage = plain.untyped_storage()
            if storage._cdata not in storages:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                storages[storage._cdata] = whole.to(device, copy=True)
            there = torch.empty(0, dtype=plain.dtype, device=device)
            there.set_(storages[storage._cdata].untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
            there = torch._neg_view(there) if neg else there
            there = there.conj() if conj else there
        return there.requires_grad_(t.requires_grad)

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return tensor(x)
        if (isinstance(x, torch.device) and x.type == "cpu") or (isinstance(x, str) and x == "cpu"):
            return torch.device(device)
        return x

    return pytree.tree_map(leaf, value)


def tensors(tree: Any) -> list[Any]:
    """Return the tensors in nested containers."""
    import torch
    import torch.utils._pytree as pytree

    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


# Comparison

# What these return has not been written: only its shape, dtype and strides mean something.
UNWRITTEN = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


def same_number(a: Any, b: Any) -> bool:
    """Whether two results that are no tensors are alike; only numbers are compared."""
    if not isinstance(b, bool | int | float | complex):
        return True
    return type(a) is type(b) and (a == b or (a != a and b != b) or abs(a - b) <= 1e-5 * abs(b))


def compare(actual: Any, expected: Any, *, values: bool, anywhere: bool) -> None:
    """Raise Difference unless two results are alike in everything that a program can see.

    Args:
        actual: the device's result.
        expected: the CPU's.
        values: compare values too.
        anywhere: the result may be on the CPU, because nothing in the call named a device.
    """
    import torch
    import torch.utils._pytree as pytree
    from torch.testing import assert_close

    ours, theirs = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    if len(ours) != len(theirs):
        raise Difference(f"structure: {len(ours)} results, the CPU gives {len(theirs)}")
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if not same_number(a, b):
                raise Difference(f"values: {a!r}, the CPU gives {b!r}")
            continue
        if not isinstance(a, torch.Tensor):
            raise Difference(f"structure: a {type(a).__name__}, the CPU gives a tensor")
        if a.device.type != torch.device(DEVICE).type and b.device.type == "cpu" and not anywhere:
            raise Difference(f"device: the result is on {a.device}")
        for what, x, y in (
            ("dtype", a.dtype, b.dtype),
            ("layout", a.layout, b.layout),
            ("shape", tuple(a.shape), tuple(b.shape)),
        ):
            if x != y:
                raise Difference(f"{what}: {x}, the CPU gives {y}")
        if b.layout != torch.strided:
            assert_close(a.to_dense().cpu(), b.to_dense(), equal_nan=True)
            continue
        if a.stride() != b.stride():
            raise Difference(f"strides: {a.stride()} for shape {tuple(a.shape)}, the CPU gives {b.stride()}")
        if values:
            a, b = a.detach().cpu(), b.detach()
            if b.dtype.is_floating_point and b.dtype.itemsize == 1:  # float8: assert_close cannot subtract it
                a, b = a.float(), b.float()
            try:
                assert_close(a, b, equal_nan=True)
            except AssertionError as error:
                lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
                raise Difference("values: " + "; ".join(lines)) from None


def aliases(outputs: Any, inputs: Any) -> list[list[int]]:
    """Return for each tensor of the result which tensors of the arguments share its storage."""
    import torch

    def storages(tree: Any) -> list[int]:
        found = []
        for t in tensors(tree):
            strided = t.layout == torch.strided and t.numel() > 0
            found.append(t.untyped_storage()._cdata if strided else -1)
        return found

    given = storages(inputs)
    return [[i for i, s in enumerate(given) if s == out and s != -1] for out in storages(outputs)]


# One sample


@dataclass
class Call:
    """An operator's inputs on one device, and what came of them."""

    inputs: Any
    output: Any = None
    gradients: Any = None


def call(op: Any, sample: Any, device: str, backward: bool) -> Call:
    """Run a sample on a device, with the random generators at a known state."""
    import torch

    it = Call(transfer((sample.input, sample.args, sample.kwargs), device))
    if op.name in READ_BY_THE_HOST:
        it.inputs = (it.inputs[0], sample.args, it.inputs[2])
    torch.manual_seed(0)
    it.output = op(it.inputs[0], *it.inputs[1], **it.inputs[2])
    if backward:
        wanted = [t for t in tensors(sample.output_process_fn_grad(it.output)) if t.requires_grad]
        leaves = [t for t in tensors(it.inputs) if t.requires_grad]
        if wanted and leaves:
            torch.manual_seed(1)
            seeds = [torch.randn(t.shape, dtype=t.dtype).to(t.device) for t in wanted]
            it.gradients = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True)
    return it


def check(op: Any, sample: Any, backward: bool) -> str | None:
    """Compare one sample; return why it does not count, or None. Raise when the device differs."""
    import torch
    import torch.utils._pytree as pytree

    import cookbook_backend

    values = op.name not in UNWRITTEN
    try:
        first, cpu = call(op, sample, "cpu", backward), call(op, sample, "cpu", backward)
        if backward and cpu.gradients is None:
            return "the CPU's result has nothing to differentiate"
        for a, b in ((first.output, cpu.output), (first.gradients, cpu.gradients)):
            compare(a, b, values=values, anywhere=True)
    except Exception as error:
        return f"the CPU itself: {describe(error)}"
    device = call(op, sample, DEVICE, backward)
    cookbook_backend.synchronize()
    leaves = pytree.tree_leaves(device.inputs)
    anywhere = not any(isinstance(x, torch.Tensor | torch.device) for x in leaves)
    compare(device.output, cpu.output, values=values, anywhere=anywhere)
    if (ours := aliases(device.output, device.inputs)) != (theirs := aliases(cpu.output, cpu.inputs)):
        raise Difference(f"aliasing: the results share storage with the arguments {ours}, the CPU's with {theirs}")
    if backward:
        missing = [i for i, (a, b) in enumerate(zip(device.gradients, cpu.gradients)) if (a is None) != (b is None)]
        if missing:
            raise Difference(f"gradients: None on one device only, for the arguments {missing}")
        try:
            compare(device.gradients, cpu.gradients, values=True, anywhere=False)
        except Difference as error:
            raise Difference(f"gradients, {error}") from None
    elif any(t._version for t in tensors(cpu.inputs)):
        try:
            compare(device.inputs, cpu.inputs, values=True, anywhere=True)
        except Difference as error:
            raise Difference(f"arguments afterwards, {error}") from None
    return None


def check_error(op: Any, sample: Any) -> str | None:
    """Compare how a call fails; return why it does not count, or None. Raise when the device fails otherwise."""
    import cookbook_backend

    def outcome(device: str) -> BaseException | None:
        try:
            call(op, sample, device, backward=False)
            cookbook_backend.synchronize()
        except Exception as error:
            return error
        return None

    if (cpu := outcome("cpu")) is None:
        return "the CPU raises nothing"
    if type(device := outcome(DEVICE)) is not type(cpu):
        ours = describe(device) if device else "nothing"
        raise Difference(f"raises {ours}, the CPU {describe(cpu)}")
    return None


def describe(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, which is what a table has room for."""
    text = str(error).strip()
    if isinstance(error, Difference):
        return text[:500]
    if isinstance(error, AssertionError) and not text:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{frame.line} ({os.path.basename(frame.filename)}:{frame.lineno})"
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:500]


# Workers


def judge(op: Any, pair: Pair) -> Row:
    """Run all samples of a pair."""
    import numpy as np
    import torch

    import cookbook_backend

    row = Row(pair.op, pair.dtype, pair.backward)
    cookbook_backend.fallback.reset()
    start = time.perf_counter()

    def alarm(*_: object) -> None:
        raise Timeout

    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS_A_PAIR)
    skip = ""
    try:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            if pair.dtype == ERRORS:
                made = (error.sample_input for error in op.error_inputs("cpu"))
            else:
                made = op.sample_inputs("cpu", getattr(torch, pair.dtype), requires_grad=pair.backward)
            samples = list(islice(made, pair.samples or None))
        except Exception as error:
            samples, skip = [], f"the samples cannot be made: {describe(error)}"
        for position, sample in enumerate(samples):
            row.samples += 1
            try:
                why = check_error(op, sample) if pair.dtype == ERRORS else check(op, sample, pair.backward)
            except Exception as error:
                row.failures += 1
                if row.failures == 1:
                    row.reason = describe(error) + (f" [sample {position}]" if position else "")
                # An asynchronous failure is sticky: the next sample starts on a device that works.
                with contextlib.suppress(Exception):
                    cookbook_backend.synchronize()
                cookbook_backend._C.reset(0)
            else:
                row.skipped += why is not None
                skip = skip or why or ""
    except Timeout:
        row.verdict, row.reason = "TIMEOUT", f"more than {SECONDS_A_PAIR} s, at sample {row.samples - 1}"
    else:
        if row.failures:
            row.verdict = "FAIL"
        elif row.skipped == row.samples:
            row.verdict, row.reason = "SKIP", skip or "there is no sample"
    finally:
        signal.alarm(0)
    row.fell_back = {r.name: r.calls for r in cookbook_backend.fallback.report()}
    row.seconds = round(time.perf_counter() - start, 3)
    return row


def worker(ops: Sequence[Any], pairs: Sequence[Pair], link: Connection, errors: str) -> None:
    """Judge pairs one after the other in a fork; what the native code prints goes to a file."""
    with open(errors, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("ignore")
    import cookbook_backend

    cookbook_backend.set_device(0)
    stand_in_for_the_generator()
    link.send("ready")
    for pair in pairs:
        link.send(judge(ops[pair.index], pair))
    link.send(None)


def stand_in_for_the_generator() -> None:
    """Give PyTorch's test helpers the two functions they call on any accelerator, until the device has a generator.

    Random operators draw from the CPU's default generator until then, so its state is the device's.
    """
    import torch

    import cookbook_backend

    if not hasattr(cookbook_backend, "get_rng_state"):
        vars(cookbook_backend).update(get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state)


def run(
    ops: Sequence[Any], pairs: Sequence[Pair], jobs: int = 1, tell: Callable[[Row], None] | None = None
) -> list[Row]:
    """Judge pairs in `jobs` processes at a time; a dead or silent worker is replaced by one that goes on behind its pair.

    Args:
        ops: `op_db`, from `load`.
        pairs: what to judge, from `plan`.
        jobs: processes at a time.
        tell: called with each row as it comes.
    """
    fork = multiprocessing.get_context("fork")
    rows: dict[Pair, Row] = {}
    shards = [list(pairs[i::jobs]) for i in range(jobs)]
    with tempfile.TemporaryDirectory() as folder:
        alive: dict[Connection, tuple[Any, list[Pair], str, float]] = {}

        def start(todo: list[Pair], errors: str) -> None:
            if not todo:
                return
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=worker, args=(ops, todo, there, errors), daemon=True)
            process.start()
            there.close()
            try:
                here.recv()
            except EOFError:
                process.join()
                raise RuntimeError(f"the backend cannot be loaded: {last_words(process, errors)}") from None
            alive[here] = (process, todo, errors, time.monotonic())

        def note(pair: Pair, row: Row) -> None:
            rows[pair] = row
            if tell:
                tell(row)

        for i, shard in enumerate(shards):
            start(shard, os.path.join(folder, f"stderr-{i}"))
        while alive:
            ready = wait(list(alive), timeout=1)
            for link in list(alive):
                process, todo, errors, since = alive[link]
                if link in ready:
                    try:
                        row = link.recv()
                    except EOFError:
                        process.join()
                        row = Row(todo[0].op, todo[0].dtype, todo[0].backward, "CRASH", last_words(process, errors))
                    else:
                        if row is None:
                            del alive[link]
                            process.join(10)
                            continue
                        note(todo.pop(0), row)
                        alive[link] = (process, todo, errors, time.monotonic())
                        continue
                elif time.monotonic() - since > SECONDS_A_PAIR + 10:  # stuck where no alarm reaches it
                    process.kill()
                    process.join()
                    row = Row(todo[0].op, todo[0].dtype, todo[0].backward, "TIMEOUT", "stuck in native code")
                else:
                    continue
                del alive[link]
                note(todo[0], row)
                start(todo[1:], errors)
    return [rows[pair] for pair in pairs]


def last_words(process: Any, errors: str) -> str:
    """Return how a worker ended and what it printed last."""
    code = process.exitcode
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    with open(errors, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return f"{how}: {' | '.join(lines[-3:])}"[:500] if lines else how


def as_dict(row: Row) -> dict[str, Any]:
    """Return a row as JSON knows it."""
    return asdict(row)


if __name__ == "__main__":
    op_db = load()
    todo = plan(op_db, dtype="float32", samples=lambda dtype: 1) + plan(op_db, dtype=ERRORS)
    result = run(op_db, todo)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump([as_dict(row) for row in result], out, indent=0)

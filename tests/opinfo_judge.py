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
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

from opinfo_pairs import ERRORS, Pair, Row, as_dict, load, plan
from opinfo_sample import check, check_error, describe

SECONDS_A_PAIR = 120


class Timeout(BaseException):
    """The alarm of a pair. Not an Exception: no `except Exception` of an operator may swallow it."""


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


if __name__ == "__main__":
    op_db = load()
    todo = plan(op_db, dtype="float32", samples=lambda dtype: 1) + plan(op_db, dtype=ERRORS)
    result = run(op_db, todo)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump([as_dict(row) for row in result], out, indent=0)

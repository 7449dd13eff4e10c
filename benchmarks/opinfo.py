"""What of PyTorch runs on the device, and where: every operator of `op_db` judged against the CPU, and the page of it.

    opinfo.py                            forward in all dtypes, backward in float32: summary, build/opinfo.json
    opinfo.py --op 'linalg_.*'           only some operators; --dtype float32, --forward, --backward, --max-samples 2
    opinfo.py --write-page               the same, and write docs/coverage.md
    opinfo.py --write-page --from FILE   write the page from an earlier run's file

The judging itself is tests/opinfo_judge.py, which the staged tests use too. The backend must be importable
(PYTHONPATH=build/3/src after `nox -s chapter-3`). The exit code is 1 when a pair fails without a known reason, or passes
with one.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import opinfo_judge
from opinfo_judge import Row

COUNTED = ("PASS", "FAIL", "CRASH", "TIMEOUT")

# The order and the short names of the page's columns.
COLUMNS = {
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float16": "f16",
    "complex64": "c64",
    "complex128": "c128",
    "complex32": "c32",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}
GROUPS = {
    "u16-64": ("uint16", "uint32", "uint64"),
    "f8": ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
}
NATIVE, FALLBACK, REFUSED, UNCOUNTED = "●", "○", "✕", "·"


# The run


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument("--forward", action="store_true", help="forward only")
    direction.add_argument("--backward", action="store_true", help="backward only")
    parser.add_argument("--op", metavar="REGEX", help="operators whose name in op_db matches in full")
    parser.add_argument("--dtype", help="one dtype, e.g. bfloat16 (default: all forward, float32 backward)")
    parser.add_argument(
        "--max-samples", type=int, metavar="N", help="0: all (default: all of float32, 6 of the others)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "opinfo.json", help="where the rows go")
    parser.add_argument("--write-page", action="store_true", help="write docs/coverage.md")
    parser.add_argument(
        "--from", dest="file", type=Path, metavar="FILE", help="run nothing, read an earlier run's rows"
    )
    return parser.parse_args()


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Judge what the command line asks for; return the rows and what they were measured with."""
    ops = opinfo_judge.load()
    import torch

    def samples(dtype: str) -> int:
        if args.max_samples is not None:
            return int(args.max_samples)
        return 0 if dtype == "float32" else 6

    pairs = []
    if not args.backward:
        pairs += opinfo_judge.plan(ops, dtype=args.dtype, op=args.op, samples=samples)
    if not args.forward:
        pairs += opinfo_judge.plan(ops, backward=True, dtype=args.dtype or "float32", op=args.op, samples=samples)
    if not (args.dtype or args.backward):
        pairs += opinfo_judge.plan(ops, dtype=opinfo_judge.ERRORS, op=args.op)
    if not pairs:
        sys.exit(f"no pair of op_db matches --op {args.op!r} --dtype {args.dtype!r}")
    start, done = time.perf_counter(), 0

    def tell(row: Row) -> None:
        nonlocal done
        done += 1
        if row.verdict in COUNTED[1:] and reason(row) is None:
            print(f"{done}/{len(pairs)} {title(row)}: {row.verdict}: {row.reason}", flush=True)
        elif done % 500 == 0:
            print(f"{done}/{len(pairs)} {time.perf_counter() - start:.0f} s", flush=True)

    rows = opinfo_judge.run(ops, pairs, args.jobs, tell)
    whole = not (args.op or args.dtype or args.forward or args.backward)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": cpu_model(),
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.perf_counter() - start),
        "jobs": args.jobs,
        "samples": "all" if args.max_samples == 0 else args.max_samples or "all of float32, at most 6 of the others",
        "whole": whole,
        "rows": [opinfo_judge.as_dict(row) for row in rows],
    }


# The summary


def title(row: Row) -> str:
    """Name a pair."""
    return f"{row.op} {row.dtype}{' backward' if row.backward else ''}"


def values(rows: list[Row]) -> list[Row]:
    """Return the pairs of an operator and a dtype: all but the calls that must fail."""
    return [row for row in rows if row.dtype != opinfo_judge.ERRORS]


def failed(rows: list[Row]) -> list[Row]:
    """Return the pairs that the CPU can do and the device cannot."""
    return [row for row in rows if row.verdict in COUNTED[1:]]


def reason(row: Row) -> str | None:
    """Return the known reason of a failure."""
    return next((known.reason for known in opinfo_judge.KNOWN if known.covers(row)), None)


def unexpected(rows: list[Row]) -> list[str]:
    """Return what contradicts the list of known differences."""
    found = [f"{title(r)} fails without a known reason: {r.reason}" for r in failed(rows) if reason(r) is None]
    passed = [row for row in rows if row.verdict == "PASS" and reason(row) is not None]
    found += [f"{title(row)} passes: take it out of opinfo_judge.KNOWN" for row in passed]
    return found


def totals(rows: list[Row]) -> tuple[int, int, int, int]:
    """Return how many pairs count, pass natively, pass with a fallback, and fail."""
    passed = [row for row in rows if row.verdict == "PASS"]
    native = sum(not row.fell_back for row in passed)
    return len(passed) + len(failed(rows)), native, len(passed) - native, len(failed(rows))


def rate(rows: list[Row]) -> str:
    """Return the share of pairs that pass, of those that the CPU itself passes."""
    counted, native, fallback, _ = totals(rows)
    return f"{100 * (native + fallback) / counted:.2f} %" if counted else "no pair counts"


def summarize(rows: list[Row]) -> None:
    """Print the totals and the failing pairs."""
    for backward in (False, True):
        part = [row for row in values(rows) if row.backward == backward]
        for name, some in (("all dtypes", part), ("float32", [row for row in part if row.dtype == "float32"])):
            if not some or (backward and name == "all dtypes" and len({row.dtype for row in part}) == 1):
                continue
            counted, native, fallback, bad = totals(some)
            print(
                f"{'backward' if backward else 'forward'} {name}: {len(some)} pairs, {counted} that the CPU itself passes: "
                f"{rate(some)} pass ({native} native, {fallback} with a fallback, {bad} fail)"
            )
    calls = [row for row in rows if row.dtype == opinfo_judge.ERRORS]
    if calls:
        wrong, count = sum(row.failures for row in calls), sum(row.samples - row.skipped for row in calls)
        print(f"calls that must fail: {count}, {count - wrong} raise the CPU's type of error")
    for row in failed(rows):
        if why := reason(row):
            print(f"  known: {title(row)}: {why}")
    for line in unexpected(rows):
        print(f"  unexpected: {line}")


# The page

HEAD = """\
# Operator coverage

What PyTorch's own test samples say about the backend as of chapter 3: for each operator of `op_db` and each dtype, whether
the device gives the CPU's answer, and whether it computes it itself or hands it to the CPU. The page is generated; nobody
types a mark.

A pair of operator and dtype passes when every sample gives the CPU's values (within `assert_close`'s tolerance for the
dtype), dtype, shape and strides, leaves its result on the device, and aliases the same arguments. Backward compares the
gradients too. A pair counts when the CPU, asked twice, agrees with itself. `empty` and its kind return memory that nobody
has written: of them, only shape, dtype and strides are compared. Random operators start from the same seed on both sides;
the device has no generator yet and draws from the CPU's.
"""

TABLE_HEAD = """\
## Operator by dtype

| mark | meaning |
| --- | --- |
| ● | native: all of it ran on the device |
| ○ | fallback: right, but at least one operator inside ran on the CPU, named in the last column |
| ✕ | not supported, or different from the CPU: the reason is [above](#what-remains) |
| · | does not count: the CPU itself cannot do it |
|   | the CPU does not claim this dtype |

A name is the one of `op_db`. Some are operators, some are functions made of several; a function is ○ as soon as one operator
in it falls back. "∂" is the backward pass in float32. A column of several dtypes shows the worst of them.

"""

TAIL = """\

## Make it again

```sh
nox -s chapter-3
PYTHONPATH=build/3/src python benchmarks/opinfo.py --write-page
```

`tests/test_opinfo.py` runs the first float32 sample of every operator with each `nox -s chapter-3`, and fails on a difference
that is not listed here and on one that is listed and gone. To judge your own chip, replace the device's name in
`tests/opinfo_judge.py`; what falls back is read from `torch.cookbook.fallback.report()`.
"""


def mark(rows: list[Row]) -> str:
    """Return the mark of some pairs: the worst of theirs."""
    marks = []
    for row in rows:
        if row.verdict == "SKIP":
            marks.append(UNCOUNTED)
        elif row.verdict != "PASS":
            marks.append(REFUSED)
        else:
            marks.append(FALLBACK if row.fell_back else NATIVE)
    return next((m for m in (REFUSED, FALLBACK, NATIVE, UNCOUNTED) if m in marks), "")


def table(head: list[str], body: list[list[str]], centred: int = 0) -> str:
    """Return a Markdown table; `centred` columns after the first are centred."""
    rule = ["---"] + [":-:"] * centred + ["---"] * (len(head) - 1 - centred)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *body]) + "\n"


def totals_table(rows: list[Row]) -> str:
    """Return the totals for each direction and dtype."""
    parts = [("**forward, all dtypes**", [r for r in rows if not r.backward])]
    parts += [(f"forward, {name}", [r for r in rows if not r.backward and r.dtype == name]) for name in COLUMNS]
    for name, members in GROUPS.items():
        parts.append((f"forward, {name}", [r for r in rows if not r.backward and r.dtype in members]))
    parts.append(("**backward, float32**", [r for r in rows if r.backward and r.dtype == "float32"]))
    body = []
    for name, part in parts:
        counted, native, fallback, bad = totals(part)
        body.append([name, *map(str, (len(part), counted, native, fallback, bad)), rate(part)])
    return table(["", "pairs", "count", "native", "fallback", "not supported", "pass"], body)


def errors_sentence(rows: list[Row]) -> str:
    """Return how the calls that must fail came out."""
    calls = [row for row in rows if row.dtype == opinfo_judge.ERRORS]
    wrong, count = sum(row.failures for row in calls), sum(row.samples - row.skipped for row in calls)
    return (
        f"`op_db` also has {count} calls that must fail. {count - wrong} raise the CPU's type of exception from the call "
        f"itself; the others are listed below with `errors` as their dtype.\n"
    )


def remaining_table(rows: list[Row]) -> str:
    """Return what fails, by operator, with the reason."""
    groups: dict[tuple[str, str], list[Row]] = collections.defaultdict(list)
    for row in failed(rows):
        groups[row.op, reason(row) or f"not explained yet: {row.verdict}, {row.reason}"].append(row)
    body = []
    for (op, why), some in sorted(groups.items()):
        dtypes = [short(row) for row in sorted(some, key=lambda r: (r.backward, [*COLUMNS, r.dtype].index(r.dtype)))]
        body.append([f"`{op}`", " ".join(dtypes), why.replace("|", "\\|")])
    return table(["operator", "dtypes", "reason"], body) if body else "Nothing: every pair that counts passes.\n"


def short(row: Row) -> str:
    """Return a pair's column."""
    name = COLUMNS.get(row.dtype, row.dtype)
    return f"∂{name}" if row.backward else name


def coverage_table(rows: list[Row]) -> str:
    """Return the table of all operators."""
    cells: dict[str, dict[str, list[Row]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    group = {dtype: name for name, members in GROUPS.items() for dtype in members}
    for row in rows:
        column = "∂" if row.backward else COLUMNS.get(row.dtype) or group[row.dtype]
        cells[row.op][column].append(row)
    columns = ["∂", *COLUMNS.values(), *GROUPS]
    columns.insert(1, columns.pop(0))  # f32 and its derivative side by side
    body = []
    for op in sorted(cells, key=str.lower):
        names = {name.removeprefix("aten::") for some in cells[op].values() for r in some for name in r.fell_back}
        listed = ", ".join(f"`{name}`" for name in sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        body.append([f"`{op}`", *(mark(cells[op][column]) for column in columns), listed])
    return table(["operator", *columns, "falls back"], body, centred=len(columns))


def most_wanted(rows: list[Row]) -> str:
    """Return the operators whose kernels would make the most pairs native."""
    alone: collections.Counter[str] = collections.Counter()
    for row in rows:
        if row.verdict == "PASS" and len(row.fell_back) == 1:
            alone[next(iter(row.fell_back)).removeprefix("aten::")] += 1
    body = [[f"`{name}`", str(count)] for name, count in alone.most_common(12)]
    return table(["operator that falls back", "pairs that a kernel for it makes native"], body)


def page(result: dict[str, Any]) -> str:
    """Return docs/coverage.md."""
    rows = [Row(**row) for row in result["rows"]]
    made = (
        f"Measured on {result['date']} with torch {result['torch']}, Python {result['python']}, on {result['machine']}; "
        f"{result['seconds']} s with {result['jobs']} process{'es' if result['jobs'] > 1 else ''}. "
        f"Samples: {result['samples']}; {sum(row.samples for row in rows):,} calls compared.\n"
    )
    return "\n".join(
        [
            HEAD,
            "## Totals\n",
            made,
            totals_table(values(rows)),
            errors_sentence(rows),
            "## What remains\n",
            remaining_table(rows),
            "## What to write next\n",
            "Of the pairs that fall back with a single operator, these operators hold up the most:\n",
            most_wanted(values(rows)),
            TABLE_HEAD + ":::{container} coverage\n\n" + coverage_table(values(rows)) + "\n:::",
            TAIL,
        ]
    )


def main() -> int:
    """Run, summarize, write."""
    args = arguments()
    if args.file:
        result = json.loads(args.file.read_text("utf-8"))
    else:
        result = measure(args)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=0), "utf-8")
    rows = [Row(**row) for row in result["rows"]]
    summarize(rows)
    if args.write_page:
        if not result["whole"]:
            sys.exit("--write-page needs a run without --op, --dtype, --forward and --backward")
        path = ROOT / "docs" / "coverage.md"
        path.write_text(page(result), "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 1 if unexpected(rows) else 0


if __name__ == "__main__":
    sys.exit(main())

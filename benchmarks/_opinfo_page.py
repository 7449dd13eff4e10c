"""docs/coverage.md from the rows of a run (opinfo.py)."""

from __future__ import annotations

import collections
from typing import Any

import opinfo_pairs
from _opinfo_rows import failed, rate, reason, totals, values
from opinfo_pairs import Row

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


HEAD = """\
# Operator coverage

What PyTorch's own test samples say about the backend as of chapter 6: for each operator of `op_db` and each dtype, whether
the device gives the CPU's answer, and whether it computes it itself or hands it to the CPU. The page is generated; nobody
types a mark.

A pair of operator and dtype passes when every sample gives the CPU's values (within `assert_close`'s tolerance for the
dtype), dtype, shape and strides, leaves its result on the device, and aliases the same arguments. Backward compares the
gradients too. A pair counts when the CPU, asked twice, agrees with itself. `empty` and its kind return memory that nobody
has written: of them, only shape, dtype and strides are compared. What draws from the device's generator
gives other numbers than the CPU's by design: there the same seed must give the same numbers again, dtype, shape, strides and
aliasing are compared with the CPU, and `tests/test_random.py` judges the distributions.
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
nox -s chapter-6
PYTHONPATH=build/6/src python benchmarks/opinfo.py --write-page
```

`tests/test_opinfo.py` runs the first float32 sample of every operator with each `nox -s chapter-6`, and fails on a difference
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
    parts = [("**all pairs**", rows), ("**forward, all dtypes**", [r for r in rows if not r.backward])]
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
    calls = [row for row in rows if row.dtype == opinfo_pairs.ERRORS]
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

"""What of PyTorch runs on the device, and where: every operator of `op_db` judged against the CPU, and the page of it.

    opinfo.py                            forward in all dtypes, backward in float32: summary, build/opinfo.json
    opinfo.py --op 'linalg_.*'           only some operators; --dtype float32, --forward, --backward, --max-samples 2
    opinfo.py --write-page               the same, and write docs/coverage.md
    opinfo.py --write-page --from FILE   write the page from an earlier run's file

The judging itself is tests/opinfo_judge.py, which the staged tests use too. The backend must be importable
(PYTHONPATH=build/6/src after `nox -s chapter-6`). The exit code is 1 when a pair fails without a known reason, or passes
with one.
"""

from __future__ import annotations

import argparse
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
import opinfo_pairs
from _opinfo_page import page
from _opinfo_rows import COUNTED, failed, rate, reason, title, totals, unexpected, values
from opinfo_pairs import Row

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
    ops = opinfo_pairs.load()
    import torch

    def samples(dtype: str) -> int:
        if args.max_samples is not None:
            return int(args.max_samples)
        return 0 if dtype == "float32" else 6

    pairs = []
    if not args.backward:
        pairs += opinfo_pairs.plan(ops, dtype=args.dtype, op=args.op, samples=samples)
    if not args.forward:
        pairs += opinfo_pairs.plan(ops, backward=True, dtype=args.dtype or "float32", op=args.op, samples=samples)
    if not (args.dtype or args.backward):
        pairs += opinfo_pairs.plan(ops, dtype=opinfo_pairs.ERRORS, op=args.op)
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
        "rows": [opinfo_pairs.as_dict(row) for row in rows],
    }


# The summary


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
    calls = [row for row in rows if row.dtype == opinfo_pairs.ERRORS]
    if calls:
        wrong, count = sum(row.failures for row in calls), sum(row.samples - row.skipped for row in calls)
        print(f"calls that must fail: {count}, {count - wrong} raise the CPU's type of error")
    for row in failed(rows):
        if why := reason(row):
            print(f"  known: {title(row)}: {why}")
    for line in unexpected(rows):
        print(f"  unexpected: {line}")


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

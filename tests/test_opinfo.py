# chapter 3
"""PyTorch's own samples: of every operator of `op_db`, the first in float32 gives the CPU's answer, the wrong ones its error.

`opinfo_pairs.KNOWN` lists what does not, with reasons. It runs in a process of its own because its workers are forks: the
device's threads of this process would not survive one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import opinfo_judge
import pytest
from opinfo_pairs import ERRORS, KNOWN, Row


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    out = tmp_path_factory.mktemp("opinfo") / "rows.json"
    script = Path(opinfo_judge.__file__)
    done = subprocess.run(
        [sys.executable, script, out], env=dict(os.environ), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return [Row(**row) for row in json.loads(out.read_text("utf-8"))]


def failed(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.verdict in ("FAIL", "CRASH", "TIMEOUT")]


def unexpected(rows: list[Row]) -> str:
    """Return a line for each failure that `KNOWN` does not list."""
    lines = [f"{r.op}: {r.verdict}: {r.reason}" for r in failed(rows) if not any(k.covers(r) for k in KNOWN)]
    return "\n".join(lines)


def test_every_operator_gives_the_cpus_answer(rows: list[Row]) -> None:
    assert unexpected([row for row in rows if row.dtype != ERRORS]) == ""


def test_every_wrong_call_raises_the_cpus_type_of_error(rows: list[Row]) -> None:
    errors = [row for row in rows if row.dtype == ERRORS]
    assert sum(row.samples - row.skipped for row in errors) > 650
    assert unexpected(errors) == ""


def test_every_known_difference_is_still_there(rows: list[Row]) -> None:
    gone = [r.op for r in rows if r.verdict in ("PASS", "SKIP") and any(known.covers(r) for known in KNOWN)]
    assert not gone, f"take these out of opinfo_pairs.KNOWN, they pass now: {gone}"


def test_nearly_all_of_op_db_was_judged(rows: list[Row]) -> None:
    rows = [row for row in rows if row.dtype != ERRORS]
    verdicts = Counter(row.verdict for row in rows)
    assert verdicts["PASS"] > 660
    assert [r.op for r in rows if r.verdict == "SKIP" and not r.op.startswith("jiterator")] == []  # CUDA and ROCm only


def test_most_operators_need_no_fallback(rows: list[Row]) -> None:
    native = {row.op for row in rows if row.verdict == "PASS" and row.dtype != ERRORS and not row.fell_back}
    assert len(native) > 400
    assert {"add", "mm", "nn_functional_conv2d", "softmax", "nn_functional_layer_norm", "index_select"} <= native

"""What the rows of a run add up to: pairs that count, pass natively or with a fallback, and fail, with known reasons."""

from __future__ import annotations

import opinfo_pairs
from opinfo_pairs import Row

COUNTED = ("PASS", "FAIL", "CRASH", "TIMEOUT")


def title(row: Row) -> str:
    """Name a pair."""
    return f"{row.op} {row.dtype}{' backward' if row.backward else ''}"


def values(rows: list[Row]) -> list[Row]:
    """Return the pairs of an operator and a dtype: all but the calls that must fail."""
    return [row for row in rows if row.dtype != opinfo_pairs.ERRORS]


def failed(rows: list[Row]) -> list[Row]:
    """Return the pairs that the CPU can do and the device cannot."""
    return [row for row in rows if row.verdict in COUNTED[1:]]


def reason(row: Row) -> str | None:
    """Return the known reason of a failure."""
    return next((known.reason for known in opinfo_pairs.KNOWN if known.covers(row)), None)


def unexpected(rows: list[Row]) -> list[str]:
    """Return what contradicts the list of known differences."""
    found = [f"{title(r)} fails without a known reason: {r.reason}" for r in failed(rows) if reason(r) is None]
    passed = [row for row in rows if row.verdict == "PASS" and reason(row) is not None]
    found += [f"{title(row)} passes: take it out of opinfo_pairs.KNOWN" for row in passed]
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

# chapter 3
# %% fallback-policy
"""What ran on the CPU because the device has no kernel for it, and whether it may.

`report()` after a training step tells which operator to write next: the one that moves the most bytes, or is called the
most often.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from . import _C

Policy = Literal["allow", "warn", "error"]
_POLICIES: tuple[Policy, ...] = ("allow", "warn", "error")


def set_policy(policy: Policy) -> Policy:
    """Say what happens to an operator without a kernel on the device; return the earlier policy.

    Args:
        policy: `"allow"` runs it on the CPU, `"warn"` does so and warns once per operator, `"error"` raises
            `NotImplementedError`. It holds for the whole process, autograd's threads included.

    Raises:
        ValueError: the policy is none of the three.
    """
    if policy not in _POLICIES:
        raise ValueError(f"expected one of {', '.join(map(repr, _POLICIES))}, got {policy!r}")
    return _POLICIES[_C.set_fallback_policy(_POLICIES.index(policy))]


@contextlib.contextmanager
def policy(policy: Policy) -> Iterator[None]:
    """Set the policy inside a `with` block."""
    before = set_policy(policy)
    try:
        yield
    finally:
        set_policy(before)


# %% fallback-report
class Record(NamedTuple):
    """What one operator's fallback cost since the last reset."""

    name: str
    """Name and overload, e.g. `aten::erfinv.out`."""
    calls: int
    bytes_to_cpu: int
    bytes_to_device: int


def report() -> list[Record]:
    """Return a record for each operator that fell back, most bytes first."""
    return [Record(*record) for record in _C.fallback_report()]


def reset() -> None:
    """Forget what has been counted."""
    _C.reset_fallback_report()


def format_report() -> str:
    """Return the report as a table to print."""
    rows = [("operator", "calls", "bytes to CPU", "bytes to device")]
    rows += [(r.name, str(r.calls), str(r.bytes_to_cpu), str(r.bytes_to_device)) for r in report()]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = (f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}" for a, b, c, d in rows)
    return "\n".join(lines)

# chapter 3
"""What is judged with PyTorch's samples, what came of it, and which differences are known, with their reasons."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

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
# if COOKBOOK_CHAPTER >= 4
# core's `multinomial` asserts what is in the tensor by `_assert_async`, which waits on the CPU only. CUDA does the same.
ASSERTED = "whether these are probabilities is asserted on the device, which reports it at the next synchronization"
KNOWN += (Known("multinomial", ASSERTED, (ERRORS,)),)
# endif


def load() -> list[Any]:
    """Return `op_db` without bringing the device to life, so that this process may fork."""
    if "cookbook_backend" in sys.modules:
        raise RuntimeError("the judge forks its workers and must start in a process that has not loaded the backend")
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


def as_dict(row: Row) -> dict[str, Any]:
    """Return a row as JSON knows it."""
    return asdict(row)

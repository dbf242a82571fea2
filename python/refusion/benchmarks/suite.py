"""Runs the op suite."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch

from .ops import Case
from .report import Measured
from .timing import interleave

WRONG = 4.0
"""Error over that of torch in the same precision at which a result counts as wrong. The tests hold the ops to 2."""


def run(
    cases: Iterable[Case], seconds: float, wanted: re.Pattern[str] | None, show: Callable[[str], None]
) -> list[Measured]:
    """Measures the cases whose 'op case dtype' matches `wanted`; raises `AssertionError` for a wrong result."""
    results = []
    with torch.inference_mode():
        for case in cases:
            title = f"{case.op} {case.name} {case.dtype}"
            if wanted is not None and not wanted.search(title):
                continue
            show(title)
            error = case.error()
            if error > WRONG:
                raise AssertionError(f"{title}: error is {error:.2f} times that of torch in the same precision")
            timings = interleave({"ours": case.ours, **case.alternatives}, seconds)
            ours = timings.pop("ours")
            shape = (case.read, case.written, case.flops, case.memory)
            results.append(Measured(case.op, case.name, case.dtype, ours, timings, error, *shape))
    return results

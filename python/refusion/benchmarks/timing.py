"""Interleaved timing: all candidates take turns, so that a drift of the machine's speed hits them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call over all rounds."""

    median: float
    fastest: float
    slowest: float


def interleave(
    calls: Mapping[str, Call], seconds: float, min_rounds: int = 5, max_rounds: int = 400
) -> dict[str, Timing]:
    """Times each call once a round, in rotating order, until `seconds` have passed; one untimed round first.

    A call shorter than 50 microseconds is repeated within its turn, so that the clock's resolution does not count.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    for turn in range(max_rounds):
        if turn >= min_rounds and time.perf_counter() - began > seconds:
            break
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(_time(calls[name], repeats[name]))
    return {name: Timing(statistics.median(s), min(s), max(s)) for name, s in samples.items()}


def _repeats(call: Call) -> int:
    call()
    return max(1, int(50e-6 / max(_time(call, 1), 1e-7)))


def _time(call: Call, repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats

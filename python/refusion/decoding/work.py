"""What a decoder asks of the engine, and what it gets back.

A decoder is a generator: it yields `Forward` and `Score`, one at a time, and receives `Scores`. So its code reads like
the algorithm for one sequence, while the engine runs the work of many sequences in one flat chunk.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..cache import Retain
from .result import Answer, Stats

PREFILL_TOKENS = 512  # a longer prompt is read in chunks, so that a forward's memory is bounded


@dataclass(slots=True)
class Score:
    """Scores rows of the sequence's last forward."""

    rows: list[int]
    """Indices into the tokens of that forward."""
    positions: list[int]
    """Answer positions that the scored tokens are for: they key the sampling and the minimum length."""
    given: list[int] | None = None
    """Token whose probability is wanted, per row; -1, or None for all: choose one."""
    round: int = 0
    """Keys the sampling: a position that is drafted again gets other noise."""


@dataclass(slots=True)
class Forward:
    """Runs tokens through the model behind the rows that `retain` leaves."""

    phase: str
    """prefill, plan, verify, refine_draft, refine_verify, or decode: for the statistics."""
    tokens: list[int]
    positions: list[int]
    """Original positions, prompt included."""
    retain: Retain
    score: Score
    window_begin: list[int] | None = None
    """First token of this chunk that each token sees, up to itself; None: all from the first on."""
    bidirectional: bool = False
    """Every token sees the whole chunk."""


@dataclass(slots=True)
class Scores:
    """One entry a scored row, on the host."""

    token: NDArray[np.int64]
    probability: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]


T = TypeVar("T")
Steps = Generator[Forward | Score, Scores, T]
"""Work yielded, scores received, and what the phase hands to the next one."""


class Decoder(Protocol):
    """One sequence being decoded."""

    answer: Answer
    stats: Stats
    capacity: int
    """Cache rows needed at most."""

    def run(self) -> Steps[None]: ...


@dataclass(slots=True)
class Cost:
    """Seconds of a forward, learnt as it runs: `fixed` + `each` * tokens, by exponentially forgetting least squares."""

    decay: float = 0.98
    unseen: float = 32.0
    """`tokens_per_overhead` until enough is seen: about what a small model has on a CPU."""
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # weight, tokens, tokens^2, seconds, tokens * seconds

    def observe(self, tokens: int, seconds: float) -> None:
        new = (1.0, tokens, tokens * tokens, seconds, tokens * seconds)
        self._sums = [self.decay * old + x for old, x in zip(self._sums, new, strict=True)]

    @property
    def tokens_per_overhead(self) -> float:
        """How many tokens cost as much as the fixed part of a forward."""
        weight, x, xx, y, xy = self._sums
        spread = weight * xx - x * x
        if weight < 4 or spread <= 1e-9 * weight * xx:
            return self.unseen
        each = max((weight * xy - x * y) / spread, 1e-9)
        return max((y - each * x) / weight, 0.0) / each

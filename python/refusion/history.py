"""What stands in the rows of a recording cache: who each token was, and whom it saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One token that went through the model."""

    token: int
    position: int
    seen: tuple[Row, ...]
    """Committed rows and window, without itself."""


class History:
    """What stands in each cache row of one sequence, kept in step with the cache."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(
        self, committed: int, tokens: Sequence[int], positions: Sequence[int], begin: Sequence[int], end: Sequence[int]
    ) -> None:
        """Windows [begin, end) count from `committed`, as in the kernels; only causal windows can be recorded."""
        for token, position, first, last in zip(tokens, positions, begin, end, strict=True):
            here = len(self.rows)
            if committed + last > here + 1:
                raise ValueError("history: a token that sees later tokens of its chunk has no exact row")
            seen = self.rows[:committed] + self.rows[committed + first : min(committed + last, here)]
            self.rows.append(Row(int(token), int(position), tuple(seen)))

    def retain(self, first: int, rows: Sequence[int]) -> None:
        self.rows[first:] = [self.rows[row] for row in rows]

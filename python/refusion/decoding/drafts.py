"""What a round of ReFusion decoding works on: slots, the drafts of the chosen ones, and the plan they came from."""

from __future__ import annotations

from dataclasses import dataclass

from .work import Scores


@dataclass(slots=True)
class Slot:
    """Answer positions [start, start + length)."""

    start: int
    length: int


@dataclass(slots=True)
class Draft:
    """A chosen slot with the tokens drafted for it."""

    slot: Slot
    tokens: list[int]
    probabilities: list[float]
    accepted: int = 0

    @property
    def complete(self) -> bool:
        return self.accepted == len(self.tokens)

    @property
    def positions(self) -> list[int]:
        return list(range(self.slot.start, self.slot.start + len(self.tokens)))

    def truncate(self, length: int) -> None:
        """Ends the slot early, behind an accepted EOS."""
        del self.tokens[length:], self.probabilities[length:]
        self.accepted = length


@dataclass(slots=True)
class Plan:
    """First-position (or all) scores of the masks of some slots, standing at `row` of the sequence's last forward."""

    slots: list[Slot]
    row: int
    scores: Scores
    round: int


def row_offsets(drafts: list[Draft]) -> list[tuple[int, Draft]]:
    """Each draft with its first row in a chunk that holds them one after another."""
    pairs, at = [], 0
    for draft in drafts:
        pairs.append((at, draft))
        at += len(draft.tokens)
    return pairs

"""What a decode returns: the answer, what it cost, and the commits as they happen."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """Honest counts of one sequence. A forward is one pass of this sequence's tokens through the model."""

    tokens: int = 0
    """Tokens returned."""
    prompt_tokens: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    """Forwards by phase: prefill, plan, verify, refine_draft, refine_verify, decode."""
    computed_tokens: int = 0
    """Tokens that went through the model, masks and repeated drafts included."""
    seconds: float = 0.0
    """Wall time from the first forward to the last commit; in a batch it is shared with the others."""

    @property
    def forwards(self) -> int:
        return sum(self.phases.values())

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def wasted_tokens(self) -> int:
        """Computed tokens that are neither prompt nor returned."""
        return max(self.computed_tokens - self.prompt_tokens - self.tokens, 0)


@dataclass(slots=True)
class Result:
    """One decoded sequence."""

    tokens: list[int]
    """The answer without the prompt; it ends with EOS where one was written."""
    probabilities: list[float]
    """Per token: its probability at temperature 1 when it was last verified (of a slot's first token: when planned)."""
    stats: Stats
    finished: bool
    """Whether the answer ended with EOS rather than at max_new_tokens."""


@dataclass(frozen=True, slots=True)
class Event:
    """One commit of `stream`."""

    sequence: int
    """Which prompt it belongs to."""
    positions: list[int]
    """Answer positions written, 0 being the first token of the answer."""
    tokens: list[int]
    withdrawn: list[int]
    """Positions withdrawn because an earlier EOS was found."""
    prefix: list[int]
    """All tokens from the start of the answer up to the first gap: they are final."""


class Answer:
    """The answer being written, in any order. Whether a position is masked is a flag, never a token value."""

    def __init__(self, length: int, eos_token_ids: frozenset[int]) -> None:
        self.tokens = [0] * length
        self.probabilities = [0.0] * length
        self.written = bytearray(length)
        self.eos_token_ids = eos_token_ids
        self.prefix = 0  # leading positions that are written
        self.end = length  # one behind the last position that belongs to the answer
        self.news: tuple[list[int], list[int]] | None = None  # positions written and withdrawn since the last look

    def write(self, positions: list[int], tokens: list[int], probabilities: list[float]) -> None:
        for position, token, probability in zip(positions, tokens, probabilities, strict=True):
            self.tokens[position] = token
            self.probabilities[position] = probability
            self.written[position] = 1
        gap = self.written.find(0, self.prefix)
        self.prefix = len(self.written) if gap < 0 else gap
        self._tell(positions, [])

    def cut(self, end: int) -> None:
        """Ends the answer before position `end` and withdraws what was written from there on."""
        withdrawn = [p for p in range(end, self.end) if self.written[p]]
        for position in withdrawn:
            self.written[position] = 0
        self.end = end
        self.prefix = min(self.prefix, end)
        self._tell([], withdrawn)

    def positions(self) -> list[int]:
        """Written positions, ascending."""
        return [p for p in range(self.end) if self.written[p]]

    def take_news(self) -> tuple[list[int], list[int]]:
        """Positions written and withdrawn since the last call."""
        written, withdrawn = self.news or ([], [])
        self.news = None
        return [p for p in written if p < self.end], withdrawn

    def _tell(self, written: list[int], withdrawn: list[int]) -> None:
        old = self.news or ([], [])
        self.news = (old[0] + written, old[1] + withdrawn)

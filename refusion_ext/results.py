"""Result types of the ops. Field arrays belong to the framework of the inputs (torch, numpy or JAX)."""

from __future__ import annotations

from typing import Any, NamedTuple


class TokenScores(NamedTuple):
    """One entry a row of logits, from `score_tokens` and `score_hidden`."""

    token: Any
    """int64 [rows]: the chosen id, or the given one; -1 where no id may be chosen."""
    probability: Any
    """float32 [rows]: probability of `token` at temperature 1, suppressed ids included in the normaliser."""
    log_sum_exp: Any
    """float32 [rows]: natural logarithm of the normaliser."""
    entropy: Any
    """float32 [rows]: entropy of the distribution in nats."""
    margin: Any
    """float32 [rows]: best minus second best probability among the ids that may be chosen."""


class SlotSelection(NamedTuple):
    """Slots chosen by `select_slots`."""

    chosen: Any
    """int32 [slots]: indices within the sequence, ascending, packed at `sequence_offsets`; unused entries are -1."""
    counts: Any
    """int32 [sequences]: how many were chosen."""
    confidence: Any
    """float32 [slots]."""


class Acceptance(NamedTuple):
    """What `accept_tokens` found."""

    accepted: Any
    """int32 [slots]: length of the accepted prefix."""
    eos: Any
    """int32 [slots]: index within the slot of the first EOS in its accepted prefix, or -1."""
    run: Any
    """int32 [sequences]: leading accepted tokens over the concatenation of the sequence's slots."""

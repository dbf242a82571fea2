"""A small valid call of every op, to be made wrong by the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import refusion_ext
from refusion_ext import Acceptance, SlotSelection, TokenScores

ROWS, VOCAB, WIDTH = 3, 7, 8
SEQUENCES, KV_HEADS, Q_HEADS, CAPACITY, HEAD_DIM, TOKENS = 2, 2, 4, 16, 16, 5
PACKED = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM


def int32(*values: Any) -> Tensor:
    return torch.tensor(values[0] if isinstance(values[0], list) else values, dtype=torch.int32)


def cache() -> Tensor:
    return torch.randn(SEQUENCES, KV_HEADS, CAPACITY, HEAD_DIM)


def scores() -> TokenScores:
    return TokenScores(torch.full((ROWS,), -7), *(torch.full((ROWS,), -7.0) for _ in range(4)))


def valid(op: str) -> dict[str, Any]:
    """Keyword arguments of a call that works, results included. Of random numbers, so that every write shows."""
    choice = {
        "given": torch.tensor([-1, 2, 6]),
        "suppressed": int32(1, 3),
        "temperature": 0.5,
        "sample_keys": torch.arange(4 * ROWS).view(ROWS, 4),
        "out": scores(),
    }
    offsets, slots = int32(0, 2, TOKENS), int32(0, 1, 3)
    if op == "score_tokens":
        return {"logits": torch.randn(ROWS, VOCAB), **choice}
    if op == "score_hidden":
        return {"hidden": torch.randn(ROWS, WIDTH), "weight": torch.randn(VOCAB, WIDTH), **choice}
    if op == "linear":
        return {
            "x": torch.randn(ROWS, WIDTH),
            "weight": torch.randn(VOCAB, WIDTH),
            "bias": torch.randn(VOCAB),
            "norm": torch.rand(WIDTH),
            "residual": torch.randn(ROWS, VOCAB),
            "out": torch.full((ROWS, VOCAB), -7.0),
        }
    if op == "select_slots":
        out = SlotSelection(torch.full((3,), -7).int(), torch.full((2,), -7).int(), torch.full((3,), -7.0))
        scored = {"scores": torch.rand(TOKENS), "slot_offsets": int32(0, 2, 4, TOKENS), "sequence_offsets": slots}
        return {**scored, "threshold": 0.5, "rule": "first", "out": out}
    if op == "accept_tokens":
        return {
            "probability": torch.rand(TOKENS),
            "token": torch.arange(TOKENS),
            "slot_offsets": int32(0, 2, 4, TOKENS),
            "accepted_before": int32(0, 0, 0),
            "sequence_offsets": slots,
            "threshold": 0.5,
            "eos_token_ids": torch.tensor([3]),
            "out": Acceptance(*(torch.full((n,), -7).int() for n in (3, 3, 2))),
        }
    if op == "rope_append":
        return {
            "qkv": torch.randn(TOKENS, PACKED),
            "q_norm": torch.rand(HEAD_DIM),
            "k_norm": torch.rand(HEAD_DIM),
            "cosine": torch.rand(9, HEAD_DIM // 2),
            "sine": torch.rand(9, HEAD_DIM // 2),
            "position_ids": int32(8, 0, 3, 2, 1),
            "rows": int32(4, 2, 0, 15, 1),
            "sequence_offsets": offsets,
            "k_cache": cache(),
            "v_cache": cache(),
            "out": torch.full((TOKENS, Q_HEADS, HEAD_DIM), -7.0),
        }
    if op == "attend":
        return {
            "q": torch.randn(TOKENS, Q_HEADS, HEAD_DIM),
            "k_cache": cache(),
            "v_cache": cache(),
            "sequence_offsets": offsets,
            "committed": int32(4, 6),
            "window_begin": int32(0, 0, 0, 0, 1),
            "window_end": int32(1, 2, 1, 2, 10),
            "out": torch.full((TOKENS, Q_HEADS, HEAD_DIM), -7.0),
        }
    assert op == "compact_rows"
    whole = torch.randn(2, 2, SEQUENCES, KV_HEADS, CAPACITY, HEAD_DIM)
    return {"cache": whole, "sources": int32(3, 5, 15), "source_offsets": int32(0, 2, 3), "destination": int32(1, 0)}


OPS = (
    *("score_tokens", "score_hidden", "linear", "select_slots", "accept_tokens"),
    *("rope_append", "attend", "compact_rows"),
)


def call(op: str, arguments: dict[str, Any]) -> Any:
    return getattr(refusion_ext, op)(**arguments)


def arrays(arguments: dict[str, Any]) -> dict[str, Any]:
    """Every array of a call by name; fields of `out` as out.token and so on."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if hasattr(value, "_asdict"):
            found |= {f"{name}.{field}": x for field, x in value._asdict().items() if x is not None}
        elif hasattr(value, "shape"):
            found[name] = value
    return found


def replaced(arguments: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A copy with another value of `name`, which may be a field of `out`."""
    outer, _, field = name.partition(".")
    return {**arguments, outer: arguments[outer]._replace(**{field: value}) if field else value}

"""The ops as `torch.ops.refusion_ext.*` for torch.compile, torch.export and CUDA graphs. Importing this registers them.

Arguments are those of the eager functions, with all results preallocated (fields of a result type stand one by one) and
written in place; every op returns nothing. Eager code should call `refusion_ext.attend` and so on: the dispatcher adds
several microseconds a call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import ops
from .results import Acceptance, SlotSelection, TokenScores

_SCORES = "Tensor(a!) token, Tensor(b!) probability, Tensor(c!) log_sum_exp, Tensor(d!)? entropy, Tensor(e!)? margin"
_CHOICE = "Tensor? given=None, Tensor? suppressed=None, float temperature=0.0, Tensor? sample_keys=None"

SCHEMAS = (
    f"score_tokens(Tensor logits, {_SCORES}, *, {_CHOICE}) -> ()",
    f"score_hidden(Tensor hidden, Tensor weight, {_SCORES}, *, {_CHOICE}) -> ()",
    "linear(Tensor x, Tensor weight, Tensor(a!) out, *, Tensor? bias=None, Tensor? norm=None, float norm_epsilon=1e-6,"
    " bool gated=False, Tensor? residual=None) -> ()",
    "select_slots(Tensor scores, Tensor slot_offsets, Tensor sequence_offsets, float threshold,"
    " Tensor(a!) chosen, Tensor(b!) counts, Tensor(c!) confidence, *, str rule='first') -> ()",
    "accept_tokens(Tensor probability, Tensor token, Tensor slot_offsets, Tensor accepted_before,"
    " Tensor sequence_offsets, float threshold, Tensor(a!) accepted, Tensor(b!) eos, Tensor(c!) run,"
    " *, Tensor? eos_token_ids=None) -> ()",
    "rope_append(Tensor qkv, Tensor? q_norm, Tensor? k_norm, Tensor cosine, Tensor sine, Tensor position_ids,"
    " Tensor rows, Tensor sequence_offsets, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!) out,"
    " *, float norm_epsilon=1e-6) -> ()",
    "attend(Tensor q, Tensor k_cache, Tensor v_cache, Tensor sequence_offsets, Tensor committed, Tensor window_begin,"
    " Tensor window_end, Tensor(a!) out, *, float? scale=None) -> ()",
    "compact_rows(Tensor(a!) cache, Tensor sources, Tensor source_offsets, Tensor destination) -> ()",
)


def _score_tokens(logits: Tensor, *scores: Tensor, **choice: Any) -> None:
    ops.score_tokens(logits, out=TokenScores(*scores), **choice)


def _score_hidden(hidden: Tensor, weight: Tensor, *scores: Tensor, **choice: Any) -> None:
    ops.score_hidden(hidden, weight, out=TokenScores(*scores), **choice)


def _linear(x: Tensor, weight: Tensor, out: Tensor, **terms: Any) -> None:
    ops.linear(x, weight, out=out, **terms)


def _select_slots(
    scores: Tensor, slot_offsets: Tensor, sequence_offsets: Tensor, threshold: float, *selection: Tensor, **rule: str
) -> None:
    ops.select_slots(scores, slot_offsets, sequence_offsets, threshold, out=SlotSelection(*selection), **rule)


def _accept_tokens(
    probability: Tensor,
    token: Tensor,
    slot_offsets: Tensor,
    accepted_before: Tensor,
    sequence_offsets: Tensor,
    threshold: float,
    *acceptance: Tensor,
    eos_token_ids: Tensor | None = None,
) -> None:
    arrays = (probability, token, slot_offsets, accepted_before, sequence_offsets)
    ops.accept_tokens(*arrays, threshold, eos_token_ids=eos_token_ids, out=Acceptance(*acceptance))


def _rope_append(*arguments: Tensor, norm_epsilon: float = 1e-6) -> None:
    *arrays, out = arguments
    ops.rope_append(*arrays, norm_epsilon=norm_epsilon, out=out)


def _attend(*arguments: Tensor, scale: float | None = None) -> None:
    *arrays, out = arguments
    ops.attend(*arrays, scale=scale, out=out)


_FUNCTIONS = (
    *(_score_tokens, _score_hidden, _linear, _select_slots, _accept_tokens),
    *(_rope_append, _attend, ops.compact_rows),
)


def _fake(*_: Any, **__: Any) -> None:
    """Results are preallocated, so that there is nothing to infer."""


def _register() -> None:
    namespace = torch.ops.refusion_ext
    if "library" in vars(namespace):  # this module was imported before, under whatever name
        return
    library = torch.library.Library("refusion_ext", "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    for schema, function in zip(SCHEMAS, _FUNCTIONS, strict=True):
        name = schema.partition("(")[0]
        library.define(schema, tags=tags)
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"refusion_ext::{name}", _fake, lib=library)
    # The ops live as long as the object: torch holds it, so that they outlive a reload of this module.
    vars(namespace)["library"] = library


_register()

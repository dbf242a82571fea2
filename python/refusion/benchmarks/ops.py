"""The op suite: each op at real sizes against its torch alternatives, with its result checked in the same run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import refusion_ext
from refusion.model import ModelConfig
from refusion.rope import rope_tables

from .timing import Call

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
FRESH_BYTES = 256 << 20  # so much lies in no cache


@dataclass(slots=True)
class Case:
    """One measurement: our call, what it replaces, and what the machine must do at least."""

    op: str
    name: str
    dtype: str
    ours: Call
    alternatives: Mapping[str, Call]
    error: Callable[[], float]
    """Our error relative to that of the same-precision torch expression, both against float64; at most 2 is right."""
    read: int = 0
    """Bytes that must be read at least; `memory` bytes are visited again in every repeat."""
    written: int = 0
    flops: int = 0
    memory: int = 0
    groups: dict[str, str] = field(default_factory=dict)
    """Alternative -> label of a goal that names it; empty: the fastest of all counts."""


def cases(config: ModelConfig, quick: bool = False) -> Iterator[Case]:
    """All cases of a model's shapes; `quick` leaves out the large sizes."""
    for dtype in DTYPES:
        yield score_tokens(config, dtype, rows=64 if quick else 256)
        yield score_hidden(config, dtype, rows=64)
        for rows in (1, 16) if quick else (1, 8, 16, 32, 64, 256):
            yield linear(config, dtype, rows)
        for rows in (1, 16):
            yield linear(config, dtype, rows, gated=True)
        yield rope_append(config, dtype, tokens=64)
        for tokens in (1, 8, 32, 128, 512):
            for prefix in (512, 2048, 8192):
                if not quick or (tokens in (1, 32) and prefix == 2048):
                    yield attend_causal(config, dtype, tokens, prefix)
        yield attend_slots(config, dtype, slots=32, slot_size=8, prefix=2048)
        yield compact_rows(config, dtype, rows=2048)


def score_tokens(config: ModelConfig, dtype: str, rows: int) -> Case:
    logits = (torch.randn(rows, config.vocab_size) * 3).to(DTYPES[dtype])
    out = _scores_buffer(rows)

    def torch_way() -> tuple[Tensor, Tensor]:
        return logits.softmax(-1, dtype=torch.float32).max(-1)

    def gather_way() -> Tensor:
        token = logits.argmax(-1, keepdim=True)
        return logits.softmax(-1, dtype=torch.float32).gather(-1, token)

    def error() -> float:
        exact = logits.double().softmax(-1).max(-1)
        found = refusion_ext.score_tokens(logits, out=out)
        assert torch.equal(found.token, exact.indices), "score_tokens chose another token"
        return _relative(found.probability, torch_way()[0], exact.values)

    size = logits.numel() * logits.element_size()
    return Case(
        "score_tokens",
        f"[{rows}, {config.vocab_size}]",
        dtype,
        lambda: refusion_ext.score_tokens(logits, out=out),
        {"softmax + max": torch_way, "argmax + softmax + gather": gather_way},
        error,
        read=size,
        memory=size,
    )


def score_hidden(config: ModelConfig, dtype: str, rows: int) -> Case:
    hidden = torch.randn(rows, config.hidden_size).to(DTYPES[dtype])
    weight = (torch.randn(config.vocab_size, config.hidden_size) * 0.05).to(DTYPES[dtype])
    out = _scores_buffer(rows)

    def torch_way() -> tuple[Tensor, Tensor]:
        return F.linear(hidden, weight).softmax(-1, dtype=torch.float32).max(-1)

    def error() -> float:
        exact = (hidden.double() @ weight.double().T).softmax(-1).max(-1)
        found = refusion_ext.score_hidden(hidden, weight, out=out)
        return _relative(found.probability, torch_way()[0], exact.values)

    size = weight.numel() * weight.element_size()
    return Case(
        "score_hidden",
        f"[{rows} x {config.hidden_size}] . [{config.vocab_size} x {config.hidden_size}]",
        dtype,
        lambda: refusion_ext.score_hidden(hidden, weight, out=out),
        {"linear + softmax + max": torch_way},
        error,
        read=size,
        flops=2 * rows * weight.numel(),
        memory=size,
    )


def linear(config: ModelConfig, dtype: str, rows: int, gated: bool = False) -> Case:
    """The gate and up (if `gated`, the down) projections of one layer after another: weights come from memory."""
    inner, hidden = config.intermediate_size, config.hidden_size
    shape = (hidden, inner) if gated else (2 * inner, hidden)
    layers = max(1, min(config.num_hidden_layers, FRESH_BYTES // (math.prod(shape) * DTYPES[dtype].itemsize)))
    weights = (torch.randn(layers, *shape) * 0.05).to(DTYPES[dtype])
    x = torch.randn(rows, 2 * inner if gated else hidden).to(DTYPES[dtype])
    norm = (torch.rand(hidden) + 0.5).to(DTYPES[dtype])
    out = torch.empty(rows, shape[0], dtype=DTYPES[dtype])
    our_layer, its_layer = cycle(weights), cycle(weights)
    before: dict[str, Any] = {"gated": True} if gated else {"norm": norm}

    def torch_way(weight: Tensor | None = None, x: Tensor = x) -> Tensor:
        weight = next(its_layer) if weight is None else weight
        if not gated:
            return F.linear(F.rms_norm(x, x.shape[-1:], norm.to(x.dtype), 1e-6), weight)
        gate, up = x.chunk(2, -1)
        return F.linear(F.silu(gate) * up, weight)

    def error() -> float:
        found = refusion_ext.linear(x, weights[0], **before)
        return _relative(found, torch_way(weights[0]), torch_way(weights[0].double(), x.double()))

    size = weights[0].numel() * weights.element_size()
    return Case(
        "linear",
        f"{'gated' if gated else 'norm'}, [{rows} x {shape[1]}] . [{shape[0]} x {shape[1]}]",
        dtype,
        lambda: refusion_ext.linear(x, next(our_layer), **before, out=out),
        {"silu + product + linear" if gated else "rms_norm + linear": torch_way},
        error,
        read=size,
        written=out.numel() * out.element_size(),
        flops=2 * rows * weights[0].numel(),
        memory=layers * size,
    )


def rope_append(config: ModelConfig, dtype: str, tokens: int) -> Case:
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    qkv = torch.randn(tokens, config.qkv_width).to(DTYPES[dtype])
    q_norm, k_norm = (torch.rand(2, head_dim) + 0.5).to(DTYPES[dtype])
    caches = torch.zeros(2, 1, kv_heads, 2 * tokens, head_dim, dtype=DTYPES[dtype])
    cosine, sine = rope_tables(torch.arange(2 * tokens), head_dim, config.rope_theta)
    positions = torch.randperm(2 * tokens)[:tokens].to(torch.int32)
    rows, offsets = torch.arange(tokens, dtype=torch.int32), torch.tensor([0, tokens], dtype=torch.int32)
    q_out = torch.empty(tokens, heads, head_dim, dtype=DTYPES[dtype])
    arguments = (qkv, q_norm, k_norm, cosine, sine, positions, rows, offsets)

    def torch_way(x: Tensor = qkv, keep: Tensor = caches) -> Tensor:
        q, k, v = x.view(tokens, -1, head_dim).split((heads, kv_heads, kv_heads), 1)
        cos, sin = cosine[positions.long(), None].to(x.dtype), sine[positions.long(), None].to(x.dtype)

        def rotate(y: Tensor, norm: Tensor) -> Tensor:
            low, high = F.rms_norm(y, (head_dim,), norm.to(x.dtype), 1e-6).chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

        keep[0, 0, :, :tokens] = rotate(k, k_norm).transpose(0, 1)
        keep[1, 0, :, :tokens] = v.transpose(0, 1)
        return rotate(q, q_norm)

    def error() -> float:
        exact = torch_way(qkv.double(), caches.double())
        found = refusion_ext.rope_append(*arguments, *caches, out=q_out)
        return _relative(found, torch_way(), exact)

    size = qkv.numel() * qkv.element_size()
    return Case(
        "rope_append",
        f"{tokens} tokens, {heads}/{kv_heads} heads",
        dtype,
        lambda: refusion_ext.rope_append(*arguments, *caches, out=q_out),
        {"rms_norm + rotate + copies": torch_way},
        error,
        read=size,
        written=size,
        memory=2 * size,
    )


def attend_causal(config: ModelConfig, dtype: str, tokens: int, prefix: int) -> Case:
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    keys = prefix + tokens
    q = torch.randn(tokens, heads, head_dim).to(DTYPES[dtype])
    k, v = torch.randn(2, 1, kv_heads, keys, head_dim).to(DTYPES[dtype])
    end = torch.arange(1, tokens + 1, dtype=torch.int32)
    visible = torch.arange(keys)[None] < prefix + end[:, None]
    arguments = (q, k, v, torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([prefix], dtype=torch.int32))
    size = 2 * k.numel() * k.element_size()
    return Case(
        "attend",
        f"causal {tokens} over {prefix}",
        dtype,
        _attend_call(arguments, torch.zeros_like(end), end),
        _sdpa(q, k, v, visible),
        _attend_error(q, k, v, visible, arguments, torch.zeros_like(end), end),
        read=size,
        flops=4 * heads * head_dim * (tokens * prefix + tokens * (tokens + 1) // 2),
        memory=size,
    )


def attend_slots(config: ModelConfig, dtype: str, slots: int, slot_size: int, prefix: int) -> Case:
    """Refine: slots that are blind to each other over one prefix; today's way repeats the prefix for each."""
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    tokens = slots * slot_size
    keys = prefix + tokens
    q = torch.randn(tokens, heads, head_dim).to(DTYPES[dtype])
    k, v = torch.randn(2, 1, kv_heads, keys, head_dim).to(DTYPES[dtype])
    index = torch.arange(tokens, dtype=torch.int32)
    begin, end = index // slot_size * slot_size, index + 1
    row = torch.arange(keys)[None] - prefix
    visible = (row < 0) | ((row >= begin[:, None]) & (row < end[:, None]))
    within = torch.cat(
        (torch.ones(slot_size, prefix, dtype=torch.bool), torch.ones(slot_size, slot_size).tril().bool()), 1
    )

    def repeated() -> Tensor:
        parts = []
        for cache in (k, v):
            own = cache[0, :, prefix:].view(kv_heads, slots, slot_size, head_dim).transpose(0, 1)
            parts.append(torch.cat((cache[:, :, :prefix].expand(slots, -1, -1, -1), own), 2))
        rows = q.view(slots, slot_size, heads, head_dim).transpose(1, 2)
        return F.scaled_dot_product_attention(rows, parts[0], parts[1], attn_mask=within, enable_gqa=True)

    arguments = (q, k, v, torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([prefix], dtype=torch.int32))
    size = 2 * k.numel() * k.element_size()
    return Case(
        "attend",
        f"{slots} slots x {slot_size} over {prefix}",
        dtype,
        _attend_call(arguments, begin, end),
        {"prefix repeated per slot": repeated, **_sdpa(q, k, v, visible)},
        _attend_error(q, k, v, visible, arguments, begin, end),
        read=size,
        flops=4 * heads * head_dim * (tokens * prefix + slots * slot_size * (slot_size + 1) // 2),
        memory=size,
    )


def compact_rows(config: ModelConfig, dtype: str, rows: int) -> Case:
    """Keeps every second row, which is the worst pattern: no two kept rows are neighbours."""
    shape = (config.num_hidden_layers, 2, 1, config.num_key_value_heads, rows, config.head_dim)
    cache = torch.randn(shape).to(DTYPES[dtype])
    sources = torch.arange(1, rows, 2, dtype=torch.int32)
    offsets, destination = torch.tensor([0, len(sources)], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    index, kept = sources.long(), len(sources)

    def torch_way() -> None:
        for layer in cache:
            for plane in layer:
                plane[:, :, :kept] = plane.index_select(2, index)

    def error() -> float:
        expected = cache.index_select(4, index)
        refusion_ext.compact_rows(cache, sources, offsets, destination)
        assert torch.equal(cache[..., :kept, :], expected), "compact_rows moved another row"
        return 0.0

    size = cache.numel() * cache.element_size() // 2
    return Case(
        "compact_rows",
        f"{config.num_hidden_layers} layers, half of {rows} rows",
        dtype,
        lambda: refusion_ext.compact_rows(cache, sources, offsets, destination),
        {"index_select + copy": torch_way},
        error,
        read=size,
        written=size,
        memory=2 * size,
    )


def _attend_call(arguments: tuple[Any, ...], begin: Tensor, end: Tensor) -> Call:
    out = torch.empty_like(arguments[0])
    q, k, v, offsets, committed = arguments
    return lambda: refusion_ext.attend(q, k, v, offsets, committed, begin, end, out=out)


def _attend_error(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, arguments: Any, begin: Tensor, end: Tensor
) -> Callable[[], float]:
    def error() -> float:
        offsets, committed = arguments[3:]
        found = refusion_ext.attend(q, k, v, offsets, committed, begin, end).transpose(0, 1)
        same = next(iter(_sdpa(q, k, v, visible).values()))()
        exact = next(iter(_sdpa(q.double(), k.double(), v.double(), visible).values()))()
        return _relative(found, same[0], exact[0])

    return error


def _sdpa(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Ways to call torch for grouped heads and a mask; preparation that a model would do once is not timed."""
    rows = q.transpose(0, 1)[None]
    group = rows.shape[1] // k.shape[1]
    k_all, v_all = (x.repeat_interleave(group, 1) for x in (k, v))
    bias = torch.zeros(visible.shape, dtype=q.dtype).masked_fill(~visible, -math.inf)
    attention = F.scaled_dot_product_attention
    calls: dict[str, Callable[[], Tensor]] = {
        "sdpa, grouped heads": lambda: attention(rows, k, v, attn_mask=visible, enable_gqa=True),
        "sdpa, repeated heads": lambda: attention(rows, k_all, v_all, attn_mask=visible),
        "sdpa, repeated heads, additive mask": lambda: attention(rows, k_all, v_all, attn_mask=bias),
    }
    if bool(visible.all()):
        calls["sdpa, no mask"] = lambda: attention(rows, k_all, v_all)
    return calls


def _scores_buffer(rows: int) -> refusion_ext.TokenScores:
    """For what the alternatives find as well: neither entropy nor margin."""
    probability, log_sum_exp = torch.empty(2, rows)
    return refusion_ext.TokenScores(torch.empty(rows, dtype=torch.int64), probability, log_sum_exp, None, None)


def _relative(ours: Tensor, same: Tensor, exact: Tensor) -> float:
    """Largest error of ours over that of torch in the same precision, with a floor of a few units in the last place."""
    floor = 4 * torch.finfo(ours.dtype).eps * exact.abs().max().item()
    reference = (same.double() - exact).abs().max().item()
    return (ours.double() - exact).abs().max().item() / max(reference, floor)

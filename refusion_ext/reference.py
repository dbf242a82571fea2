"""Every op in plain PyTorch, same name and arguments: what the compiled ops mean; the fallback where no kernel exists.

Written to be read and to be run in any precision: float64 inputs are computed in float64. Indices are read on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .results import Acceptance, SlotSelection, TokenScores

SLOT_RULES = ("first", "mean", "minimum")


def score_tokens(
    logits: Tensor,
    *,
    given: Tensor | None = None,
    suppressed: Tensor | None = None,
    temperature: float = 0.0,
    sample_keys: Tensor | None = None,
    out: TokenScores | None = None,
) -> TokenScores:
    """`refusion_ext.score_tokens`."""
    rows, vocab = logits.shape
    x = _wide(logits)
    x = torch.where(x.isnan(), -torch.inf, x)
    log_sum_exp = x.logsumexp(-1) if vocab else x.new_full((rows,), -torch.inf)
    log_p = torch.where(x == log_sum_exp[:, None], 0, x - log_sum_exp[:, None])  # an infinite logit takes all of it
    log_p = torch.where(x == -torch.inf, -torch.inf, log_p)
    p = log_p.exp()
    entropy = -(p * torch.where(p > 0, log_p, 0)).sum(-1)

    allowed = torch.ones_like(p, dtype=torch.bool)
    if suppressed is not None:
        ids = suppressed.expand(rows, -1) if suppressed.ndim == 2 else suppressed[None].expand(rows, -1)
        for row, row_ids in enumerate(ids.tolist()):
            allowed[row, [i for i in row_ids if 0 <= i < vocab]] = False
    candidates = torch.where(allowed, x, -torch.inf)
    possible = torch.where(allowed, p, 0)
    two = possible.topk(min(2, vocab), -1).values if vocab else possible.new_zeros((rows, 0))
    margin = two[:, 0] - (two[:, 1] if vocab > 1 else 0) if vocab else possible.new_zeros(rows)

    if vocab:
        choice = candidates
        if temperature > 0:
            assert sample_keys is not None
            choice = candidates / temperature + gumbel(sample_keys, vocab).to(candidates)
        token = choice.argmax(-1)  # ties: the lowest id
        token = torch.where(candidates.amax(-1) == -torch.inf, -1, token)
    else:
        token = torch.full((rows,), -1, dtype=torch.int64, device=logits.device)
    if given is not None:
        token = torch.where(given >= 0, given, token)
    probability = p.gather(-1, token.clamp(min=0)[:, None])[:, 0] if vocab else p.new_zeros(rows)
    probability = torch.where(token < 0, 0, probability)
    return _deliver(TokenScores(token, probability, log_sum_exp, entropy, margin), out, logits.dtype)


def score_hidden(
    hidden: Tensor,
    weight: Tensor,
    *,
    given: Tensor | None = None,
    suppressed: Tensor | None = None,
    temperature: float = 0.0,
    sample_keys: Tensor | None = None,
    out: TokenScores | None = None,
) -> TokenScores:
    """`refusion_ext.score_hidden`."""
    logits = _wide(hidden) @ _wide(weight).T
    scores = score_tokens(logits, given=given, suppressed=suppressed, temperature=temperature, sample_keys=sample_keys)
    return _deliver(scores, out, hidden.dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    norm_epsilon: float = 1e-6,
    gated: bool = False,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`refusion_ext.linear`."""
    rows = _wide(x)
    if norm is not None:
        rows = _normed(rows, norm, norm_epsilon)
    if gated:
        gate, up = rows.chunk(2, -1)
        rows = gate * gate.sigmoid() * up
    result = rows @ _wide(weight).T
    for term in (bias, residual):
        result = result if term is None else result + _wide(term)
    return result.to(x.dtype) if out is None else out.copy_(result)


def gumbel(sample_keys: Tensor, vocab: int) -> Tensor:
    """Gumbel(0, 1) noise, float32 [rows, vocab]: Philox4x32-10 with the counters of `csrc/refusion/philox.h`."""
    keys = sample_keys.to(torch.int64).cpu()
    word = 0xFFFFFFFF
    blocks = torch.arange((vocab + 3) // 4, dtype=torch.int64)
    c0 = blocks[None].expand(len(keys), -1)
    c1, c2, c3 = ((keys[:, i : i + 1] & word).expand_as(c0) for i in (2, 3, 1))
    k0, k1 = keys[:, :1] & word, (keys[:, :1] >> 32) & word
    for _ in range(10):
        p0_high, p0_low = _multiply_words(0xD2511F53, c0)
        p1_high, p1_low = _multiply_words(0xCD9E8D57, c2)
        c0, c1, c2, c3 = p1_high ^ c1 ^ k0, p1_low, p0_high ^ c3 ^ k1, p0_low
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    words = torch.stack((c0, c1, c2, c3), -1).reshape(len(keys), -1)[:, :vocab]
    uniform = ((words >> 9).float() + 0.5) * 2.0**-23
    return -(-uniform.log()).log()


def select_slots(
    scores: Tensor,
    slot_offsets: Tensor,
    sequence_offsets: Tensor,
    threshold: float,
    *,
    rule: str = "first",
    out: SlotSelection | None = None,
) -> SlotSelection:
    """`refusion_ext.select_slots`."""
    if rule not in SLOT_RULES:
        raise ValueError(f"select_slots: rule must be one of {', '.join(SLOT_RULES)}, got {rule!r}")
    slots, sequences = len(slot_offsets) - 1, len(sequence_offsets) - 1
    reduce = {"first": lambda s: s[0], "mean": lambda s: s.mean(), "minimum": lambda s: s.min()}[rule]
    wide = torch.where(scores.isnan(), -torch.inf, _wide(scores))
    confidence = wide.new_full((slots,), -torch.inf)
    bounds = slot_offsets.tolist()
    for slot in range(slots):
        if bounds[slot + 1] > bounds[slot]:
            confidence[slot] = reduce(wide[bounds[slot] : bounds[slot + 1]])
    chosen = torch.full((slots,), -1, dtype=torch.int32)
    counts = torch.zeros(sequences, dtype=torch.int32)
    for n, (begin, end) in enumerate(_ranges(sequence_offsets)):
        if begin == end:
            continue
        mine = confidence[begin:end]
        picked = (mine > threshold).nonzero().flatten()
        if not len(picked):
            picked = mine.argmax()[None]
        chosen[begin : begin + len(picked)] = picked.to(torch.int32).cpu()
        counts[n] = len(picked)
    device = scores.device
    return _deliver(SlotSelection(chosen.to(device), counts.to(device), confidence), out, scores.dtype)


def accept_tokens(
    probability: Tensor,
    token: Tensor,
    slot_offsets: Tensor,
    accepted_before: Tensor,
    sequence_offsets: Tensor,
    threshold: float,
    *,
    eos_token_ids: Tensor | None = None,
    out: Acceptance | None = None,
) -> Acceptance:
    """`refusion_ext.accept_tokens`."""
    above = (probability > threshold).tolist()
    tokens, before = token.tolist(), accepted_before.tolist()
    eos_ids = set(eos_token_ids.tolist()) if eos_token_ids is not None else set()
    accepted, eos = [], []
    slots = list(_ranges(slot_offsets))
    for (begin, end), free in zip(slots, before, strict=True):
        count = next((j for j in range(end - begin) if j > free and not above[begin + j]), end - begin)
        accepted.append(count)
        eos.append(next((j for j in range(count) if tokens[begin + j] in eos_ids), -1))
    run = []
    for first, last in _ranges(sequence_offsets):
        length = 0
        for slot in range(first, last):
            length += accepted[slot]
            if accepted[slot] < slots[slot][1] - slots[slot][0]:
                break
        run.append(length)
    device = probability.device
    result = Acceptance(*(torch.tensor(x, dtype=torch.int32, device=device) for x in (accepted, eos, run)))
    return _deliver(result, out, probability.dtype)


def rope_append(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cosine: Tensor,
    sine: Tensor,
    position_ids: Tensor,
    rows: Tensor,
    sequence_offsets: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    norm_epsilon: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:
    """`refusion_ext.rope_append`."""
    kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    tokens = len(qkv)
    q_heads = qkv.shape[1] // head_dim - 2 * kv_heads
    q, k, v = _wide(qkv).view(tokens, q_heads + 2 * kv_heads, head_dim).split((q_heads, kv_heads, kv_heads), 1)
    positions = position_ids.long()
    cos, sin = (torch.cat((t[positions], t[positions]), -1)[:, None].to(q.dtype) for t in (cosine, sine))

    def rotate(x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            x = _normed(x, weight, norm_epsilon)
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    q, k = rotate(q, q_norm), rotate(k, k_norm)
    sequence = _sequence_of_tokens(sequence_offsets, tokens).to(qkv.device)
    k_cache[sequence, :, rows.long()] = k.to(k_cache.dtype)
    v_cache[sequence, :, rows.long()] = v.to(v_cache.dtype)
    if out is None:
        return q.to(qkv.dtype)
    return out.copy_(q)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    sequence_offsets: Tensor,
    committed: Tensor,
    window_begin: Tensor,
    window_end: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`refusion_ext.attend`."""
    _, q_heads, head_dim = q.shape
    group = q_heads // k_cache.shape[1]
    scale = head_dim**-0.5 if scale is None else scale
    result = torch.zeros_like(_wide(q), memory_format=torch.contiguous_format)
    for n, (begin, end) in enumerate(_ranges(sequence_offsets)):
        prefix = int(committed[n])
        for t in range(begin, end):
            window = range(prefix + int(window_begin[t]), prefix + int(window_end[t]))
            seen = list(range(prefix)) + list(window)
            if not seen:
                continue
            k = _wide(k_cache[n, :, seen]).repeat_interleave(group, 0)  # [q_heads, seen, head_dim]
            v = _wide(v_cache[n, :, seen]).repeat_interleave(group, 0)
            weights = ((k @ _wide(q[t])[..., None])[..., 0] * scale).softmax(-1)
            result[t] = (weights[:, None] @ v)[:, 0]
    return result.to(q.dtype) if out is None else out.copy_(result)


def compact_rows(cache: Tensor, sources: Tensor, source_offsets: Tensor, destination: Tensor) -> None:
    """`refusion_ext.compact_rows`."""
    for n, (begin, end) in enumerate(_ranges(source_offsets)):
        mine, first = cache[..., n, :, :, :], int(destination[n])
        mine[..., first : first + end - begin, :] = mine[..., sources[begin:end].long(), :].clone()


def _normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * _wide(weight)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _ranges(offsets: Tensor) -> Iterator[tuple[int, int]]:
    return pairwise(offsets.tolist())


def _sequence_of_tokens(offsets: Tensor, tokens: int) -> Tensor:
    lengths = (offsets[1:] - offsets[:-1]).long().cpu()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths, output_size=tokens)


def _multiply_words(constant: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of constant * x in int64 arithmetic, which would overflow in one multiplication."""
    low = constant * (x & 0xFFFF)
    high = constant * (x >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def _deliver(result: Any, out: Any, dtype: torch.dtype) -> Any:
    """Round float results to float32 (or keep float64) and place them in `out` where given."""
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    result = type(result)(*(x.to(wanted) if x.is_floating_point() else x for x in result))
    if out is None:
        return result
    for target, value in zip(out, result, strict=True):
        if target is not None:
            target.copy_(value)
    return out

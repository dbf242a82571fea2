"""The eager functions.

Arrays are torch tensors, numpy or JAX arrays, or anything else that speaks DLPack; all of a call lie on one device.
Results are allocated in the framework of the first array unless `out` is given. JAX arrays cannot be written, so they
are no `out` and no cache; where JAX has no int64, numpy arrays do for token ids. Nothing is copied and nothing waits
for a device; on the CPU the calling thread runs the kernel without the GIL.

Wrong arguments raise before anything is written: `TypeError` for what is no usable array or has the wrong dtype (also:
read-only where written, requires grad while grad mode is on), `ValueError` for shapes, strides, devices, overlapping
memory and, on the CPU, for values such as offsets and cache rows. The message names the op, the argument, what was
expected and what came.

On a CUDA device the kernel goes to the stream that is current in the framework of the first array (the legacy default
stream for one that speaks DLPack capsules only), and what workspace it needs comes from that framework's allocator, so
that a call can be captured into a CUDA graph; call each op once before capturing, since its code is loaded then. Where
the kernels cannot run (not built, no driver, another architecture) a call raises `CudaUnavailableError`.

What each op means is said by the function of the same name in `refusion_ext.reference`, which also runs on devices of
other kinds.
"""

from __future__ import annotations

from typing import Any

from . import _C
from .arrays import deliver, empty, empty_like
from .results import Acceptance, SlotSelection, TokenScores


def score_tokens(
    logits: Any,
    *,
    given: Any | None = None,
    suppressed: Any | None = None,
    temperature: float = 0.0,
    sample_keys: Any | None = None,
    out: TokenScores | None = None,
) -> TokenScores:
    """Chooses one token a row and scores it, in one pass over the logits.

    Args:
        logits: float32, bfloat16 or float16 [rows, vocab]; rows may lie apart, the last axis is contiguous. NaN counts
            as minus infinity.
        given: int64 [rows], ids to score instead of choosing; a negative entry chooses in its row.
        suppressed: int32 [ids] (for every row) or [rows, ids]: ids that cannot be chosen. They stay in the normaliser,
            so that probabilities do not change. Entries outside of the vocabulary are padding.
        temperature: 0 takes the arg-max (the lowest id wins ties), above 0 samples by Gumbel-max.
        sample_keys: int64 [rows, 4]: seed, sequence, position, round. All that the noise of a row depends on; needed
            when temperature > 0.
        out: arrays to write to; its entropy and margin may be None.

    Returns:
        `TokenScores`. Probabilities are those of temperature 1, computed in float32.

    Source: ReFusion (arXiv 2512.13586), section 3.2; noise: Philox4x32-10 (Salmon et al., SC'11).
    """
    allocated = out is None
    if out is None:
        out = _token_scores(logits)
    try:
        _C.score_tokens(logits, given, suppressed, temperature, sample_keys, *_fields("score_tokens", out, TokenScores))
    except _C.NoKernel:
        from . import reference

        choice: dict[str, Any] = {"given": given, "suppressed": suppressed}
        choice |= {"temperature": temperature, "sample_keys": sample_keys}
        return reference.score_tokens(logits, **choice, out=out)
    return deliver(out, logits) if allocated else out


def score_hidden(
    hidden: Any,
    weight: Any,
    *,
    given: Any | None = None,
    suppressed: Any | None = None,
    temperature: float = 0.0,
    sample_keys: Any | None = None,
    out: TokenScores | None = None,
) -> TokenScores:
    """`score_tokens` of `hidden @ weight.T`, streamed over the vocabulary: the logits never exist in memory.

    Args:
        hidden: float32, bfloat16 or float16 [rows, width], last axis contiguous.
        weight: same dtype [vocab, width], the LM head, last axis contiguous.
        given, suppressed, temperature, sample_keys, out: as in `score_tokens`.

    Returns:
        `TokenScores`. Products are summed in float32 and the logits are not rounded to the dtype in between.

    Source: ReFusion (arXiv 2512.13586), section 3.2.
    """
    allocated = out is None
    if out is None:
        out = _token_scores(hidden)
    fields = _fields("score_hidden", out, TokenScores)
    try:
        _C.score_hidden(hidden, weight, given, suppressed, temperature, sample_keys, *fields)
    except _C.NoKernel:
        from . import reference

        choice: dict[str, Any] = {"given": given, "suppressed": suppressed}
        choice |= {"temperature": temperature, "sample_keys": sample_keys}
        return reference.score_hidden(hidden, weight, **choice, out=out)
    return deliver(out, hidden) if allocated else out


def linear(
    x: Any,
    weight: Any,
    *,
    bias: Any | None = None,
    norm: Any | None = None,
    norm_epsilon: float = 1e-6,
    gated: bool = False,
    residual: Any | None = None,
    out: Any | None = None,
) -> Any:
    """`residual + rms_norm(x, norm) @ weight.T + bias`, or with `silu(gate) * up` in place of the norm.

    For few rows, as a decoding step has: the weight is read once. For the CPU; on other devices it is the oracle, and
    the framework's own product is the better choice. A row's result does not depend on how many or what other rows
    there are.

    Args:
        x: float32, bfloat16 or float16 [rows, width], last axis contiguous; [rows, 2 * width], gate beside up, if
            gated. Above 64 rows the weight is read again for every 64.
        weight: same dtype [outputs, width], last axis contiguous.
        bias: same dtype [outputs], or None.
        norm: same dtype [width], weight of an RMS norm of the rows of x; None: no norm.
        norm_epsilon: of the RMS norm.
        gated: whether x is gate and up of a SwiGLU; then without norm.
        residual: same dtype [rows, outputs], last axis contiguous, or None. May be `out`.
        out: contiguous array to write to.

    Returns:
        [rows, outputs]; summed in float32 and rounded once.

    Source: Zhang and Sennrich, RMSNorm (arXiv 1910.07467); Shazeer, GLU Variants (arXiv 2002.05202).
    """
    allocated = out is None
    if out is None:
        out = empty_like(x, _product_shape(x, weight))
    try:
        _C.linear(x, weight, bias, norm, norm_epsilon, gated, residual, out)
    except _C.NoKernel:
        from . import reference

        choice: dict[str, Any] = {"bias": bias, "residual": residual}
        choice |= {"norm": norm, "norm_epsilon": norm_epsilon, "gated": gated}
        return reference.linear(x, weight, **choice, out=out)
    return deliver(out, x) if allocated else out


def select_slots(
    scores: Any,
    slot_offsets: Any,
    sequence_offsets: Any,
    threshold: float,
    *,
    rule: str = "first",
    out: SlotSelection | None = None,
) -> SlotSelection:
    """Which slots of each sequence to write now: all whose confidence is above the threshold, else the single best.

    Args:
        scores: float32 [tokens], one for each token of a slot (a probability, minus an entropy, a margin). NaN counts
            as minus infinity.
        slot_offsets: int32 [slots + 1], token range of each slot.
        sequence_offsets: int32 [sequences + 1], slot range of each sequence.
        threshold: compared in float32; a confidence equal to it is not above it.
        rule: confidence of a slot: "first" (the score of its first token, the paper's), "mean" or "minimum".
        out: arrays to write to.

    Returns:
        `SlotSelection`: indices within the sequence, ascending, at least one for a sequence that has slots.

    Source: ReFusion (arXiv 2512.13586), section 3.2, the planning step.
    """
    allocated = out is None
    if out is None:
        slots, sequences = _count(slot_offsets), _count(sequence_offsets)
        chosen, counts = empty((slots,), "int32", scores), empty((sequences,), "int32", scores)
        out = SlotSelection(chosen, counts, empty((slots,), "float32", scores))
    fields = _fields("select_slots", out, SlotSelection)
    try:
        _C.select_slots(scores, slot_offsets, sequence_offsets, threshold, rule, *fields)
    except _C.NoKernel:
        from . import reference

        return reference.select_slots(scores, slot_offsets, sequence_offsets, threshold, rule=rule, out=out)
    return deliver(out, scores) if allocated else out


def accept_tokens(
    probability: Any,
    token: Any,
    slot_offsets: Any,
    accepted_before: Any,
    sequence_offsets: Any,
    threshold: float,
    *,
    eos_token_ids: Any | None = None,
    out: Acceptance | None = None,
) -> Acceptance:
    """Which drafted tokens survive verification.

    Tokens 0 .. accepted_before of a slot stay whatever their probability; each later one stays when its probability is
    above the threshold and its predecessor stays.

    Args:
        probability: float32 [tokens], of each draft given its predecessors.
        token: int64 [tokens], the drafts.
        slot_offsets: int32 [slots + 1], token range of each slot.
        accepted_before: int32 [slots], tokens accepted by earlier rounds (0 in the first).
        sequence_offsets: int32 [sequences + 1], slot range of each sequence.
        threshold: compared in float32; a probability equal to it is not above it.
        eos_token_ids: int64 [ids], or None.
        out: arrays to write to.

    Returns:
        `Acceptance`.

    Source: ReFusion (arXiv 2512.13586), section 3.2, the infilling step.
    """
    allocated = out is None
    if out is None:
        slots, sequences = _count(slot_offsets), _count(sequence_offsets)
        out = Acceptance(*(empty((n,), "int32", probability) for n in (slots, slots, sequences)))
    arrays = (probability, token, slot_offsets, accepted_before, sequence_offsets)
    try:
        _C.accept_tokens(*arrays, threshold, eos_token_ids, *_fields("accept_tokens", out, Acceptance))
    except _C.NoKernel:
        from . import reference

        return reference.accept_tokens(*arrays, threshold, eos_token_ids=eos_token_ids, out=out)
    return deliver(out, probability) if allocated else out


def rope_append(
    qkv: Any,
    q_norm: Any | None,
    k_norm: Any | None,
    cosine: Any,
    sine: Any,
    position_ids: Any,
    rows: Any,
    sequence_offsets: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    norm_epsilon: float = 1e-6,
    out: Any | None = None,
) -> Any:
    """Splits packed heads, norms and rotates q and k, and writes k and v to their cache rows, in one pass.

    Args:
        qkv: float32, bfloat16 or float16 [tokens, (q_heads + 2 * kv_heads) * head_dim]: q heads, k heads, v heads; last
            axis contiguous.
        q_norm, k_norm: same dtype [head_dim], RMS norm weights (Qwen3); both None: no norm.
        cosine, sine: float32 [positions, head_dim / 2]; dimension i turns with i + head_dim / 2 (Hugging Face layout).
        position_ids: int32 [tokens], original positions, in any order.
        rows: int32 [tokens], cache row of each token, distinct within a sequence.
        sequence_offsets: int32 [sequences + 1], token range of each sequence of the cache.
        k_cache, v_cache: same dtype [sequences, kv_heads, capacity, head_dim], last axis contiguous; written in place.
            head_dim is a multiple of 8 up to 256.
        norm_epsilon: of the RMS norm.
        out: contiguous array to write q to.

    Returns:
        q, [tokens, q_heads, head_dim].

    Source: ReFusion (arXiv 2512.13586), section 3.2: cached keys keep the rotation of their original position.
    """
    if out is None:
        out = empty_like(qkv, _q_shape(qkv, k_cache))
    arrays = (qkv, q_norm, k_norm, cosine, sine, position_ids, rows, sequence_offsets, k_cache, v_cache)
    try:
        _C.rope_append(*arrays, norm_epsilon, out)
    except _C.NoKernel:
        from . import reference

        return reference.rope_append(*arrays, norm_epsilon=norm_epsilon, out=out)
    return out


def attend(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    sequence_offsets: Any,
    committed: Any,
    window_begin: Any,
    window_end: Any,
    *,
    scale: float | None = None,
    out: Any | None = None,
) -> Any:
    """Attention in which every query sees all committed rows of its sequence and one window of provisional rows.

    Args:
        q: float32, bfloat16 or float16 [tokens, q_heads, head_dim], last axis contiguous; head_dim is a multiple of 8
            up to 256.
        k_cache, v_cache: same dtype [sequences, kv_heads, capacity, head_dim], last axis contiguous; q_heads is a
            multiple of kv_heads.
        sequence_offsets: int32 [sequences + 1], token range of each sequence of the cache.
        committed: int32 [sequences], rows 0 .. committed are seen by every token of the sequence.
        window_begin, window_end: int32 [tokens], provisional rows [begin, end), counted from `committed`; begin >= end:
            none. A causal chunk has begin 0 and end 1 + the token's index in the chunk.
        scale: of the scores; None: head_dim ** -0.5.
        out: contiguous array to write to.

    Returns:
        [tokens, q_heads, head_dim]; zeros for a query that sees nothing.

    Source: ReFusion (arXiv 2512.13586), section 3.2: causal attention over rows in order of generation.
    """
    allocated = out is None
    if out is None:
        out = empty_like(q)
    try:
        _C.attend(q, k_cache, v_cache, sequence_offsets, committed, window_begin, window_end, scale, out)
    except _C.NoKernel:
        from . import reference

        windows = (sequence_offsets, committed, window_begin, window_end)
        return reference.attend(q, k_cache, v_cache, *windows, scale=scale, out=out)
    return deliver(out, q) if allocated else out


def compact_rows(cache: Any, sources: Any, source_offsets: Any, destination: Any) -> None:
    """Moves kept cache rows down, in place: all layers, keys and values of all sequences in one call.

    Args:
        cache: float32, bfloat16 or float16 [layers, 2, sequences, kv_heads, capacity, head_dim], or one plane of it:
            [sequences, kv_heads, capacity, head_dim]; any strides, but the last axis is contiguous.
        sources: int32 [rows], kept rows: strictly increasing within a sequence and never below their destination, which
            is what makes the move safe.
        source_offsets: int32 [sequences + 1], range of each sequence in `sources`.
        destination: int32 [sequences], row where the first kept row goes; the others follow.

    Source: ReFusion (arXiv 2512.13586), section 3.2: finished slots move in front of the remaining masks.
    """
    try:
        _C.compact_rows(cache, sources, source_offsets, destination)
    except _C.NoKernel:
        from . import reference

        reference.compact_rows(cache, sources, source_offsets, destination)


def _fields(op: str, out: Any, kind: type) -> Any:
    if type(out) is not kind:
        raise TypeError(f"{op}: out must be a {kind.__name__}, got {type(out).__name__}")
    return out


# Sizes of results. The arguments are not checked yet: any answer does for wrong ones, since the op then refuses them.


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(getattr(array, "shape", ()))


def _count(offsets: Any) -> int:
    shape = _shape(offsets)
    return max(shape[0] - 1, 0) if shape else 0


def _token_scores(like: Any) -> TokenScores:
    rows = _shape(like)[:1] or (0,)
    return TokenScores(empty(rows, "int64", like), *(empty(rows, "float32", like) for _ in range(4)))


def _product_shape(x: Any, weight: Any) -> tuple[int, int]:
    rows, outputs = _shape(x), _shape(weight)
    return (rows[0], outputs[0]) if rows and outputs else (0, 0)


def _q_shape(qkv: Any, k_cache: Any) -> tuple[int, int, int]:
    packed, cache = _shape(qkv), _shape(k_cache)
    if len(packed) != 2 or len(cache) != 4 or not cache[3]:
        return (0, 0, 0)
    return packed[0], max(packed[1] // cache[3] - 2 * cache[1], 0), cache[3]

"""The compiled module: positional arguments, arrays that speak DLPack. Use the functions of refusion_ext."""

from typing import Any

__version__: str

class NoKernel(NotImplementedError): ...
class CudaUnavailableError(RuntimeError): ...

def score_tokens(
    logits: Any,
    given: Any | None,
    suppressed: Any | None,
    temperature: float,
    sample_keys: Any | None,
    token: Any,
    probability: Any,
    log_sum_exp: Any,
    entropy: Any | None,
    margin: Any | None,
    /,
) -> None: ...
def score_hidden(
    hidden: Any,
    weight: Any,
    given: Any | None,
    suppressed: Any | None,
    temperature: float,
    sample_keys: Any | None,
    token: Any,
    probability: Any,
    log_sum_exp: Any,
    entropy: Any | None,
    margin: Any | None,
    /,
) -> None: ...
def linear(
    x: Any,
    weight: Any,
    bias: Any | None,
    norm: Any | None,
    norm_epsilon: float,
    gated: bool,
    residual: Any | None,
    out: Any,
    /,
) -> None: ...
def select_slots(
    scores: Any,
    slot_offsets: Any,
    sequence_offsets: Any,
    threshold: float,
    rule: str,
    chosen: Any,
    counts: Any,
    confidence: Any,
    /,
) -> None: ...
def accept_tokens(
    probability: Any,
    token: Any,
    slot_offsets: Any,
    accepted_before: Any,
    sequence_offsets: Any,
    threshold: float,
    eos_token_ids: Any | None,
    accepted: Any,
    eos: Any,
    run: Any,
    /,
) -> None: ...
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
    norm_epsilon: float,
    out: Any,
    /,
) -> None: ...
def attend(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    sequence_offsets: Any,
    committed: Any,
    window_begin: Any,
    window_end: Any,
    scale: float | None,
    out: Any,
    /,
) -> None: ...
def compact_rows(cache: Any, sources: Any, source_offsets: Any, destination: Any, /) -> None: ...
def isa_compiled() -> list[str]: ...
def isa_found() -> str: ...
def isa_in_use() -> str: ...
def threads() -> int: ...
def cuda_build() -> tuple[bool, str, str, str]: ...

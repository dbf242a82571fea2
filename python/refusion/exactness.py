"""Is the cache exact? An oracle that recomputes every committed row from scratch and compares.

A row is a token's key and value as computed when it was written: behind the rows that it saw then. A recording cache
remembers who saw whom (`History`); `deviation` runs all recorded rows through the dense model in one pass with exactly
that visibility.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import DenseAttention
from .cache import KVCache
from .decoding.api import prepare
from .decoding.config import SamplingConfig
from .history import Row
from .model import Qwen3


def deviation(model: Qwen3, cache: KVCache, sequence: int) -> float:
    """Largest absolute difference between the committed rows of a sequence and their recomputation.

    Raises `ValueError` when the cache does not record.
    """
    if cache.histories is None:
        raise ValueError("deviation: the cache does not record (KVCache(..., record=True))")
    committed = cache.histories[sequence].rows[: cache.committed[sequence]]
    if not committed:
        return 0.0
    order = _with_ancestors(committed)
    place = {id(row): i for i, row in enumerate(order)}
    visible = torch.eye(len(order), dtype=torch.bool)
    for i, row in enumerate(order):
        visible[i, [place[id(other)] for other in row.seen]] = True

    class Recompute(DenseAttention):
        def __call__(self, layer: int, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
            heads = model.config.num_attention_heads, model.config.num_key_value_heads
            _, k, v = (
                qkv.unflatten(-1, (-1, model.config.head_dim)).transpose(1, 2).split((heads[0], *heads[1:] * 2), 1)
            )
            at = torch.tensor([place[id(row)] for row in committed])
            for fresh, kept in ((self._rotate(k, k_norm), cache.layers[layer][0]), (v, cache.layers[layer][1])):
                difference = fresh[0, :, at].float() - kept[sequence, :, : len(committed)].float()
                worst.append(difference.abs().max().item())
            return super().__call__(layer, qkv, q_norm, k_norm)

    worst: list[float] = []
    positions = torch.tensor([[row.position for row in order]], device=model.device)
    with torch.inference_mode():
        attention = Recompute(model.config, positions, visible[None, None].to(model.device))
        model.hidden(torch.tensor([[row.token for row in order]], device=model.device), attention)
    return max(worst)


def check_exactness(model: Qwen3, prompt_ids: Sequence[int], config: SamplingConfig | None = None) -> float:
    """Decodes a prompt like `generate` and returns the largest deviation of its final cache.

    In float32 it is a few 1e-6; a stale, misplaced or wrongly visible row shows as something of the size of the rows.
    Masked diffusion keeps no rows, so there is nothing to check: `ValueError`.
    """
    engine, decoders = prepare(model, [list(prompt_ids)], config, record=True)
    for _ in engine.run(decoders):
        pass
    return deviation(model, engine.cache, 0)


def _with_ancestors(rows: Sequence[Row]) -> list[Row]:
    """The rows and all that they saw, directly or not, each behind what it saw."""
    order: list[Row] = []
    done: set[int] = set()
    stack = list(reversed(rows))
    while stack:
        row = stack[-1]
        missing = [other for other in row.seen if id(other) not in done]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if id(row) not in done:
            done.add(id(row))
            order.append(row)
    return order

"""One forward of a few tokens at a model's shapes, against reading everything it needs once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import refusion_ext
from refusion.attention import CachedAttention
from refusion.cache import KVCache, Retain
from refusion.model import ModelConfig

from .decode import random_model
from .machine import Machine
from .timing import interleave


@dataclass(frozen=True, slots=True)
class ForwardTiming:
    tokens: int
    prefix: int
    seconds: float
    """Median, LM head and scoring of every token included."""
    bytes: int
    """Of the weights (each once) and of the prefix's keys and values."""
    floor: float
    """Seconds to read them at the bandwidth measured in the same run."""

    def lines(self) -> list[str]:
        return [
            "| forward | median ms | bytes it must read | at measured bandwidth, ms | times that |",
            "|---|---:|---:|---:|---:|",
            f"| {self.tokens} tokens after {self.prefix} | {1e3 * self.seconds:.1f} | {self.bytes / 1e6:.0f} MB "
            f"| {1e3 * self.floor:.1f} | {self.seconds / self.floor:.2f} |",
        ]


@torch.inference_mode()
def measure(
    config: ModelConfig, machine: Machine, seconds: float, *, tokens: int = 16, prefix: int = 1024
) -> ForwardTiming:
    """Random bfloat16 weights; the chunk is causal, as verifying slots is."""
    model = random_model(config, torch.bfloat16)
    cache = KVCache(config, 1, prefix + tokens, torch.bfloat16)
    cache.rows.normal_()
    cache.append(0, prefix)
    cache.retain({0: Retain(prefix, [], prefix)})
    ids, positions = torch.arange(tokens), torch.arange(prefix, prefix + tokens)

    def forward() -> object:
        hidden = model.hidden(ids, CachedAttention(cache, cache.chunk(ids, positions, 0)))
        scores = refusion_ext.score_hidden(model.normed(hidden), model.head_weight)
        cache.retain({0: Retain(0, [], 0)})
        return scores

    timing = interleave({"forward": forward}, seconds)["forward"]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    rows = 2 * config.num_hidden_layers * config.num_key_value_heads * prefix * config.head_dim * 2
    return ForwardTiming(
        tokens, prefix, timing.median, weights + rows, (weights + rows) / machine.read[max(machine.read)]
    )

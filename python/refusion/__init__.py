"""ReFusion: a masked diffusion language model that writes slots of tokens in parallel (arXiv 2512.13586).

>>> model = refusion.load("path/to/checkpoint")
>>> result = refusion.generate(model, prompt_ids, refusion.DecodeConfig(max_new_tokens=128))
>>> result.tokens, result.stats.tokens_per_forward
"""

from .checkpoint import CheckpointError, load, save
from .decoding import ARConfig, DecodeConfig, Event, MDMConfig, Result, Stats, generate, stream
from .model import ModelConfig, Qwen3, UnsupportedModelError

__all__ = [
    "ARConfig",
    "CheckpointError",
    "DecodeConfig",
    "Event",
    "MDMConfig",
    "ModelConfig",
    "Qwen3",
    "Result",
    "Stats",
    "UnsupportedModelError",
    "generate",
    "load",
    "save",
    "stream",
]

"""ReFusion: a masked diffusion language model that writes slots of tokens in parallel (arXiv 2512.13586).

>>> model = refusion.load("path/to/checkpoint")
>>> result = refusion.generate(model, prompt_ids, refusion.DecodeConfig(max_new_tokens=128))
>>> result.tokens, result.stats.tokens_per_forward
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import KVCache
    from .checkpoint import CheckpointError, load, save
    from .decoding import ARConfig, DecodeConfig, Event, MDMConfig, Result, Stats, generate, stream
    from .exactness import check_exactness
    from .model import ModelConfig, Qwen3, UnsupportedModelError
    from .tokenizer import Tokenizer

__all__ = [
    "ARConfig",
    "CheckpointError",
    "DecodeConfig",
    "Event",
    "KVCache",
    "MDMConfig",
    "ModelConfig",
    "Qwen3",
    "Result",
    "Stats",
    "Tokenizer",
    "UnsupportedModelError",
    "check_exactness",
    "generate",
    "load",
    "save",
    "stream",
]

# Loaded at first use, so that `refusion --help` does not wait for torch.
_HOMES = {
    "cache": ("KVCache",),
    "checkpoint": ("CheckpointError", "load", "save"),
    "decoding": ("ARConfig", "DecodeConfig", "Event", "MDMConfig", "Result", "Stats", "generate", "stream"),
    "exactness": ("check_exactness",),
    "model": ("ModelConfig", "Qwen3", "UnsupportedModelError"),
    "tokenizer": ("Tokenizer",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f".{home}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Exact match on held-out items, decoded as a user would."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..decoding import generate
from ..decoding.api import CONFIGS
from ..decoding.config import SamplingConfig
from ..model import Qwen3
from .config import TrainConfig
from .data import Dataset


@dataclass(frozen=True)
class Score:
    """Of one evaluation."""

    exact: float
    """Share of items whose answer equals the given one, token by token up to EOS."""
    tokens_per_forward: float
    samples: int


class HeldOut:
    """Prompts and answers, and how to decode them. The longest answer decides `max_new_tokens`, for every item."""

    def __init__(self, data: Dataset, config: TrainConfig, eos_token_ids: tuple[int, ...]) -> None:
        chosen = range(min(len(data), config.eval_samples))
        self.prompts = [data.prompt(i) for i in chosen]
        self.answers = [_to_end(data.answer(i), eos_token_ids) for i in chosen]
        self.eos_token_ids = eos_token_ids
        longest = max(len(data.answer(i)) for i in chosen)
        multiple = config.answer_multiple
        settings = {"max_new_tokens": -(-longest // multiple) * multiple} | config.eval_settings
        try:
            self.decode: SamplingConfig = CONFIGS[config.objective](**settings)
        except TypeError as error:
            raise ValueError(f"eval_settings: {error}") from None

    @torch.no_grad()
    def score(self, model: Qwen3) -> Score:
        results = generate(model, self.prompts, self.decode)
        right = sum(_to_end(r.tokens, self.eos_token_ids) == a for r, a in zip(results, self.answers, strict=True))
        forwards = sum(r.stats.forwards for r in results)
        return Score(right / len(results), sum(r.stats.tokens for r in results) / max(forwards, 1), len(results))


def _to_end(tokens: list[int], eos_token_ids: tuple[int, ...]) -> list[int]:
    end = next((i for i, token in enumerate(tokens) if token in eos_token_ids), len(tokens))
    return tokens[:end]

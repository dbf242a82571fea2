"""Decodes items and counts what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..decoding import Result, generate
from ..decoding.config import SamplingConfig
from ..model import Qwen3
from ..tokenizer import Tokenizer
from .items import Item


@dataclass(frozen=True)
class Answered:
    """The answer to one item."""

    text: str
    tokens: int
    """Tokens of the text: EOS, fill and other special tokens do not count."""
    forwards: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """Of many answers."""

    items: int
    accuracy: float
    error: float
    """Standard error of the accuracy."""
    tokens: int
    tokens_per_forward: float
    tokens_per_second: float
    seconds: float


def decode_items(
    model: Qwen3, tokenizer: Tokenizer, items: Sequence[Item], config: SamplingConfig, *, batch_size: int = 1
) -> list[Answered]:
    """Answers all items, `batch_size` of them at a time; the seconds of a batch are shared evenly by its items."""
    answered: list[Answered] = []
    for first in range(0, len(items), batch_size):
        prompts = [tokenizer.prompt(item.query) for item in items[first : first + batch_size]]
        began = time.perf_counter()
        with torch.inference_mode():
            results = generate(model, prompts, config, batch_size=batch_size)
        seconds = (time.perf_counter() - began) / len(prompts)
        answered += [_answered(tokenizer, result, seconds) for result in results]
    return answered


def summarise(answers: Sequence[Answered], right: Sequence[bool]) -> Summary:
    """Accuracy and speed; `right[i]` says whether `answers[i]` is."""
    count, tokens = len(answers), sum(a.tokens for a in answers)
    forwards, seconds = sum(a.forwards for a in answers), sum(a.seconds for a in answers)
    accuracy = sum(right) / count
    error = (accuracy * (1 - accuracy) / count) ** 0.5
    return Summary(count, accuracy, error, tokens, tokens / max(forwards, 1), tokens / max(seconds, 1e-9), seconds)


def _answered(tokenizer: Tokenizer, result: Result, seconds: float) -> Answered:
    written = sum(token not in tokenizer.special_ids for token in result.tokens)
    return Answered(tokenizer.decode(result.tokens), written, result.stats.forwards, seconds)

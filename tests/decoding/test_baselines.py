"""Autoregressive and masked diffusion decoding against plain loops over the dense model."""

from __future__ import annotations

import pytest
import torch

import refusion
from refusion.attention import DenseAttention

PROMPT = list(b"def compare(self, a, b):\n")
MASK = 258


def dense_probabilities(model: refusion.Qwen3, tokens: list[int], bidirectional: bool) -> torch.Tensor:
    positions = torch.arange(len(tokens))[None]
    visible = torch.ones(1, 1, len(tokens), len(tokens), dtype=torch.bool) if bidirectional else None
    with torch.no_grad():
        return model(torch.tensor([tokens]), DenseAttention(model.config, positions, visible))[0].softmax(-1)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_autoregressive(model: refusion.Qwen3, length: int) -> None:
    expected = list(PROMPT)
    for _ in range(length):
        p = dense_probabilities(model, expected, bidirectional=False)[-1]
        p[MASK] = 0
        expected.append(int(p.argmax()))
    result = refusion.generate(model, PROMPT, refusion.ARConfig(max_new_tokens=length, eos_token_ids=()))
    assert PROMPT + result.tokens == expected
    assert result.stats.forwards == length
    assert result.stats.computed_tokens == len(PROMPT) + length - 1


def test_autoregressive_ends_at_eos(model: refusion.Qwen3) -> None:
    free = refusion.generate(model, PROMPT, refusion.ARConfig(max_new_tokens=20, eos_token_ids=()))
    end = free.tokens[11]
    result = refusion.generate(model, PROMPT, refusion.ARConfig(max_new_tokens=20, eos_token_ids=(end,)))
    assert result.tokens == free.tokens[: free.tokens.index(end) + 1]
    assert result.finished


@pytest.mark.parametrize(
    "settings",
    [{}, {"steps": 6}, {"threshold": 0.4}, {"threshold": 0.4, "block_size": 8}, {"steps": 7, "block_size": 7}],
)
def test_masked(model: refusion.Qwen3, settings: dict) -> None:
    length = 24
    shown: list[int | None] = [None] * length
    block = settings.get("block_size", length)
    forwards = 0
    for begin in range(0, length, block):
        members = range(begin, min(begin + block, length))
        steps = -(-len(members) * settings.get("steps", length) // length)
        while any(shown[p] is None for p in members):
            p = dense_probabilities(model, PROMPT + [MASK if t is None else t for t in shown], bidirectional=True)
            forwards += 1
            p[:, MASK] = 0
            best = {i: p[len(PROMPT) + i].max(0) for i in members if shown[i] is None}
            order = sorted(best, key=lambda i: -best[i].values.item())
            if "threshold" in settings:
                chosen = [i for i in order if best[i].values > settings["threshold"]] or order[:1]
            else:
                chosen = order[: -(-len(order) // max(steps, 1))]
                steps -= 1
            for i in chosen:
                shown[i] = int(best[i].indices)
    result = refusion.generate(model, PROMPT, refusion.MDMConfig(max_new_tokens=length, eos_token_ids=(), **settings))
    assert result.tokens == shown
    assert result.stats.forwards == forwards


def test_masked_answer_ends_at_the_first_eos(model: refusion.Qwen3) -> None:
    free = refusion.generate(model, PROMPT, refusion.MDMConfig(max_new_tokens=24, threshold=0.4, eos_token_ids=()))
    end = free.tokens[10]
    result = refusion.generate(
        model, PROMPT, refusion.MDMConfig(max_new_tokens=24, threshold=0.4, eos_token_ids=(end,))
    )
    assert result.tokens == free.tokens[: free.tokens.index(end) + 1]


def test_batches_of_the_baselines(model: refusion.Qwen3) -> None:
    prompts = [PROMPT, PROMPT[:9], PROMPT * 3]
    for config in (refusion.ARConfig(max_new_tokens=20), refusion.MDMConfig(max_new_tokens=20, threshold=0.4)):
        together = refusion.generate(model, prompts, config)
        assert [r.tokens for r in together] == [refusion.generate(model, p, config).tokens for p in prompts]

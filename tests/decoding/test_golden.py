"""Recorded outputs of the public implementation: the same tokens, with no more forwards."""

from __future__ import annotations

import itertools
import random

import pytest

import refusion
from golden import CASES, SETTINGS, config_of


def batches() -> list[list[dict]]:
    """Cases that share their settings, in shuffled batches of 2 to 9; every case is in at least one."""
    chance = random.Random(1)
    groups = []
    key = lambda case: tuple(case[name] for name in SETTINGS)  # noqa: E731
    for _, members in itertools.groupby(sorted(CASES, key=key), key):
        group = list(members)
        chance.shuffle(group)
        while group:
            size = min(chance.randint(2, 9), len(group))
            batch, group = group[:size], group[size:]
            if size == 1:
                batch = batch * 2
            groups.append(batch)
    return groups


@pytest.mark.parametrize("lookahead", ["off", "on", "auto"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_single(model: refusion.Qwen3, case: int, lookahead: str) -> None:
    recorded = CASES[case]
    result = refusion.generate(model, recorded["prompt"], config_of(recorded, lookahead=lookahead))
    assert recorded["prompt"] + result.tokens == recorded["output"]
    assert result.stats.forwards <= len(recorded["reference_forwards"])


@pytest.mark.parametrize("batch", batches())
def test_batch(model: refusion.Qwen3, batch: list[dict]) -> None:
    results = refusion.generate(model, [case["prompt"] for case in batch], config_of(batch[0]))
    for case, result in zip(batch, results, strict=True):
        assert case["prompt"] + result.tokens == case["output"]
        assert result.stats.forwards <= len(case["reference_forwards"])


def test_batch_larger_than_the_engine(model: refusion.Qwen3) -> None:
    """More prompts than sequences: a finished one makes room, and rows of the one before it do not matter."""
    batch = max(batches(), key=len)
    prompts = [case["prompt"] for case in batch]
    results = refusion.generate(model, prompts, config_of(batch[0]), batch_size=2)
    assert [p + r.tokens for p, r in zip(prompts, results, strict=True)] == [case["output"] for case in batch]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_strict_equals_reference_where_it_has_no_defect(model: refusion.Qwen3, case: int) -> None:
    recorded = CASES[case]
    settings = config_of(recorded)
    answer = recorded["output"][len(recorded["prompt"]) :]
    ends = [i for i, token in enumerate(answer) if token in settings.eos_token_ids]
    whole = len(answer) == settings.answer_length == settings.max_new_tokens
    mask = model.config.mask_token_id
    result = refusion.generate(model, recorded["prompt"], config_of(recorded, semantics="strict"))
    assert mask not in result.tokens
    assert len(result.tokens) <= recorded["gen_length"]
    if not ends and whole and mask not in answer:
        assert result.tokens == answer
    else:
        hits = [i for i, token in enumerate(result.tokens) if token in settings.eos_token_ids]
        assert hits in ([], [len(result.tokens) - 1])
        assert hits or len(result.tokens) == recorded["gen_length"]


@pytest.mark.parametrize("case", range(0, len(CASES), 9))
def test_streamed_head(model: refusion.Qwen3, case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large vocabularies are scored without logits; the small model is made to take that path."""
    monkeypatch.setattr("refusion.decoding.engine.STREAMED_VOCABULARY", 1)
    recorded = CASES[case]
    result = refusion.generate(model, recorded["prompt"], config_of(recorded))
    assert recorded["prompt"] + result.tokens == recorded["output"]

"""Strict semantics whatever the settings: no mask, no hole, nothing behind EOS, exact length, batch = single."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refusion
from refusion.decoding.slots import SlotDecoder

MASK = 258
THRESHOLDS = st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0, 2.0, -1.0])
PROMPT = list(b"def compare(self, a, b):\n")
some_prompt = st.sampled_from([PROMPT, PROMPT[:1], [*PROMPT[:4], MASK, MASK, *PROMPT[4:]], PROMPT * 6])
# Masks behind an empty prompt see nothing but masks: all slots tie exactly and rounding picks one, so two schedules may
# differ. Everything else holds for it too.
any_prompt = st.one_of(st.just([]), some_prompt)
configs = st.builds(
    refusion.DecodeConfig,
    max_new_tokens=st.integers(1, 70),
    min_new_tokens=st.sampled_from([0, 0, 3, 100]),
    slot_size=st.integers(1, 32),
    block_size=st.none(),
    slot_threshold=THRESHOLDS,
    token_threshold=THRESHOLDS,
    temperature=st.sampled_from([0.0, 0.0, 0.7]),
    seed=st.integers(0, 1 << 40),
    eos_token_ids=st.sampled_from([(), None, (32,), (10, 101)]),
    slot_score=st.sampled_from(["first", "first", "mean", "minimum", "entropy", "margin"]),
    lookahead=st.sampled_from(["auto", "on", "off"]),
).flatmap(
    lambda c: st.integers(0, 3).map(
        lambda extra: c if extra == 0 else dataclasses.replace(c, block_size=c.slot_size * extra + extra // 2)
    )
)
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def noisy(model: refusion.Qwen3) -> refusion.Qwen3:
    """Random weights: EOS and every other token turn up anywhere."""
    torch.manual_seed(1)
    return refusion.Qwen3(model.config).initialise(scale=4.5).requires_grad_(False)


@pytest.fixture(scope="session")
def mask_lover(model: refusion.Qwen3) -> refusion.Qwen3:
    """Prefers MASK everywhere."""
    other = refusion.Qwen3(model.config)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.embedding[:, 0] = 30.0  # one direction that every hidden state shares
        other.head[MASK] = 0.0
        other.head[:, 0] = -5.0
        other.head[MASK, 0] = 5.0
    return other.requires_grad_(False)


def check(result: refusion.Result, config: refusion.DecodeConfig, model: refusion.Qwen3) -> None:
    ends = set(model.config.eos_token_ids if config.eos_token_ids is None else config.eos_token_ids)
    tokens = result.tokens
    assert MASK not in tokens
    hits = [i for i, token in enumerate(tokens) if token in ends]
    if hits:
        assert hits == [len(tokens) - 1]
        assert len(tokens) > min(config.min_new_tokens, config.max_new_tokens - 1)
        assert len(tokens) <= config.max_new_tokens
    else:
        assert len(tokens) == config.max_new_tokens
    assert result.finished == bool(hits)
    assert len(result.probabilities) == len(tokens)
    assert all(0 <= p <= 1.0001 for p in result.probabilities)
    blocks = -(-config.max_new_tokens // config.block_length)
    slots = blocks * -(-config.block_length // config.slot_size)
    assert result.stats.forwards <= slots * 2 * config.slot_size
    assert result.stats.tokens == len(tokens)


@relaxed
@given(prompt=any_prompt, config=configs, which=st.sampled_from(["model", "noisy", "mask_lover"]))
def test_invariants(
    prompt: list[int], config: refusion.DecodeConfig, which: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(which)
    result = refusion.generate(model, prompt, config)
    check(result, config, model)
    assert refusion.generate(model, prompt, config).tokens == result.tokens


@relaxed
@given(prompt=some_prompt, config=configs)
def test_lookahead_changes_nothing_but_the_forwards(
    model: refusion.Qwen3, prompt: list[int], config: refusion.DecodeConfig
) -> None:
    without, with_ = (
        refusion.generate(model, prompt, dataclasses.replace(config, lookahead=mode)) for mode in ("off", "on")
    )
    assert without.tokens == with_.tokens
    assert with_.stats.forwards <= without.stats.forwards


@relaxed
@given(some=st.lists(some_prompt, min_size=2, max_size=6), config=configs, size=st.integers(1, 4))
def test_batch_equals_single(
    model: refusion.Qwen3, some: list[list[int]], config: refusion.DecodeConfig, size: int
) -> None:
    seeds = list(range(len(some)))
    together = refusion.generate(model, some, config, seeds=seeds, batch_size=size)
    alone = [refusion.generate(model, p, dataclasses.replace(config, seed=s)) for p, s in zip(some, seeds, strict=True)]
    assert [r.tokens for r in together] == [r.tokens for r in alone]


@relaxed
@given(prompt=any_prompt, config=configs, which=st.sampled_from(["model", "noisy"]))
def test_stream_tells_the_same(
    prompt: list[int], config: refusion.DecodeConfig, which: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(which)
    written: dict[int, int] = {}
    prefix: list[int] = []
    *events, result = refusion.stream(model, prompt, config)
    assert isinstance(result, refusion.Result)
    for event in events:
        assert isinstance(event, refusion.Event)
        for position in event.withdrawn:
            written.pop(position, None)
        for position, token in zip(event.positions, event.tokens, strict=True):
            assert position not in written
            written[position] = token
        assert event.prefix[: len(prefix)] == prefix  # final text never changes
        prefix = event.prefix
    assert [written[p] for p in sorted(written)] == result.tokens
    assert sorted(written) == list(range(len(result.tokens)))
    assert prefix == result.tokens


def test_eos_in_the_first_slot_ends_the_answer(model: refusion.Qwen3) -> None:
    first = refusion.generate(model, PROMPT, refusion.DecodeConfig(max_new_tokens=8, slot_size=8, eos_token_ids=()))
    end = first.tokens[2]
    result = refusion.generate(
        model, PROMPT, refusion.DecodeConfig(max_new_tokens=64, block_size=8, slot_size=8, eos_token_ids=(end,))
    )
    assert result.tokens[-1] == end
    assert len(result.tokens) <= 8
    assert result.finished


def test_an_earlier_eos_withdraws_what_was_committed(noisy: refusion.Qwen3) -> None:
    """Searches for a decode in which committed tokens had to be withdrawn, and checks that their rows are gone."""
    withdrawn = 0
    for end in range(256):
        config = refusion.DecodeConfig(
            max_new_tokens=48,
            slot_size=4,
            slot_threshold=0.3,
            token_threshold=0.2,
            eos_token_ids=(end,),
            lookahead="off",
        )
        *events, result = refusion.stream(noisy, PROMPT, config)
        if any(event.withdrawn for event in events):
            withdrawn += 1
            assert result.tokens[-1] == end
            check(result, config, noisy)
    assert withdrawn, "no case withdrew anything: the test needs other settings"


def test_thresholds_beyond_one_write_one_token_at_a_time(model: refusion.Qwen3) -> None:
    config = refusion.DecodeConfig(
        max_new_tokens=16, slot_size=8, slot_threshold=2, token_threshold=2, eos_token_ids=()
    )
    result = refusion.generate(model, PROMPT, config)
    assert result.stats.phases == {"plan": 2, "verify": 2, "refine_draft": 14, "refine_verify": 14}


def test_thresholds_below_zero_write_everything_at_once(model: refusion.Qwen3) -> None:
    config = refusion.DecodeConfig(max_new_tokens=64, slot_threshold=-1, token_threshold=-1, eos_token_ids=())
    assert refusion.generate(model, PROMPT, config).stats.phases == {"plan": 1, "verify": 1}


def test_long_prompts_are_read_in_chunks(model: refusion.Qwen3) -> None:
    prompt = (PROMPT * 40)[:900]
    config = refusion.DecodeConfig(max_new_tokens=16)
    result = refusion.generate(model, prompt, config)
    assert result.stats.phases["prefill"] == 1
    assert result.stats.computed_tokens - result.stats.wasted_tokens == 916


def test_sampling_follows_the_seed(model: refusion.Qwen3) -> None:
    config = refusion.DecodeConfig(max_new_tokens=32, temperature=1.0, slot_threshold=0.3, token_threshold=0.2)
    outcomes = {tuple(refusion.generate(model, PROMPT, dataclasses.replace(config, seed=s)).tokens) for s in range(6)}
    assert len(outcomes) > 3


def test_lookahead_saves_nearly_half_of_the_forwards_at_full_acceptance(model: refusion.Qwen3) -> None:
    settings = refusion.DecodeConfig(max_new_tokens=512, block_size=64, token_threshold=-1, eos_token_ids=())
    forwards = {}
    for mode in ("off", "on"):
        result = refusion.generate(model, PROMPT, dataclasses.replace(settings, lookahead=mode, slot_threshold=0.9))
        forwards[mode] = result.stats.forwards
        assert set(result.stats.phases) == {"plan", "verify"}
    assert forwards["on"] <= 0.55 * forwards["off"]


def test_capacity_suffices_to_the_row(model: refusion.Qwen3) -> None:
    """The cache is allocated once for what the decoder announces; the golden decodes never ask for more."""
    config = refusion.DecodeConfig(max_new_tokens=64, slot_size=4, block_size=16)
    decoder = SlotDecoder(PROMPT, config, MASK, frozenset(), refusion.decoding.work.Cost())
    assert decoder.capacity == len(PROMPT) + 64 + 2 * 16

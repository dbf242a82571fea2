"""select_slots and accept_tokens: decisions, so results are equal to the oracle's, not close."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import refusion_ext
from refusion_ext import reference

# Sixty-fourths are exact in float32, their means of up to 8 decide every comparison with a hundred-and-twenty-eighth.
scores = st.integers(-64, 128).map(lambda n: n / 64) | st.sampled_from([float("nan"), -float("inf")])
thresholds = st.integers(-130, 260).map(lambda n: n / 128) | st.sampled_from([-float("inf"), float("inf")])


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@st.composite
def ragged(draw: st.DrawFn, smallest_slot: int) -> tuple[Tensor, Tensor]:
    """slot_offsets and sequence_offsets; sequences may be empty."""
    slots = draw(st.lists(st.lists(st.integers(smallest_slot, 8), max_size=5), max_size=4))
    return offsets_of([n for sequence in slots for n in sequence]), offsets_of([len(sequence) for sequence in slots])


def assert_equal(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=0, atol=0)


@given(st.data(), ragged(0), thresholds, st.sampled_from(reference.SLOT_RULES))
def test_selection_equals_the_oracle(
    data: st.DataObject, offsets: tuple[Tensor, Tensor], threshold: float, rule: str
) -> None:
    slot_offsets, sequence_offsets = offsets
    count = int(slot_offsets[-1])
    values = torch.tensor(data.draw(st.lists(scores, min_size=count, max_size=count)), dtype=torch.float32)
    got = refusion_ext.select_slots(values, slot_offsets, sequence_offsets, threshold, rule=rule)
    exact = reference.select_slots(values.double(), slot_offsets, sequence_offsets, threshold, rule=rule)
    torch.testing.assert_close(got.confidence, exact.confidence.float())
    assert_equal(got[:2], exact[:2])

    for n, (begin, end) in enumerate(zip(sequence_offsets[:-1].tolist(), sequence_offsets[1:].tolist(), strict=True)):
        picked = got.chosen[begin : begin + int(got.counts[n])].tolist()
        assert picked == sorted(set(picked))
        assert len(picked) >= (end > begin)  # progress is guaranteed
        assert all(0 <= slot < end - begin for slot in picked)


@given(st.data(), ragged(0), thresholds, st.booleans())
def test_acceptance_equals_the_oracle(
    data: st.DataObject, offsets: tuple[Tensor, Tensor], threshold: float, with_eos: bool
) -> None:
    slot_offsets, sequence_offsets = offsets
    count, slots = int(slot_offsets[-1]), len(slot_offsets) - 1
    probability = torch.tensor(data.draw(st.lists(scores, min_size=count, max_size=count)), dtype=torch.float32)
    token = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), dtype=torch.int64)
    before = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=slots, max_size=slots)), dtype=torch.int32)
    eos = torch.tensor([2, 5]) if with_eos else None
    arguments = (token, slot_offsets, before, sequence_offsets, threshold)
    got = refusion_ext.accept_tokens(probability, *arguments, eos_token_ids=eos)
    exact = reference.accept_tokens(probability.double(), *arguments, eos_token_ids=eos)
    assert_equal(got, exact)
    lengths = slot_offsets[1:] - slot_offsets[:-1]
    assert bool((got.accepted >= torch.minimum(before + 1, lengths)).all())


@pytest.mark.parametrize("slots", [31, 33, 700])  # a warp's, a block's turns
@pytest.mark.parametrize("rule", reference.SLOT_RULES)
def test_selection_among_many_slots(rule: str, slots: int) -> None:
    slot_offsets, sequence_offsets = offsets_of([2] * (slots + 40)), offsets_of([40, slots])
    values = torch.randint(0, 129, (2 * (slots + 40),)) / 128
    for threshold in (0.25, 0.75, 1.0):
        got = refusion_ext.select_slots(values, slot_offsets, sequence_offsets, threshold, rule=rule)
        exact = reference.select_slots(values.double(), slot_offsets, sequence_offsets, threshold, rule=rule)
        assert_equal(got[:2], exact[:2])


@pytest.mark.parametrize("broken", [0, 5, 20, 31, 32, 40, 99, None])
def test_the_run_of_many_slots_ends_at_the_first_that_is_not_whole(broken: int | None) -> None:
    lengths = torch.randint(1, 4, (130,)).tolist()
    if broken is not None:
        lengths[30 + broken] = 3  # in the second sequence
    slot_offsets, sequence_offsets = offsets_of(lengths), offsets_of([30, 100])
    probability = torch.ones(int(slot_offsets[-1]))
    if broken is not None:
        probability[int(slot_offsets[30 + broken]) + 1] = 0  # a slot's first token is always accepted
    token, before = torch.zeros(len(probability), dtype=torch.int64), torch.zeros(130, dtype=torch.int32)
    arguments = (token, slot_offsets, before, sequence_offsets, 0.5)
    got = refusion_ext.accept_tokens(probability, *arguments)
    assert_equal(got, reference.accept_tokens(probability.double(), *arguments))
    whole = 100 if broken is None else broken
    assert got.run[1] == sum(lengths[30 : 30 + whole]) + (broken is not None)


@pytest.mark.parametrize("rule", reference.SLOT_RULES)
def test_nothing_above_the_threshold_chooses_the_first_best(rule: str) -> None:
    values = torch.tensor([0.5, 0.5, 0.75, 0.75, 0.75, 0.75])
    selection = refusion_ext.select_slots(values, offsets_of([2, 2, 2]), offsets_of([3]), 0.75, rule=rule)
    assert selection.counts.tolist() == [1]
    assert selection.chosen.tolist() == [1, -1, -1]


def test_values_past_the_used_ranges_are_not_read() -> None:
    values = torch.tensor([0.5, 0.25, 9.0])[:2]  # 9 lies right behind
    selection = refusion_ext.select_slots(values, offsets_of([1, 1]), offsets_of([2]), 0.9, rule="minimum")
    assert selection.chosen.tolist() == [0, -1]


def test_acceptance_of_nothing() -> None:
    nothing = torch.zeros(1, dtype=torch.int32)
    no_tokens = torch.zeros(0, dtype=torch.int64)
    got = refusion_ext.accept_tokens(torch.zeros(0), no_tokens, nothing, nothing[:0], nothing, 0.5)
    assert [x.numel() for x in got] == [0, 0, 0]

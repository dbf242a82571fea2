from __future__ import annotations

import pytest
import torch
from cases import DTYPES, bits, name_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import refusion_ext
from refusion_ext import reference


@st.composite
def moves(draw: st.DrawFn) -> tuple[int, list[tuple[int, list[int]]]]:
    """Capacity and, for each sequence, a destination and kept rows that lie nowhere below it."""
    capacity = draw(st.integers(1, 24))
    sequences = []
    for _ in range(draw(st.integers(0, 3))):
        destination = draw(st.integers(0, capacity))
        kept = draw(st.sets(st.integers(destination, capacity - 1)) if destination < capacity else st.just(set()))
        sequences.append((destination, sorted(kept)))
    return capacity, sequences


def arguments(sequences: list[tuple[int, list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    rows = [row for _, kept in sequences for row in kept]
    offsets = torch.tensor([0, *(len(kept) for _, kept in sequences)]).cumsum(0)
    destination = torch.tensor([first for first, _ in sequences], dtype=torch.int32)
    return torch.tensor(rows, dtype=torch.int32), offsets.to(torch.int32), destination


def random_cache(*shape: int, dtype: torch.dtype) -> Tensor:
    """Any bit pattern, NaN among them: rows are moved, never interpreted."""
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    return torch.randint(torch.iinfo(integers).min, torch.iinfo(integers).max, shape, dtype=integers).view(dtype)


def check(cache: Tensor, sequences: list[tuple[int, list[int]]]) -> None:
    sources, offsets, destination = arguments(sequences)
    expected = bits(cache.clone())
    reference.compact_rows(expected, sources, offsets, destination)
    refusion_ext.compact_rows(cache, sources, offsets, destination)
    assert torch.equal(bits(cache), expected)  # rows that are no destination too


@given(moves(), st.sampled_from(DTYPES), st.integers(1, 3), st.integers(1, 3), st.sampled_from([8, 24, 64]))
def test_equals_the_oracle(
    case: tuple[int, list[tuple[int, list[int]]]], dtype: torch.dtype, layers: int, heads: int, head_dim: int
) -> None:
    capacity, sequences = case
    check(random_cache(layers, 2, len(sequences), heads, capacity, head_dim, dtype=dtype), sequences)


@given(moves(), st.sampled_from(DTYPES))
def test_any_strides(case: tuple[int, list[tuple[int, list[int]]]], dtype: torch.dtype) -> None:
    capacity, sequences = case
    whole = random_cache(2, 3, len(sequences) + 1, 4, capacity + 2, 48, dtype=dtype)
    before = whole.clone()
    cache = whole[:, 1:, 1:, ::2, 1:-1, 8:32]
    check(cache, sequences)
    cache.copy_(before[:, 1:, 1:, ::2, 1:-1, 8:32])
    assert torch.equal(bits(whole), bits(before))  # nothing outside of the view


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_large_enough_for_threads(dtype: torch.dtype) -> None:
    kept = sorted(torch.randperm(500)[:260].tolist())
    cache = random_cache(4, 2, 2, 2, 512, 128, dtype=dtype)
    check(cache, [(0, kept), (3, [3, 4, 5, *range(100, 300), 511])])


def test_rows_in_place_stay() -> None:
    cache = random_cache(1, 2, 1, 1, 16, 8, dtype=torch.bfloat16)
    before = bits(cache).clone()
    refusion_ext.compact_rows(cache, *arguments([(4, [4, 5, 6])]))
    assert torch.equal(bits(cache), before)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_rows_at_odd_addresses(dtype: torch.dtype) -> None:
    whole = random_cache(2, 2, 1, 2, 20, 27, dtype=dtype)
    check(whole[..., 1:25], [(2, [3, 5, 9, 19])])


@pytest.mark.parametrize("offset", [0, 8], ids=["lines", "no-lines"])  # rows that begin at cache lines, or do not
def test_more_than_caches_hold(offset: int) -> None:
    """From 32 MiB on, rows of whole cache lines are written past the caches."""
    whole = random_cache(1, 2, 1, 2, 36000, 192, dtype=torch.bfloat16)
    kept = sorted(torch.randperm(36000)[:33000].tolist())
    check(whole[..., offset : offset + 128], [(0, kept)])
    assert 2 * 2 * len(kept) * 128 * 2 >= 32 << 20

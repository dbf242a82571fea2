from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from cases import DTYPES, EPSILON, assert_as_good, gapped, name_of
from torch import Tensor

import refusion_ext
from refusion_ext import reference

CAPACITY, POSITIONS = 40, 64


class Case(NamedTuple):
    qkv: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    cosine: Tensor
    sine: Tensor
    position_ids: Tensor
    rows: Tensor
    sequence_offsets: Tensor

    def wide(self) -> Case:
        return Case(*(x.double() if x is not None and x.is_floating_point() else x for x in self))


def make_case(lengths: list[int], q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, norm: bool) -> Case:
    tokens = sum(lengths)
    angles = torch.rand(POSITIONS, head_dim // 2) * 6.3
    rows = [row for n in lengths for row in torch.randperm(CAPACITY)[:n].tolist()]
    q_norm, k_norm = ((torch.rand(head_dim) + 0.5).to(dtype) if norm else None for _ in range(2))
    return Case(
        gapped(torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim).to(dtype)),
        q_norm,
        k_norm,
        angles.cos(),
        angles.sin(),
        torch.randint(0, POSITIONS, (tokens,), dtype=torch.int32),
        torch.tensor(rows, dtype=torch.int32),
        torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
    )


def poisoned_caches(case: Case, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    shape = (len(case.sequence_offsets) - 1, kv_heads, CAPACITY, head_dim)
    return torch.full(shape, torch.nan, dtype=case.qkv.dtype), torch.full(shape, torch.nan, dtype=case.qkv.dtype)


def check(case: Case, kv_heads: int, head_dim: int, **options: Any) -> None:
    dtype = case.qkv.dtype
    k_cache, v_cache = poisoned_caches(case, kv_heads, head_dim)
    narrow_k, narrow_v, exact_k, exact_v = k_cache.clone(), v_cache.clone(), k_cache.double(), v_cache.double()
    q = refusion_ext.rope_append(*case, k_cache, v_cache, **options)
    narrow_q = reference.rope_append(*case, narrow_k, narrow_v, **options)
    exact_q = reference.rope_append(*case.wide(), exact_k, exact_v, **options)
    floor = 4 * max(EPSILON, torch.finfo(dtype).smallest_normal)
    # Rows that were not written still hold the poison: assert_as_good compares what is not finite for equality.
    assert_as_good(q, narrow_q, exact_q, floor=floor, name="q")
    assert_as_good(k_cache, narrow_k, exact_k, floor=floor, name="k_cache")
    torch.testing.assert_close(v_cache, narrow_v, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "plain"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 72, 96, 128, 256])
def test_correctness(head_dim: int, dtype: torch.dtype, norm: bool) -> None:
    check(make_case([3, 0, 4], 4, 2, head_dim, dtype, norm), 2, head_dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (5, 1), (6, 6), (16, 8)])
def test_head_counts(q_heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    check(make_case([2, 1], q_heads, kv_heads, 32, dtype, True), kv_heads, 32, norm_epsilon=1e-5)


@pytest.mark.parametrize("lengths", [[40, 0, 33, 0, 0, 1], [0, 40, 40], [40] * 4])
def test_large_enough_for_threads(lengths: list[int]) -> None:
    check(make_case(lengths, 16, 8, 128, torch.bfloat16, True), 8, 128)


def test_empty_chunks() -> None:
    for lengths in ([], [0], [0, 0, 0]):
        check(make_case(lengths, 2, 1, 16, torch.float32, True), 1, 16)


def test_caches_of_any_strides() -> None:
    case = make_case([5, 3], 4, 2, 32, torch.bfloat16, True)
    whole = torch.full((3, CAPACITY, 2, 2, 48), torch.nan, dtype=torch.bfloat16)
    k_cache, v_cache = (whole[1:, :, :, i, 8:40].transpose(1, 2) for i in range(2))  # rows outside of heads
    plain_k, plain_v = poisoned_caches(case, 2, 32)
    q = refusion_ext.rope_append(*case, k_cache, v_cache)
    torch.testing.assert_close(q, refusion_ext.rope_append(*case, plain_k, plain_v), rtol=0, atol=0)
    torch.testing.assert_close(k_cache, plain_k, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(v_cache, plain_v, rtol=0, atol=0, equal_nan=True)
    assert bool(whole[0].isnan().all())
    assert bool(whole[..., :8].isnan().all())
    assert bool(whole[..., 40:].isnan().all())


def test_zero_rows_are_not_divided_by_zero() -> None:
    case = make_case([2], 2, 1, 16, torch.float32, True)
    case.qkv.zero_()
    check(case, 1, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_every_finite_value_survives_a_rotation_by_zero(dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    values = torch.where(values.isfinite(), values, 0).view(-1, 64)
    tokens = len(values)
    rows = torch.arange(tokens, dtype=torch.int32)
    k_cache, v_cache = torch.zeros(2, 1, 1, tokens, 64, dtype=dtype).unbind()
    q = refusion_ext.rope_append(
        values.repeat(1, 3).contiguous(),
        *(None, None, torch.ones(1, 32), torch.zeros(1, 32)),
        *(torch.zeros_like(rows), rows, torch.tensor([0, tokens], dtype=torch.int32)),
        *(k_cache, v_cache),
    )
    # Hardware rounding to bfloat16 takes subnormal results for zero.
    tolerance = torch.finfo(dtype).smallest_normal if dtype == torch.bfloat16 else 0
    for result in (q[:, 0], k_cache[0, 0], v_cache[0, 0]):
        torch.testing.assert_close(result, values, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_nan_and_overflow_stay_in_their_place(dtype: torch.dtype) -> None:
    case = make_case([2], 2, 1, 32, dtype, False)
    case.cosine.fill_(0.75)
    case.sine.fill_(0.75)
    case.qkv[0, 3] = torch.nan
    case.qkv[1, 40] = case.qkv[1, 56] = torch.finfo(dtype).max  # 1.5 times the greatest number in one place
    caches, expected_caches = poisoned_caches(case, 1, 32), poisoned_caches(case, 1, 32)
    q = refusion_ext.rope_append(*case, *caches)
    expected = reference.rope_append(*case, *expected_caches)
    assert torch.equal(q.isnan(), expected.isnan())
    assert q.isinf().nonzero().tolist() == expected.isinf().nonzero().tolist() == [[1, 1, 24]]
    assert torch.equal(caches[0].isnan(), expected_caches[0].isnan())

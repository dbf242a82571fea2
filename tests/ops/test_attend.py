"""attend against a float64 oracle: dtypes, head sizes, groups, ragged batches, windows, strides, poison."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import refusion_ext
from ops.cases import DTYPES, assert_as_good, name_of
from refusion_ext import reference

TILED = ("emulated", "cuda")


@dataclasses.dataclass
class Problem:
    q: Tensor
    k: Tensor
    v: Tensor
    offsets: Tensor
    committed: Tensor
    begin: Tensor
    end: Tensor

    def arguments(self) -> tuple[Tensor, ...]:
        return (self.q, self.k, self.v, self.offsets, self.committed, self.begin, self.end)

    def visible(self, sequence: int) -> Tensor:
        """bool [tokens of the sequence, capacity]."""
        first, last = self.offsets[sequence : sequence + 2].tolist()
        row = torch.arange(self.k.shape[2])[None] - self.committed[sequence]
        return (row < 0) | ((row >= self.begin[first:last, None]) & (row < self.end[first:last, None]))

    def poison(self) -> None:
        """NaN in every row that no token sees."""
        for n in range(len(self.committed)):
            unseen = (
                ~self.visible(n).any(0)
                if self.offsets[n] < self.offsets[n + 1]
                else torch.ones(self.k.shape[2], dtype=torch.bool)
            )
            self.k[n, :, unseen] = torch.nan
            self.v[n, :, unseen] = torch.nan


def windows(kind: str, tokens: int, slot: int = 3) -> tuple[Tensor, Tensor]:
    index = torch.arange(tokens, dtype=torch.int32)
    if kind == "causal":
        return torch.zeros_like(index), index + 1
    if kind == "slots":
        return index // slot * slot, index + 1
    if kind == "whole":
        return torch.zeros_like(index), torch.full_like(index, tokens)
    if kind == "empty":
        return index + 1, index
    chance = torch.Generator().manual_seed(tokens)
    pair = torch.randint(0, tokens + 1, (2, tokens), generator=chance, dtype=torch.int32)
    return pair[0], pair[1]


def problem(
    dtype: torch.dtype,
    head_dim: int = 64,
    kv_heads: int = 2,
    group: int = 2,
    lengths: tuple[tuple[int, int], ...] = ((40, 9),),
    kind: str = "causal",
    scale: float = 1.0,
) -> Problem:
    """lengths: (committed, tokens) of each sequence."""
    torch.manual_seed(sum(a * 31 + b for a, b in lengths) + head_dim)
    capacity = max(a + b for a, b in lengths) + 5
    tokens = sum(b for _, b in lengths)
    begins, ends = zip(*(windows(kind, b) for _, b in lengths), strict=True)
    made = Problem(
        q=(torch.randn(tokens, kv_heads * group, head_dim) * scale).to(dtype),
        k=torch.randn(len(lengths), kv_heads, capacity, head_dim).to(dtype),
        v=torch.randn(len(lengths), kv_heads, capacity, head_dim).to(dtype),
        offsets=torch.tensor([0, *(b for _, b in lengths)]).cumsum(0).to(torch.int32),
        committed=torch.tensor([a for a, _ in lengths], dtype=torch.int32),
        begin=torch.cat(begins),
        end=torch.cat(ends),
    )
    made.poison()
    return made


def dense(p: Problem, dtype: torch.dtype, scale: float | None = None) -> Tensor:
    """The same attention, sequence by sequence with a mask, in the arithmetic of `dtype`."""
    out = torch.zeros(p.q.shape, dtype=dtype)
    group = p.q.shape[1] // p.k.shape[1]
    factor = p.q.shape[2] ** -0.5 if scale is None else scale
    for n in range(len(p.committed)):
        first, last = p.offsets[n : n + 2].tolist()
        if first == last:
            continue
        seen = p.visible(n)
        k, v = (x[n].nan_to_num().to(dtype).repeat_interleave(group, 0) for x in (p.k, p.v))
        scores = (p.q[first:last].to(dtype).transpose(0, 1) @ k.transpose(1, 2)) * factor
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num()
        out[first:last] = (weights @ v).transpose(0, 1)
    return out


def check(p: Problem, scale: float | None = None) -> Tensor:
    got = refusion_ext.attend(*p.arguments(), scale=scale)
    exact = dense(p, torch.float64, scale)
    largest = max(exact.abs().max().item(), 1e-3) if exact.numel() else 0.0
    usual = 1.0 if scale is None else max(1.0, abs(scale) * p.q.shape[2] ** 0.5)  # larger scores round by as much more
    floor = 4 * torch.finfo(p.q.dtype).eps * largest * usual
    assert_as_good(got, dense(p, p.q.dtype, scale), exact, floor=floor, name="attend")
    return got


@pytest.mark.large(7)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("head_dim", [8, 24, 32, 64, 80, 96, 128, 248, 256])
@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 2), (2, 4), (1, 7), (3, 3), (1, 40)])
def test_matrix(dtype: torch.dtype, head_dim: int, kv_heads: int, group: int) -> None:
    check(problem(dtype, head_dim, kv_heads, group, ((40, 9), (0, 4), (130, 1), (7, 0), (1, 33))))


@pytest.mark.large(13)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("kind", ["causal", "slots", "whole", "empty", "random"])
@pytest.mark.parametrize("committed", [0, 1, 127, 128, 129, 300])
@pytest.mark.parametrize("tokens", [1, 2, 5, 16, 17, 150])
def test_windows_around_block_borders(dtype: torch.dtype, kind: str, committed: int, tokens: int) -> None:
    check(problem(dtype, 32, 1, 2, ((committed, tokens),), kind))


@pytest.mark.large(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("committed", [1023, 2048, 5000])
def test_long_prefixes_are_split(dtype: torch.dtype, tokens: int, committed: int, backend: str) -> None:
    if backend == "emulated":
        committed = min(committed, 1100)
    check(problem(dtype, 64, 1, 2, ((committed, tokens), (3, 2))))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_split_prefix_of_heads_that_fill_no_warp(dtype: torch.dtype) -> None:
    check(problem(dtype, 72, 1, 2, ((1100, 3),)))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_split_prefix_without_a_positive_score(dtype: torch.dtype) -> None:
    p = problem(dtype, 64, 1, 2, ((1100, 3),))
    p.q.abs_()
    p.k.abs_()
    check(p, scale=-0.1)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_sees_nothing_beside_a_split_prefix(dtype: torch.dtype) -> None:
    got = check(problem(dtype, 64, 1, 2, ((1100, 1), (0, 3)), "empty"))
    assert not got[1:].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_many_rows(dtype: torch.dtype) -> None:
    check(problem(dtype, 64, 1, 4, ((200, 140),), "slots"))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
@pytest.mark.parametrize("tokens", [1, 12])
def test_scales(dtype: torch.dtype, scale: float, tokens: int) -> None:
    check(problem(dtype, 64, 4, 2, ((150, tokens),)), scale)


@pytest.mark.large(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("tokens", [4, 40])
def test_peaked_scores(dtype: torch.dtype, tokens: int) -> None:
    """Scores of some hundreds: enough heads that the largest error is a statistic, not chance."""
    check(problem(dtype, 64, 8, 2 if tokens > 4 else 1, ((300, tokens), (200, 1)), scale=30.0))


def test_sees_nothing_gives_zeros() -> None:
    p = problem(torch.float32, lengths=((0, 3), (0, 20)), kind="empty")
    assert torch.equal(check(p), torch.zeros_like(p.q))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("tokens", [2, 30])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_stays_with_those_who_see_it(dtype: torch.dtype, tokens: int, bad: float, backend: str) -> None:
    if backend in TILED:
        pytest.skip("a value that another query of the tile sees is multiplied by zero, not left out")
    p = problem(dtype, 64, 1, 2, ((140, tokens),))
    row = 140 + tokens // 2
    blind = ~p.visible(0)[:, row]
    same, exact = dense(p, dtype)[blind], dense(p, torch.float64)[blind]
    p.v[0, :, row] = bad
    got = refusion_ext.attend(*p.arguments())
    assert_as_good(got[blind], same, exact, floor=4 * torch.finfo(dtype).eps * exact.abs().max().item())
    assert not bool(got[~blind].isfinite().any())


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("tokens", [1, 30])
def test_strides(dtype: torch.dtype, tokens: int, backend: str) -> None:
    """Caches with gaps and other axis orders, queries inside a packed qkv; odd row strides too."""
    p = problem(dtype, 64, 2, 2, ((150, tokens), (20, 3)))
    expected = refusion_ext.attend(*p.arguments())
    sequences, kv_heads, capacity, head_dim = p.k.shape
    wide = torch.full((capacity, sequences, kv_heads, head_dim + 1), torch.nan, dtype=dtype)
    k = wide.permute(1, 2, 0, 3)[..., :head_dim]
    k.copy_(p.k)
    packed = torch.full((len(p.q), 9, head_dim + 8), torch.nan, dtype=dtype)
    q = packed[:, 2:6, 8:]
    q.copy_(p.q)
    flipped = p.v.flip(1).contiguous()
    got = refusion_ext.attend(q, k, flipped.flip(1), *p.arguments()[3:])
    # Where rows have no 16 bytes in a row, another kernel runs, which sums in another order.
    tolerance = 4 * torch.finfo(dtype).eps if backend in TILED else 0
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_batch_and_threads_change_no_bit(backend: str) -> None:
    if backend in TILED:
        pytest.skip("how far a prefix is split depends on the whole chunk and on the device")
    lengths = ((1500, 1), (40, 9), (2300, 20), (0, 5))
    for dtype in DTYPES:
        p = problem(dtype, 64, 2, 2, lengths)
        together = refusion_ext.attend(*p.arguments())
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            assert torch.equal(refusion_ext.attend(*p.arguments()), together)
        finally:
            torch.set_num_threads(threads)
        for n in range(len(lengths)):
            first, last = p.offsets[n : n + 2].tolist()
            alone = refusion_ext.attend(
                p.q[first:last],
                p.k[n : n + 1],
                p.v[n : n + 1],
                torch.tensor([0, last - first], dtype=torch.int32),
                p.committed[n : n + 1],
                p.begin[first:last],
                p.end[first:last],
            )
            assert torch.equal(alone, together[first:last])


def test_empty_input() -> None:
    p = problem(torch.float32, lengths=((4, 0), (0, 0)))
    assert refusion_ext.attend(*p.arguments()).shape == (0, 4, 64)


def test_reference_means_the_same() -> None:
    p = problem(torch.float64, 32, 2, 2, ((20, 5), (3, 2)), "random")
    torch.testing.assert_close(reference.attend(*p.arguments()), dense(p, torch.float64))

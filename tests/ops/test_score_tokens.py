from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import DTYPES, EPSILON, assert_as_good, gapped, name_of
from torch import Tensor

import refusion_ext
from refusion_ext import reference
from refusion_ext.results import TokenScores

# Around vector, block (2048) and piece (16384) boundaries.
SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 260, 1000, 2047, 2048, 2049, 4100, 16383, 16385, 40003)
VOCAB = 151_671


def check(logits: Tensor, scores: TokenScores, **choice: Any) -> None:
    """Every field against the float64 oracle, the floats as good as float32 torch."""
    exact = reference.score_tokens(logits.double(), **choice)
    narrow = reference.score_tokens(logits.float(), **choice)
    torch.testing.assert_close(scores.token, exact.token, rtol=0, atol=0)
    biggest = exact.log_sum_exp[exact.log_sum_exp.isfinite()].abs().max().item() if len(logits) else 0.0
    floors = {
        "probability": 4 * EPSILON,
        "log_sum_exp": 2 * EPSILON * max(1.0, biggest),
        "entropy": 8 * EPSILON * max(1.0, exact.entropy.max().item() if len(logits) else 0.0),
        "margin": 4 * EPSILON,
    }
    for field, floor in floors.items():
        got, same, best = (getattr(s, field) for s in (scores, narrow, exact))
        assert_as_good(got, same, best, floor=floor, name=field)


def keys_for(rows: int, seed: int = 1) -> Tensor:
    return torch.stack([torch.tensor([seed, row % 3, 100 + row, row % 5]) for row in range(rows)])


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("vocab", SIZES)
def test_correctness(dtype: torch.dtype, vocab: int) -> None:
    logits = gapped((torch.randn(3, vocab) * 4).to(dtype))
    check(logits, refusion_ext.score_tokens(logits))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_real_vocabulary(dtype: torch.dtype, rows: int) -> None:
    logits = (torch.randn(rows, VOCAB) * 3).to(dtype)
    logits[0, VOCAB - 1] = 20
    check(logits, refusion_ext.score_tokens(logits))


@pytest.mark.parametrize("scale", [0.0, 1e-3, 30.0, 1e4, 1e30])
def test_spread_of_logits(scale: float) -> None:
    logits = torch.randn(4, 5000) * scale
    check(logits, refusion_ext.score_tokens(logits))


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_maximum_that_keeps_moving(order: str) -> None:
    logits = torch.linspace(-300, 300, 20_000)[None]
    if order == "falling":
        logits = logits.flip(1).contiguous()
    check(logits, refusion_ext.score_tokens(logits))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_token_and_probability_without_entropy_and_margin(dtype: torch.dtype) -> None:
    """What is not asked for is not computed; the rest comes out as it does with it."""
    logits = torch.randn(10, 9000)
    logits[0, ::3], logits[1, ::2], logits[2], logits[3] = torch.nan, -torch.inf, -torch.inf, torch.nan
    logits[4] = torch.linspace(-300, 300, 9000)  # the maximum moves in every block
    logits[5], logits[5, 4000:6000:7] = torch.linspace(300, -300, 9000), torch.nan
    logits[6, 8000], logits[7, 8999] = torch.inf, 40
    logits[8], logits[8, 5001::2] = torch.linspace(-100, 100, 9000), torch.nan
    logits[9] *= 1e4 if dtype == torch.float16 else 1e30
    logits = gapped(logits.to(dtype))
    choice = {"suppressed": torch.tensor([8999, 5], dtype=torch.int32)}
    for chosen in ({}, choice):
        everything = refusion_ext.score_tokens(logits, **chosen)
        some = TokenScores(torch.empty(10, dtype=torch.int64), torch.empty(10), torch.empty(10), None, None)
        refusion_ext.score_tokens(logits, **chosen, out=some)
        assert torch.equal(some.token, everything.token)
        torch.testing.assert_close(some.probability, everything.probability, rtol=1e-6, atol=1e-30)
        torch.testing.assert_close(some.log_sum_exp, everything.log_sum_exp, rtol=3e-7, atol=3e-7)
        if not chosen:
            check(logits, everything)


def test_rows_and_vocabulary_may_be_empty() -> None:
    assert refusion_ext.score_tokens(torch.zeros(0, 10)).token.shape == (0,)
    scores = refusion_ext.score_tokens(torch.zeros(2, 0))
    assert scores.token.tolist() == [-1, -1]
    assert scores.probability.tolist() == [0, 0]
    assert scores.log_sum_exp.tolist() == [-math.inf] * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("rows", [1, 3])  # one row is shared among threads
@pytest.mark.parametrize(
    "places", [(0, 1), (5, 2047), (2047, 2048), (100, 16384), (16383, 39999), (7, 70_000, 151_670)]
)
def test_lowest_id_wins_ties(dtype: torch.dtype, rows: int, places: tuple[int, ...]) -> None:
    logits = torch.randn(rows, VOCAB).clamp(max=3).to(dtype)
    logits[:, list(places)] = 9
    scores = refusion_ext.score_tokens(logits)
    assert scores.token.tolist() == [places[0]] * rows
    assert scores.margin.tolist() == [0] * rows
    check(logits, scores)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_infinities_and_nan(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 5000).to(dtype)
    logits[0] = -torch.inf
    logits[1] = torch.nan
    logits[2, :4999] = -torch.inf  # one-hot at the very end
    logits[3, ::2] = -torch.inf
    logits[4, ::3] = torch.nan
    logits[5, :4096] = -torch.inf  # whole blocks of nothing first
    scores = refusion_ext.score_tokens(logits)
    check(logits, scores)
    assert scores.token[:3].tolist() == [-1, -1, 4999]
    assert scores.probability[:3].tolist() == [0, 0, 1]
    assert scores.entropy[:2].tolist() == [0, 0]


@pytest.mark.parametrize("place", [0, 100, 39_999])
def test_positive_infinity_takes_all(place: int) -> None:
    logits = torch.randn(1, 40_000)
    logits[0, place] = torch.inf
    scores = refusion_ext.score_tokens(logits)
    assert [x.item() for x in scores] == [place, 1, math.inf, 0, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_suppressed_ids_stay_in_the_normaliser(dtype: torch.dtype) -> None:
    logits = gapped(torch.randn(3, 5000).to(dtype))
    top = logits.float().topk(3, -1).indices
    for suppressed in (top[0], torch.tensor([-1, int(top[0, 0]), 10**6, int(top[0, 0])]), top, top.to(torch.int32)):
        ids = suppressed.to(torch.int32)
        check(logits, refusion_ext.score_tokens(logits, suppressed=ids), suppressed=ids)
    best = top[:, 0].contiguous()
    plain = refusion_ext.score_tokens(logits, given=best)
    hidden = refusion_ext.score_tokens(logits, given=best, suppressed=top.to(torch.int32))
    assert plain.probability.tolist() == hidden.probability.tolist()


def test_suppressed_ids_at_the_edges_of_parts() -> None:
    edges = [0, 16383, 16384, 32767, 32768]
    logits = torch.randn(2, 33_000).clamp(max=3)
    logits[:, edges] = torch.tensor([9.0, 8, 7, 6, 5])
    for count in range(len(edges) + 1):
        suppressed = torch.tensor(edges[:count], dtype=torch.int32)
        scores = refusion_ext.score_tokens(logits, suppressed=suppressed)
        check(logits, scores, suppressed=suppressed)
        if count < len(edges):
            assert scores.token.tolist() == [edges[count]] * 2


def test_nothing_left_to_choose() -> None:
    logits = torch.randn(2, 6)
    everything = torch.arange(6, dtype=torch.int32)
    for choice in ({}, {"temperature": 1.0, "sample_keys": keys_for(2)}):
        scores = refusion_ext.score_tokens(logits, suppressed=everything, **choice)
        assert scores.token.tolist() == [-1, -1]
        assert scores.probability.tolist() == [0, 0]
        assert scores.margin.tolist() == [0, 0]
        torch.testing.assert_close(scores.log_sum_exp, logits.logsumexp(-1))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_given_ids_and_rows_that_choose(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 40_003).to(dtype)
    logits[3, 7] = -torch.inf
    given = torch.tensor([0, -1, 40_002, 7, 20_000])
    scores = refusion_ext.score_tokens(logits, given=given)
    check(logits, scores, given=given)
    assert scores.probability[3] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("temperature", [1e-3, 0.1, 0.7, 1.0, 3.0, 1e3])
@pytest.mark.parametrize("vocab", [1, 5, 63, 260, 2049, 20_001])
def test_samples_are_those_of_the_oracle(dtype: torch.dtype, temperature: float, vocab: int) -> None:
    logits = gapped((torch.randn(6, vocab) * 2).to(dtype))
    suppressed = torch.tensor([0], dtype=torch.int32)
    choice = {"temperature": temperature, "sample_keys": keys_for(6), "suppressed": suppressed}
    check(logits, refusion_ext.score_tokens(logits, **choice), **choice)


def test_samples_follow_the_distribution(backend: str) -> None:
    draws, vocab = 400 if backend == "emulated" else 20_000, 11
    logits = torch.randn(vocab)
    keys = torch.zeros(draws, 4, dtype=torch.int64)
    keys[:, 0], keys[:, 2] = 5, torch.arange(draws)
    scores = refusion_ext.score_tokens(logits.expand(draws, vocab).contiguous(), temperature=0.8, sample_keys=keys)
    counts = torch.bincount(scores.token, minlength=vocab).double()
    expected = (logits.double() / 0.8).softmax(-1) * draws
    chi_square = ((counts - expected).square() / expected).sum().item()
    assert chi_square < 29.6  # 0.999 quantile with 10 degrees of freedom
    torch.testing.assert_close(scores.probability, logits.softmax(-1)[scores.token])  # of temperature 1


def test_a_row_is_the_same_alone_and_in_any_batch(backend: str) -> None:
    if backend == "oracle":
        pytest.skip("torch sums a row alone in another order")
    vocab = 33_001 if backend == "emulated" else VOCAB
    logits, keys = torch.randn(9, vocab).to(torch.bfloat16), keys_for(9)  # a row alone is shared among threads
    for choice in ({}, {"temperature": 0.9}):
        rows = {"sample_keys": keys} if choice else {}
        whole = refusion_ext.score_tokens(logits, **choice, **rows)
        order = torch.randperm(9)
        mixed = refusion_ext.score_tokens(logits[order], **choice, **{k: v[order] for k, v in rows.items()})
        for field, all_rows in whole._asdict().items():
            torch.testing.assert_close(getattr(mixed, field), all_rows[order], rtol=0, atol=0)
            for row in range(9):
                one = {k: v[row : row + 1] for k, v in rows.items()}
                alone = refusion_ext.score_tokens(logits[row : row + 1], **choice, **one)
                torch.testing.assert_close(getattr(alone, field), all_rows[row : row + 1], rtol=0, atol=0)


def test_rows_in_the_thousands_and_shared_storage(backend: str) -> None:
    logits = torch.randn(1, 300).expand(100 if backend == "emulated" else 3000, 300)  # row stride 0
    scores = refusion_ext.score_tokens(logits)
    assert len(set(scores.token.tolist())) == len(set(scores.probability.tolist())) == 1

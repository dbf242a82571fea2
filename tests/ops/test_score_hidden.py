from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from cases import DTYPES, EPSILON, assert_as_good, gapped, name_of
from torch import Tensor

import refusion_ext
from refusion_ext import reference
from refusion_ext.results import TokenScores

# Rows around the register tile (3 or 6) and the panel (64); ids around a tile (4), a group (64) and a task (512);
# widths around a step (8 to 32) and a block (1024).
SHAPES = (
    *((1, 1, 8), (1, 700, 32), (2, 63, 24), (3, 5, 33), (4, 64, 96), (5, 65, 40), (6, 512, 1024), (7, 513, 1032)),
    *((13, 1100, 1000), (64, 300, 128), (65, 1030, 64), (130, 70, 2056)),
)


def check(hidden: Tensor, weight: Tensor, scores: TokenScores, **choice: Any) -> None:
    exact = reference.score_hidden(hidden.double(), weight.double(), **choice)
    narrow = reference.score_hidden(hidden.float(), weight.float(), **choice)
    torch.testing.assert_close(scores.token, exact.token, rtol=0, atol=0)
    # Logits are sums of `width` products: their rounding, not that of the scoring, sets the scale.
    largest = (hidden.double().abs() @ weight.double().abs().T).max().item() if exact.token.numel() else 0.0
    floor = 4 * EPSILON * max(1.0, largest)
    for field in ("probability", "log_sum_exp", "entropy", "margin"):
        got, same, best = (getattr(s, field) for s in (scores, narrow, exact))
        assert_as_good(got, same, best, floor=floor, name=field)


def inputs(rows: int, vocab: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, width).to(dtype), (torch.randn(vocab, width) * (3 / width**0.5)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correctness(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    hidden, weight = inputs(*shape, dtype)
    check(hidden, weight, refusion_ext.score_hidden(hidden, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("width", [8, 31, 40, 1023, 1025])
def test_gaps_between_rows_are_not_read(dtype: torch.dtype, width: int) -> None:
    hidden, weight = inputs(7, 70, width, dtype)
    scores = refusion_ext.score_hidden(gapped(hidden), gapped(weight, gap=5))
    check(hidden, weight, scores)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_choices_are_those_of_score_tokens(dtype: torch.dtype) -> None:
    hidden, weight = inputs(5, 1500, 64, dtype)
    top = reference.score_hidden(hidden.double(), weight.double()).token
    keys = torch.tensor([[3, row, 50 + row, 2] for row in range(5)])
    for choice in (
        {"given": torch.tensor([0, -1, 1499, 512, 511])},
        {"suppressed": torch.cat((top, torch.tensor([-1, 10**6]))).to(torch.int32)},
        {"suppressed": top[:, None].to(torch.int32)},
        {"temperature": 0.8, "sample_keys": keys},
    ):
        check(hidden, weight, refusion_ext.score_hidden(hidden, weight, **choice), **choice)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_suppressed_ids_of_many_rows_and_at_the_edges_of_tiles(dtype: torch.dtype) -> None:
    rows, multiples = 130, torch.arange(0, 600, 64, dtype=torch.int32)
    best = multiples[torch.arange(rows) % len(multiples)]
    weight = torch.randn(600, rows).clamp(-1, 1)  # with the unit matrix: the logits of row r in column r
    weight[best.long(), torch.arange(rows)] = 5
    hidden, weight = torch.eye(rows).to(dtype), weight.to(dtype)
    others = torch.stack([multiples[multiples != b] for b in best])
    for suppressed in (multiples, others):
        choice = {"suppressed": suppressed}
        scores = refusion_ext.score_hidden(hidden, weight, **choice)
        check(hidden, weight, scores, **choice)
        assert torch.equal(scores.token.int(), best) == (suppressed is others)


def test_lowest_id_wins_ties_across_tasks_and_threads() -> None:
    weight = torch.randn(20_000, 16).clamp(-1, 1)
    hidden = torch.ones(3, 16)
    weight[600::7] = 2
    scores = refusion_ext.score_hidden(hidden, weight)
    assert scores.token.tolist() == [600] * 3
    assert scores.margin.tolist() == [0] * 3


def test_nan_never_wins() -> None:
    hidden, weight = inputs(2, 600, 32, torch.float32)
    weight[37] = torch.nan
    check(hidden, weight, refusion_ext.score_hidden(hidden, weight))


def test_rows_vocabulary_and_width_may_be_empty() -> None:
    assert refusion_ext.score_hidden(torch.zeros(0, 8), torch.zeros(5, 8)).token.shape == (0,)
    assert refusion_ext.score_hidden(torch.zeros(2, 8), torch.zeros(0, 8)).token.tolist() == [-1, -1]
    flat = refusion_ext.score_hidden(torch.zeros(2, 0), torch.zeros(5, 0))
    assert flat.token.tolist() == [0, 0]
    torch.testing.assert_close(flat.probability, torch.full((2,), 0.2))


def test_a_row_is_the_same_alone_and_in_any_batch(backend: str) -> None:
    if backend == "oracle":
        pytest.skip("torch multiplies matrices of one row in another order")
    hidden, weight = inputs(67, 2000, 96, torch.bfloat16)
    whole = refusion_ext.score_hidden(hidden, weight)
    for first, end in ((0, 1), (5, 17), (40, 66), (63, 64), (66, 67)):
        part = refusion_ext.score_hidden(hidden[first:end], weight)
        for field, rows in whole._asdict().items():
            torch.testing.assert_close(getattr(part, field), rows[first:end], rtol=0, atol=0)


MEMORY_PROGRAM = """
import resource, torch, refusion_ext
hidden, weight = torch.randn(64, 16), torch.randn(300_000, 16)
refusion_ext.score_hidden(hidden, weight[:600])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refusion_ext.score_hidden(hidden, weight)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_vocabulary(backend: str) -> None:
    if backend != "cpu":
        pytest.skip("measured in a fresh process, on the installed kernels")
    result = subprocess.run([sys.executable, "-c", MEMORY_PROGRAM], check=True, capture_output=True, text=True)
    kibibytes = int(result.stdout)
    assert kibibytes < 4096  # the logits would take 75,000

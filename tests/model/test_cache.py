"""The KV store: logits through the cache, compaction, exactness, errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import refusion
from golden import CASES, DATA, config_of
from refusion.attention import CachedAttention, DenseAttention
from refusion.cache import CacheOverflowError, KVCache, Retain
from refusion.exactness import check_exactness, deviation

GOLDEN = load_file(DATA / "logits.safetensors")
SAMPLES = range(6)


def sample(index: int) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]:
    ids, positions, prefix, logits = (
        GOLDEN[f"{n}.{index}"] for n in ("input_ids", "position_ids", "prefix_len", "logits")
    )
    return ids, positions, int(prefix), logits


@torch.inference_mode()
def run(
    model: refusion.Qwen3, cache: KVCache, ids: torch.Tensor, positions: torch.Tensor, sequence: int = 0
) -> torch.Tensor:
    return model(ids, CachedAttention(cache, cache.chunk(ids, positions, sequence)))


def commit_all(cache: KVCache, sequence: int = 0) -> None:
    total = cache.committed[sequence] + cache.provisional[sequence]
    cache.retain({sequence: Retain(total, [], total)})


@pytest.mark.parametrize("index", SAMPLES)
def test_dense_logits(model: refusion.Qwen3, index: int) -> None:
    ids, positions, _, logits = sample(index)
    with torch.inference_mode():
        found = model(ids[None], DenseAttention(model.config, positions[None]))[0]
    assert (found - logits).abs().max() < 1e-4


@pytest.mark.parametrize("index", SAMPLES)
def test_logits_of_a_full_recompute(model: refusion.Qwen3, index: int) -> None:
    ids, positions, _, logits = sample(index)
    found = run(model, KVCache(model.config, 1, 200), ids, positions)
    assert (found - logits).abs().max() < 1e-4


@pytest.mark.parametrize("index", SAMPLES)
@pytest.mark.parametrize("cut", ["prefix", "one", "all but one"])
def test_logits_of_prefix_and_chunk(model: refusion.Qwen3, index: int, cut: str) -> None:
    ids, positions, prefix, logits = sample(index)
    at = {"prefix": prefix, "one": 1, "all but one": len(ids) - 1}[cut]
    cache = KVCache(model.config, 3, 200)
    cache.rows.fill_(torch.nan)  # rows that were never written must not be read
    first = run(model, cache, ids[:at], positions[:at], sequence=1)
    commit_all(cache, 1)
    second = run(model, cache, ids[at:], positions[at:], sequence=1)
    assert (torch.cat((first, second)) - logits).abs().max() < 1e-4


@pytest.mark.parametrize("index", SAMPLES)
def test_logits_after_shuffled_commits_and_compactions(model: refusion.Qwen3, index: int) -> None:
    """The prefix is written among noise tokens whose rows are dropped again, a few rows at a time."""
    ids, positions, prefix, logits = sample(index)
    chance = torch.Generator().manual_seed(index)
    cache = KVCache(model.config, 2, 300)
    cache.rows.fill_(torch.nan)
    done = 0
    while done < prefix:
        part = min(int(torch.randint(1, 20, (), generator=chance)), prefix - done)
        noise = int(torch.randint(0, 9, (), generator=chance))
        # Kept tokens see committed ones and each other; noise stands between them and is seen by none of them.
        kept = (torch.randperm(part + noise, generator=chance)[:part]).sort().values
        tokens = torch.randint(0, 256, (part + noise,), generator=chance)
        places = torch.randint(0, 200, (part + noise,), generator=chance)
        tokens[kept], places[kept] = ids[done : done + part], positions[done : done + part]
        for row in range(part + noise):
            run(model, cache, tokens[row : row + 1], places[row : row + 1], sequence=1)
            held = cache.committed[1] + cache.provisional[1]
            if row in kept.tolist():
                first = cache.committed[1]
                cache.retain({1: Retain(first, [held - 1], first + 1)})
        done += part
    cache.rollback(1)
    found = run(model, cache, ids[prefix:], positions[prefix:], sequence=1)
    assert (found - logits[prefix:]).abs().max() < 1e-4


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_retain_moves_rows_like_a_list(model: refusion.Qwen3, data: st.DataObject) -> None:
    sequences, capacity = 3, 40
    cache = KVCache(model.config, sequences, capacity)
    cache.rows.copy_(torch.randn(cache.rows.shape))
    expected = cache.rows.clone()
    moves = {}
    for sequence in data.draw(st.sets(st.integers(0, sequences - 1))):
        rows = data.draw(st.integers(0, capacity))
        cache.append(sequence, rows)
        first = data.draw(st.integers(0, rows))
        kept = sorted(data.draw(st.sets(st.integers(first, rows - 1))) if first < rows else set())
        committed = data.draw(st.integers(0, first + len(kept)))
        moves[sequence] = Retain(first, kept, committed)
        expected[:, :, sequence, :, first : first + len(kept)] = cache.rows[:, :, sequence][:, :, :, kept]
    cache.retain(moves)
    for sequence, move in moves.items():
        total = move.first + len(move.rows)
        assert (cache.committed[sequence], cache.provisional[sequence]) == (move.committed, total - move.committed)
        assert torch.equal(cache.rows[:, :, sequence, :, :total], expected[:, :, sequence, :, :total])


@pytest.mark.parametrize("case", range(0, len(CASES), 6))
@pytest.mark.parametrize("semantics", ["reference", "strict"])
def test_the_cache_is_exact(model: refusion.Qwen3, case: int, semantics: str) -> None:
    recorded = CASES[case]
    assert check_exactness(model, recorded["prompt"], config_of(recorded, semantics=semantics)) < 1e-4


def test_exactness_notices_a_wrong_row(model: refusion.Qwen3) -> None:
    ids, positions, _, _ = sample(0)
    cache = KVCache(model.config, 1, 200, record=True)
    run(model, cache, ids, positions)
    cache.retain({0: Retain(0, list(range(3, 90)), 87)})
    assert deviation(model, cache, 0) < 1e-4
    cache.layers[1][1][0, 0, 50] = cache.layers[1][1][0, 0, 51]
    assert deviation(model, cache, 0) > 1e-2


def test_overflow_is_refused_before_anything_is_written(model: refusion.Qwen3) -> None:
    cache = KVCache(model.config, 1, 10)
    cache.rows.fill_(7.0)
    with pytest.raises(CacheOverflowError, match="sequence 0 has 0 rows and 11 more exceed its capacity of 10"):
        run(model, cache, torch.zeros(11, dtype=torch.int64), torch.arange(11))
    assert (cache.rows == 7.0).all()
    assert cache.provisional == [0]


def test_bad_retains_and_crops(model: refusion.Qwen3) -> None:
    cache = KVCache(model.config, 1, 10)
    cache.append(0, 4)
    with pytest.raises(ValueError, match="row 4 of sequence 0 is kept, but it has 4 rows"):
        cache.retain({0: Retain(0, [3, 4], 2)})
    with pytest.raises(ValueError, match="cannot commit 3 of 2 rows"):
        cache.retain({0: Retain(0, [1, 3], 3)})
    with pytest.raises(ValueError, match="cannot crop 0 committed rows to 2"):
        cache.crop(0, 2)

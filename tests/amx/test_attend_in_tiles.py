"""The AMX source of attend, run with its tiles emulated: the same oracle as for the other instruction sets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from amx import emulated
from amx.emulated import Kernels, attend
from ops.cases import assert_as_good
from ops.test_attend import Problem, dense, problem

pytestmark = emulated.NEEDS


def check(kernels: Kernels, p: Problem, scale: float | None = None) -> Tensor:
    got = attend(kernels, p, scale)
    exact = dense(p, torch.float64, scale)
    floor = 4 * torch.finfo(p.q.dtype).eps * max(exact.abs().max().item(), 1e-3)
    assert_as_good(got, dense(p, p.q.dtype, scale), exact, floor=floor, name="attend")
    return got


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 2), (1, 7), (2, 8)])
def test_matrix(kernels: Kernels, head_dim: int, kv_heads: int, group: int) -> None:
    before = kernels.products()
    check(kernels, problem(torch.bfloat16, head_dim, kv_heads, group, ((40, 9), (0, 4), (130, 1), (7, 0), (1, 33))))
    assert kernels.products() > before


@pytest.mark.parametrize("kind", ["causal", "slots", "whole", "empty", "random"])
@pytest.mark.parametrize("committed", [0, 1, 15, 16, 33, 127, 128, 129, 300])
@pytest.mark.parametrize("tokens", [3, 17, 40])
def test_windows_around_block_borders(kernels: Kernels, kind: str, committed: int, tokens: int) -> None:
    check(kernels, problem(torch.bfloat16, 32, 1, 2, ((committed, tokens),), kind))


@pytest.mark.parametrize("head_dim", [8, 80, 248])
def test_other_head_sizes_fall_through(kernels: Kernels, head_dim: int) -> None:
    before = kernels.products()
    check(kernels, problem(torch.bfloat16, head_dim, 1, 2, ((40, 9),)))
    assert kernels.products() == before


@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
def test_scales(kernels: Kernels, scale: float) -> None:
    check(kernels, problem(torch.bfloat16, 64, 1, 2, ((150, 12),)), scale)


def test_long_prefixes_are_split(kernels: Kernels) -> None:
    check(kernels, problem(torch.bfloat16, 64, 1, 2, ((2100, 20), (3, 2))))


def test_a_bad_value_stays_with_those_who_see_it(kernels: Kernels) -> None:
    p = problem(torch.bfloat16, 64, 1, 2, ((140, 30),))
    blind = ~p.visible(0)[:, 155]
    expected = attend(kernels, p)
    p.v[0, :, 155] = torch.nan
    got = attend(kernels, p)
    torch.testing.assert_close(got[blind], expected[blind], atol=0.02, rtol=0.02)  # two bfloat16 roundings apart
    assert bool(got[~blind].isnan().all())


@pytest.mark.parametrize("odd", [0, 1])
def test_strides(kernels: Kernels, odd: int) -> None:
    p = problem(torch.bfloat16, 64, 2, 2, ((150, 20), (20, 3)))
    expected = attend(kernels, p)
    for name in ("k", "v"):
        cache = getattr(p, name)
        wide = torch.full((*cache.shape[2::-1], cache.shape[3] + 2 + odd), torch.nan, dtype=torch.bfloat16)
        view = wide.permute(2, 1, 0, 3)[..., : cache.shape[3]]
        setattr(p, name, view.copy_(cache))
    assert torch.equal(attend(kernels, p), expected)


@pytest.mark.parametrize("committed", [5, 120, 129])
def test_no_tile_reaches_past_the_cache(kernels: Kernels, committed: int) -> None:
    """The last key is the last row of the cache; what lies behind belongs to others."""
    p = problem(torch.bfloat16, 64, 1, 2, ((committed, 14),))
    ends = []
    for name in ("k", "v"):
        cache = getattr(p, name)[:, :, : committed + 14]
        room = torch.full((cache.numel() + 64 * 64,), torch.nan, dtype=torch.bfloat16)
        setattr(p, name, room[: cache.numel()].view(cache.shape).copy_(cache))
        ends.append(room.data_ptr() + 2 * cache.numel())
    for end in ends:
        kernels.forbid(end, end + 2 * 64 * 64)
        check(kernels, p)
        assert kernels.stray_loads() == 0
    kernels.forbid(None, None)

"""The AMX source of attend, run with its tiles emulated: the same oracle as for the other instruction sets."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import refusion_ext
from ops.cases import assert_as_good
from ops.test_attend import Problem, dense, problem

ROOT = Path(__file__).parents[2]
LEVELS = ("baseline", "avx2", "avx512", "amx")
FLAGS = (
    *("-std=gnu++17", "-O2", "-fPIC", "-fopenmp", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"),
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma", "-mf16c"),
)
EMULATED = ("-include", str(Path(__file__).with_name("tiles.h")))
BFLOAT16 = 1

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed"),
    pytest.mark.skipif(
        LEVELS.index(refusion_ext.info().isa_found) < LEVELS.index("avx512"), reason="needs AVX-512 with BF16"
    ),
]


class CacheStrides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("sequence", "head", "row")]


class Attend(ctypes.Structure):
    """csrc/refusion/attend.h"""

    _fields_ = [
        ("q", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("tokens", "q_heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("q_token_stride", "q_head_stride")),
        *((name, ctypes.c_void_p) for name in ("k_cache", "v_cache")),
        *((name, CacheStrides) for name in ("k_strides", "v_strides")),
        *((name, ctypes.c_int64) for name in ("sequences", "capacity")),
        *((name, ctypes.c_void_p) for name in ("sequence_offsets", "committed", "window_begin", "window_end")),
        ("scale", ctypes.c_float),
        ("out", ctypes.c_void_p),
    ]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("amx")
    cpu = ROOT / "csrc" / "cpu"
    sources = {
        "amx.o": (cpu / "amx" / "attend.cpp", "-DREFUSION_ISA=amx", *EMULATED),
        "avx512.o": (cpu / "kernels" / "attend.cpp", "-DREFUSION_ISA=avx512"),
        "scratch.o": (cpu / "scratch.cpp",),
        "harness.o": (Path(__file__).with_name("harness.cpp"), *EMULATED),
    }
    for name, arguments in sources.items():
        subprocess.run(["g++", *FLAGS, "-c", *map(str, arguments), "-o", str(folder / name)], check=True)
    library = folder / "attend.so"
    objects = [str(folder / name) for name in sources]
    subprocess.run(["g++", "-shared", "-fopenmp", *objects, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.products.restype = loaded.stray_loads.restype = ctypes.c_long
    loaded.forbid.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return loaded


def attend(kernel: ctypes.CDLL, p: Problem, scale: float | None = None) -> Tensor:
    out = torch.full(p.q.shape, torch.nan, dtype=p.q.dtype)
    op = Attend(
        *(p.q.data_ptr(), BFLOAT16, p.q.shape[0], p.q.shape[1], p.k.shape[1], p.q.shape[2]),
        *(p.q.stride(0), p.q.stride(1), p.k.data_ptr(), p.v.data_ptr()),
        *(CacheStrides(*x.stride()[:3]) for x in (p.k, p.v)),
        *(p.k.shape[0], p.k.shape[2]),
        *(x.data_ptr() for x in (p.offsets, p.committed, p.begin, p.end)),
        *(p.q.shape[2] ** -0.5 if scale is None else scale, out.data_ptr()),
    )
    kernel.attend(ctypes.byref(op))
    return out


def check(kernel: ctypes.CDLL, p: Problem, scale: float | None = None) -> Tensor:
    got = attend(kernel, p, scale)
    exact = dense(p, torch.float64, scale)
    floor = 4 * torch.finfo(p.q.dtype).eps * max(exact.abs().max().item(), 1e-3)
    assert_as_good(got, dense(p, p.q.dtype, scale), exact, floor=floor, name="attend")
    return got


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 2), (1, 7), (2, 8)])
def test_matrix(kernel: ctypes.CDLL, head_dim: int, kv_heads: int, group: int) -> None:
    before = kernel.products()
    check(kernel, problem(torch.bfloat16, head_dim, kv_heads, group, ((40, 9), (0, 4), (130, 1), (7, 0), (1, 33))))
    assert kernel.products() > before


@pytest.mark.parametrize("kind", ["causal", "slots", "whole", "empty", "random"])
@pytest.mark.parametrize("committed", [0, 1, 15, 16, 33, 127, 128, 129, 300])
@pytest.mark.parametrize("tokens", [3, 17, 40])
def test_windows_around_block_borders(kernel: ctypes.CDLL, kind: str, committed: int, tokens: int) -> None:
    check(kernel, problem(torch.bfloat16, 32, 1, 2, ((committed, tokens),), kind))


@pytest.mark.parametrize("head_dim", [8, 80, 248])
def test_other_head_sizes_fall_through(kernel: ctypes.CDLL, head_dim: int) -> None:
    before = kernel.products()
    check(kernel, problem(torch.bfloat16, head_dim, 1, 2, ((40, 9),)))
    assert kernel.products() == before


@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
def test_scales(kernel: ctypes.CDLL, scale: float) -> None:
    check(kernel, problem(torch.bfloat16, 64, 1, 2, ((150, 12),)), scale)


def test_long_prefixes_are_split(kernel: ctypes.CDLL) -> None:
    check(kernel, problem(torch.bfloat16, 64, 1, 2, ((2100, 20), (3, 2))))


def test_a_bad_value_stays_with_those_who_see_it(kernel: ctypes.CDLL) -> None:
    p = problem(torch.bfloat16, 64, 1, 2, ((140, 30),))
    blind = ~p.visible(0)[:, 155]
    expected = attend(kernel, p)
    p.v[0, :, 155] = torch.nan
    got = attend(kernel, p)
    torch.testing.assert_close(got[blind], expected[blind], atol=0.02, rtol=0.02)  # two bfloat16 roundings apart
    assert bool(got[~blind].isnan().all())


@pytest.mark.parametrize("odd", [0, 1])
def test_strides(kernel: ctypes.CDLL, odd: int) -> None:
    p = problem(torch.bfloat16, 64, 2, 2, ((150, 20), (20, 3)))
    expected = attend(kernel, p)
    for name in ("k", "v"):
        cache = getattr(p, name)
        wide = torch.full((*cache.shape[2::-1], cache.shape[3] + 2 + odd), torch.nan, dtype=torch.bfloat16)
        view = wide.permute(2, 1, 0, 3)[..., : cache.shape[3]]
        setattr(p, name, view.copy_(cache))
    assert torch.equal(attend(kernel, p), expected)


@pytest.mark.parametrize("committed", [5, 120, 129])
def test_no_tile_reaches_past_the_cache(kernel: ctypes.CDLL, committed: int) -> None:
    """The last key is the last row of the cache; what lies behind belongs to others."""
    p = problem(torch.bfloat16, 64, 1, 2, ((committed, 14),))
    ends = []
    for name in ("k", "v"):
        cache = getattr(p, name)[:, :, : committed + 14]
        room = torch.full((cache.numel() + 64 * 64,), torch.nan, dtype=torch.bfloat16)
        setattr(p, name, room[: cache.numel()].view(cache.shape).copy_(cache))
        ends.append(room.data_ptr() + 2 * cache.numel())
    for end in ends:
        kernel.forbid(end, end + 2 * 64 * 64)
        check(kernel, p)
        assert kernel.stray_loads() == 0
    kernel.forbid(None, None)

"""The AMX sources compiled with emulated tiles (tiles.h), and their ops as functions of tensors."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import refusion_ext
from ops.test_attend import Problem
from refusion_ext.results import TokenScores

ROOT = Path(__file__).parents[2]
LEVELS = ("baseline", "avx2", "avx512", "amx")
FLAGS = (
    *("-std=gnu++17", "-O1", "-fPIC", "-fopenmp", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"),
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma", "-mf16c"),
)
TILES = ("-include", str(Path(__file__).with_name("tiles.h")))
OPS = ("attend", "linear", "score_hidden")
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

NEEDS = [
    pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed"),
    pytest.mark.skipif(
        LEVELS.index(refusion_ext.info().isa_found) < LEVELS.index("avx512"), reason="needs AVX-512 with BF16"
    ),
]

Kernels = ctypes.CDLL


def _fields(integers: tuple[str, ...] = (), pointers: tuple[str, ...] = ()) -> list[tuple[str, type]]:
    return [*((name, ctypes.c_int64) for name in integers), *((name, ctypes.c_void_p) for name in pointers)]


class CacheStrides(ctypes.Structure):
    _fields_ = _fields(("sequence", "head", "row"))


class Attend(ctypes.Structure):
    """csrc/refusion/attend.h"""

    _fields_ = [
        ("q", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        *_fields(("tokens", "q_heads", "kv_heads", "head_dim", "q_token_stride", "q_head_stride")),
        *_fields(pointers=("k_cache", "v_cache")),
        *((name, CacheStrides) for name in ("k_strides", "v_strides")),
        *_fields(("sequences", "capacity"), ("sequence_offsets", "committed", "window_begin", "window_end")),
        ("scale", ctypes.c_float),
        ("out", ctypes.c_void_p),
    ]


class Linear(ctypes.Structure):
    """csrc/refusion/linear.h"""

    _fields_ = [
        *_fields(pointers=("x", "weight")),
        ("dtype", ctypes.c_int32),
        *_fields(("rows", "outputs", "width", "x_stride", "weight_stride"), ("bias", "norm")),
        ("norm_epsilon", ctypes.c_float),
        ("residual", ctypes.c_void_p),
        ("residual_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p),
    ]


class TokenChoice(ctypes.Structure):
    """csrc/refusion/score_tokens.h"""

    _fields_ = [
        *_fields(pointers=("given", "suppressed")),
        *_fields(("suppressed_rows", "suppressed_count")),
        ("temperature", ctypes.c_float),
        ("sample_keys", ctypes.c_void_p),
    ]


class ScoreHidden(ctypes.Structure):
    """csrc/refusion/score_hidden.h"""

    _fields_ = [
        *_fields(pointers=("hidden", "weight")),
        ("dtype", ctypes.c_int32),
        *_fields(("rows", "vocab", "width", "hidden_stride", "weight_stride")),
        ("choice", TokenChoice),
        *_fields(pointers=("token", "probability", "log_sum_exp", "entropy", "margin")),
    ]


def build(folder: Path) -> Kernels:
    """Compiles the three ops, with tiles emulated and with vectors, into one library."""
    cpu, here = ROOT / "csrc" / "cpu", Path(__file__).parent
    sources: dict[str, tuple[Path | str, ...]] = {
        "scratch.o": (cpu / "scratch.cpp",),
        "harness.o": (here / "harness.cpp", *TILES),
    }
    for op in OPS:
        sources[f"{op}.amx.o"] = (cpu / "amx" / f"{op}.cpp", "-DREFUSION_ISA=amx", *TILES)
        sources[f"{op}.avx512.o"] = (cpu / "kernels" / f"{op}.cpp", "-DREFUSION_ISA=avx512")
    compilers = [
        subprocess.Popen(["g++", *FLAGS, "-c", *map(str, arguments), "-o", str(folder / name)])
        for name, arguments in sources.items()
    ]
    assert [compiler.wait() for compiler in compilers] == [0] * len(compilers)
    library = folder / "kernels.so"
    objects = [str(folder / name) for name in sources]
    subprocess.run(["g++", "-shared", "-fopenmp", *objects, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.products.restype = loaded.stray_loads.restype = ctypes.c_long
    loaded.forbid.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return loaded


def attend(kernels: Kernels, p: Problem, scale: float | None = None) -> Tensor:
    out = torch.full(p.q.shape, torch.nan, dtype=p.q.dtype)
    op = Attend(
        *(p.q.data_ptr(), TYPES[p.q.dtype], p.q.shape[0], p.q.shape[1], p.k.shape[1], p.q.shape[2]),
        *(p.q.stride(0), p.q.stride(1), p.k.data_ptr(), p.v.data_ptr()),
        *(CacheStrides(*x.stride()[:3]) for x in (p.k, p.v)),
        *(p.k.shape[0], p.k.shape[2]),
        *(x.data_ptr() for x in (p.offsets, p.committed, p.begin, p.end)),
        *(p.q.shape[2] ** -0.5 if scale is None else scale, out.data_ptr()),
    )
    kernels.attend(ctypes.byref(op))
    return out


def linear(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    (rows, width), outputs = x.shape, len(weight)
    out = torch.full((rows, outputs), torch.nan, dtype=x.dtype)
    op = Linear(
        *(x.data_ptr(), weight.data_ptr(), TYPES[x.dtype], rows, outputs, width, x.stride(0), weight.stride(0)),
        *(None if term is None else term.data_ptr() for term in (bias, norm)),
        *(1e-6, None, 0) if residual is None else (1e-6, residual.data_ptr(), residual.stride(0)),
        out.data_ptr(),
    )
    kernels.linear(ctypes.byref(op))
    return out


def score_hidden(kernels: Kernels, hidden: Tensor, weight: Tensor) -> TokenScores:
    (rows, width), vocab = hidden.shape, len(weight)
    scores = TokenScores(torch.empty(rows, dtype=torch.int64), *(torch.empty(rows) for _ in range(4)))
    op = ScoreHidden(
        *(hidden.data_ptr(), weight.data_ptr(), TYPES[hidden.dtype], rows, vocab, width),
        *(hidden.stride(0), weight.stride(0), TokenChoice()),
        *(x.data_ptr() for x in scores),
    )
    kernels.score_hidden(ctypes.byref(op))
    return scores

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import refusion_ext
from refusion.linear import ALWAYS, FEW, linear


@pytest.mark.parametrize(
    ("tokens", "shape", "dtype", "compiled"),
    [
        (1, (96, 64), torch.float16, True),
        (FEW, (96, 64), torch.bfloat16, True),
        (FEW + 1, (96, 64), torch.bfloat16, torch.bfloat16 in ALWAYS),
        (20 * FEW, (96, 64), torch.float32, torch.float32 in ALWAYS),
        (FEW + 1, (96, 64), torch.float16, False),
        (2, (96, 64), torch.float64, False),
    ],
)
def test_the_faster_way_and_the_same_result(
    monkeypatch: pytest.MonkeyPatch, tokens: int, shape: tuple[int, int], dtype: torch.dtype, compiled: bool
) -> None:
    calls = []
    op = refusion_ext.linear
    monkeypatch.setattr(refusion_ext, "linear", lambda *a, **k: calls.append(a) or op(*a, **k))
    x, weight, norm = torch.randn(tokens, shape[1]), torch.randn(shape), torch.rand(shape[1])
    residual, bias = torch.randn(tokens, shape[0]), torch.randn(shape[0])
    expected = residual + F.linear(F.rms_norm(x, x.shape[-1:], norm, 1e-6), weight, bias)
    terms = {"bias": bias, "norm": norm, "residual": residual}
    got = linear(x.to(dtype), weight.to(dtype), **{name: term.to(dtype) for name, term in terms.items()})
    assert bool(calls) == compiled
    assert got.dtype == dtype
    error = (got.double() - expected).abs().max() / expected.abs().max()
    assert error < 8 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def test_gradients_flow() -> None:
    x, weight = torch.randn(2, 64).bfloat16(), torch.randn(96, 64).bfloat16().requires_grad_()
    linear(x, weight).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        assert not linear(x, weight).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gated(dtype: torch.dtype) -> None:
    x, weight, residual = torch.randn(3, 128).to(dtype), torch.randn(96, 64).to(dtype), torch.randn(3, 96).to(dtype)
    gate, up = x.chunk(2, -1)
    expected = F.linear(F.silu(gate) * up, weight) + residual
    got = linear(x, weight, gated=True, residual=residual)
    torch.testing.assert_close(got, expected, rtol=4 * torch.finfo(dtype).eps, atol=64 * torch.finfo(dtype).eps)

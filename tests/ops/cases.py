"""What the op tests share: element types, awkward memory layouts, and the measure of "as good as torch"."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPSILON = torch.finfo(torch.float32).eps


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def gapped(x: Tensor, *, gap: int = 3, offset: int = 1) -> Tensor:
    """The same values in rows that start at odd addresses with NaN between them: one stray read shows."""
    shape = (*x.shape[:-1], x.shape[-1] + gap)
    flat = torch.full((offset + torch.Size(shape).numel(),), torch.nan, dtype=x.dtype)
    view = flat[offset:].view(shape)[..., : x.shape[-1]]
    view.copy_(x)
    return view


def assert_as_good(got: Tensor, same_precision: Tensor, exact: Tensor, *, floor: float, name: str = "result") -> None:
    """The error of `got` is at most twice that of the same-precision torch expression, both against float64.

    `floor` is an absolute error that always passes: a few units in the last place of the values at hand.
    """
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}"
    finite = exact.isfinite()
    torch.testing.assert_close(got.double()[~finite], exact[~finite], equal_nan=True, msg=lambda m: f"{name}: {m}")
    assert bool(got.isfinite()[finite].all()), f"{name}: not finite where the exact result is"
    if not finite.any():
        return
    error = (got.double() - exact)[finite].abs().max().item()
    allowed = 2 * (same_precision.double() - exact)[finite].abs().max().item() + floor
    assert error <= allowed, f"{name}: error {error:.3e}, allowed {allowed:.3e}"


def bits(x: Tensor) -> Tensor:
    """The elements as integers, so that NaN compares equal to itself."""
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])

"""Products of the model with what stands around them, on whichever is faster: the compiled op or torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import refusion_ext

# The compiled op is faster than torch's norm, product and sum (docs/benchmarks.md) up to so many tokens, and at any
# number of them for types of which it multiplies rows along the lanes.
FEW = 64
ALWAYS = {"avx512": (torch.float32, torch.bfloat16), "amx": (torch.float32,)}.get(refusion_ext.info().isa_in_use, ())
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    norm_epsilon: float = 1e-6,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """`residual + rms_norm(x, norm) @ weight.T + bias`, or with `silu(gate) * up` in place of the norm.

    Args:
        x: [..., width]; [..., 2 * width], gate beside up, if gated.
        weight: [outputs, width].
        bias: [outputs], or None.
        norm: [width], weight of an RMS norm before the product, or None.
        norm_epsilon: of the RMS norm.
        gated: whether x is gate and up of a SwiGLU; then without norm.
        residual: [..., outputs], or None.

    Returns:
        [..., outputs].
    """
    if _pays(x, weight):
        return refusion_ext.linear(
            x, weight, bias=bias, norm=norm, norm_epsilon=norm_epsilon, gated=gated, residual=residual
        )
    if norm is not None:
        x = F.rms_norm(x, x.shape[-1:], norm, norm_epsilon)
    if gated:
        gate, up = x.chunk(2, -1)
        x = F.silu(gate) * up
    y = F.linear(x, weight, bias)
    return y if residual is None else residual + y


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Whether the compiled op takes these arguments and is faster."""
    return (
        x.ndim == 2
        and (x.shape[0] <= FEW or x.dtype in ALWAYS)
        and x.dtype in _TYPES
        and x.dtype == weight.dtype
        and x.device.type == "cpu"
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
    )

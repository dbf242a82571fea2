"""Rotary tables as Hugging Face defines them: plain, linearly scaled and YaRN (Peng et al., arXiv 2309.00071)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RopeScaling:
    """Field names follow Hugging Face's `rope_scaling`; `kind` is its `rope_type`, 'linear' or 'yarn'."""

    kind: str
    factor: float
    original_max_position_embeddings: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    @classmethod
    def from_hugging_face(cls, raw: Mapping[str, Any] | None) -> RopeScaling | None:
        """Raises `ValueError` for a scaling that is not known here: another one would be silently wrong."""
        kind = (raw or {}).get("rope_type", (raw or {}).get("type", "default"))
        if not raw or kind == "default":
            return None
        if kind not in ("linear", "yarn"):
            raise ValueError(f"config: rope_scaling of type {kind!r} is not supported, expected 'linear' or 'yarn'")
        factor = raw.get("factor")
        if not isinstance(factor, int | float) or factor < 1:
            raise ValueError(f"config: rope_scaling factor must be a number of at least 1, got {factor!r}")
        known = ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor")
        return cls(kind, float(factor), **{name: raw[name] for name in known if raw.get(name) is not None})

    def to_hugging_face(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "kind" and value is not None}
        return {"rope_type": self.kind, **fields}


def rope_tables(
    position_ids: Tensor,
    head_dim: int,
    theta: float,
    scaling: RopeScaling | None = None,
    max_position_embeddings: int = 32768,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of positions of any shape: float32 [..., head_dim / 2] each.

    Dimension i of a head turns together with dimension i + head_dim / 2.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device) / head_dim
    frequencies = 1.0 / theta**exponents
    magnitude = 1.0
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        original = scaling.original_max_position_embeddings or max_position_embeddings
        keep = _yarn_extrapolation(scaling, head_dim, theta, original).to(frequencies)
        frequencies = frequencies * keep + frequencies / scaling.factor * (1 - keep)
        magnitude = scaling.attention_factor or (0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0)
    angles = position_ids.float()[..., None] * frequencies
    return angles.cos() * magnitude, angles.sin() * magnitude


def _yarn_extrapolation(scaling: RopeScaling, head_dim: int, theta: float, original: int) -> Tensor:
    """Share of each frequency [head_dim / 2] that stays unscaled: 1 for fast dimensions, 0 for slow ones."""

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    return 1 - ramp.clamp(0, 1)

"""Rotary tables against a plain evaluation of their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from refusion.rope import RopeScaling, rope_tables


def expected_angles(
    position: int, head_dim: int, theta: float, scaling: RopeScaling | None, longest: int
) -> list[float]:
    angles = []
    for i in range(head_dim // 2):
        frequency = theta ** (-2 * i / head_dim)
        if scaling and scaling.kind == "linear":
            frequency /= scaling.factor
        elif scaling:
            original = scaling.original_max_position_embeddings or longest
            # YaRN: the dimension that turns `rotations` times over the original length
            low, high = (
                head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))
                for rotations in (scaling.beta_fast, scaling.beta_slow)
            )
            low, high = max(math.floor(low), 0), min(math.ceil(high), head_dim - 1)
            ramp = min(max((i - low) / max(high - low, 0.001), 0), 1)
            frequency = frequency * (1 - ramp) + frequency / scaling.factor * ramp
        angles.append(position * frequency)
    return angles


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16, "attention_factor": 1.3},
    ],
)
def test_tables(raw: dict | None) -> None:
    scaling = RopeScaling.from_hugging_face(raw)
    positions = torch.tensor([[0, 1, 17, 4000]])
    cosine, sine = rope_tables(positions, 64, 1e6, scaling, 32768)
    magnitude = 1.0
    if scaling and scaling.kind == "yarn":
        magnitude = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
    assert cosine.shape == sine.shape == (1, 4, 32)
    for at, position in enumerate(positions[0].tolist()):
        angles = torch.tensor(expected_angles(position, 64, 1e6, scaling, 32768), dtype=torch.float64)
        torch.testing.assert_close(cosine[0, at].double(), angles.cos() * magnitude, atol=5e-4, rtol=0)
        torch.testing.assert_close(sine[0, at].double(), angles.sin() * magnitude, atol=5e-4, rtol=0)


def test_round_trip_and_default() -> None:
    raw = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 1.0}
    scaling = RopeScaling.from_hugging_face(raw)
    assert scaling is not None
    assert scaling.to_hugging_face() == raw
    assert RopeScaling.from_hugging_face({"rope_type": "default", "rope_theta": 1e4}) is None

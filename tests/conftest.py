"""Shared by every test: the golden model."""

from __future__ import annotations

import pytest
import torch

import refusion
from golden import CHECKPOINT


@pytest.fixture(scope="session")
def model() -> refusion.Qwen3:
    """The trained golden model, float32."""
    return refusion.load(CHECKPOINT)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)

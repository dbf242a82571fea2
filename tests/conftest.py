"""Shared by every test: the golden model."""

from __future__ import annotations

import pytest
import refusion
import torch
from golden import CHECKPOINT


@pytest.fixture(scope="session")
def model() -> refusion.Qwen3:
    """The trained golden model, float32."""
    return refusion.load(CHECKPOINT)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)

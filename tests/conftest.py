"""Shared by every test: the golden model."""

from __future__ import annotations

import os

import pytest
import torch

import refusion
from golden import CHECKPOINT


@pytest.fixture(scope="session")
def model() -> refusion.Qwen3:
    """The trained golden model, float32."""
    return refusion.load(CHECKPOINT)


@pytest.fixture(autouse=True, scope="session")
def _outside_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that tests start would find the source folder of the package before the installed one."""
    os.chdir(tmp_path_factory.mktemp("work"))


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)

"""Shared by every test: the golden model."""

from __future__ import annotations

import os

if "OMP_WAIT_POLICY" not in os.environ:  # read when torch is loaded; on busy cores spinning threads take minutes
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

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

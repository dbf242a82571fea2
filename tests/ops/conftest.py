import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("ops", deadline=None)  # a busy machine is no failure
settings.load_profile("ops")


def pytest_report_header() -> str:
    return f"REFUSION_EXT_MAX_ISA: {os.environ.get('REFUSION_EXT_MAX_ISA') or 'not set'}"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
import torch
from backends import BACKENDS, compiled_module, missing
from hypothesis import HealthCheck, Phase, settings

# A busy machine is no failure; the backend is the same for every example.
settings.register_profile(
    "ops", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
# Failures as they are found, for those who only ask whether there are any.
settings.register_profile(
    "unshrunk", settings.get_profile("ops"), phases=[Phase.explicit, Phase.generate], derandomize=True, database=None
)
settings.load_profile("ops")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thins out what runs emulated, a thousand times slower than a CPU kernel; EMULATION_EVERY thins further."""
    every = int(os.environ.get("EMULATION_EVERY", "1"))
    names = [item.nodeid.partition("[")[0] for item in items if item.get_closest_marker("emulated")]
    cases, seen = Counter(names), Counter[str]()
    kept, dropped = [], []
    for item in items:
        chosen = True
        if item.get_closest_marker("emulated"):
            name = item.nodeid.partition("[")[0]
            large = item.get_closest_marker("large")
            step = (large.args[0] if large else 1) * every
            chosen = cases[name] < 5 or seen[name] % step == 0
            seen[name] += 1
        (kept if chosen else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def pytest_report_header() -> str:
    return f"REFUSION_EXT_MAX_ISA: {os.environ.get('REFUSION_EXT_MAX_ISA') or 'not set'}"


@pytest.fixture(scope="session")
def compiled_modules() -> dict[str, Any]:
    return {}


@pytest.fixture(autouse=True, params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in BACKENDS])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, compiled_modules: dict[str, Any]) -> str:
    """Every op test runs on every backend that can be had; `pytest -m emulated` chooses one."""
    name: str = request.param
    if reason := missing(name):
        pytest.skip(reason)
    if name not in compiled_modules:
        compiled_modules[name] = compiled_module(name)
    monkeypatch.setattr("refusion_ext.ops._C", compiled_modules[name])
    return name


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)

"""Workspace of a launch, from the allocator of the framework that owns the arrays; tried on the CPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "csrc" / "bindings"
pybind11 = pytest.importorskip("pybind11")
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not BINDINGS.is_dir(), reason="needs the sources and g++"
)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    library = tmp_path_factory.mktemp("workspace") / "workspace_harness.so"
    sources = [
        Path(__file__).with_name("workspace_harness.cpp"),
        *(BINDINGS / n for n in ("workspace.cpp", "check.cpp")),
    ]
    sources.append(BINDINGS / "tensor.cpp")
    include = [f"-I{ROOT / 'csrc'}", f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"]
    command = ["g++", "-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", *include, *map(str, sources)]
    subprocess.run([*command, "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("workspace_harness", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class OlderTorch(torch.Tensor):
    """As a tensor from before the exchange API."""

    __dlpack_c_exchange_api__ = None


@pytest.mark.parametrize(
    ("array", "exchange"),
    [(torch.zeros(3), True), (torch.zeros(3).as_subclass(OlderTorch), False), (np.zeros(3, np.float32), False)],
    ids=["exchange API", "torch before it", "numpy"],
)
def test_memory_comes_from_the_framework(harness: ModuleType, array: Any, exchange: bool) -> None:
    for size in (1, 255, 4096, 1 << 22):
        address, through_exchange = harness.fill(array, size)
        assert address % 256 == 0
        assert address != 0
        assert through_exchange == exchange
    assert harness.fill(array, 0)[0] == 0


def test_no_memory_is_a_named_error(harness: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"harness: no workspace of \d+ bytes on cpu: .*"):
        harness.fill(torch.zeros(3), 1 << 60)


def test_memory_goes_back(harness: ModuleType) -> None:
    import resource

    for _ in range(40):
        harness.fill(torch.zeros(3), 64 << 20)
    kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(40):
        harness.fill(torch.zeros(3), 64 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kept < (256 << 10)  # KiB

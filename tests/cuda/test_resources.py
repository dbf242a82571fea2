"""The check of register and shared-memory budgets, on a canned report, and that it reads the sources."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_cuda_resources.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the checkout")

SOURCE = """
// budget: registers 64, shared 1024
template <class T>
__global__ void __launch_bounds__(kThreads) merge(Attend op) {
// budget: registers 40, shared 0
__global__ void __launch_bounds__(threads(4), 2)
    merge_rows(Attend op, int n) {
// budget: registers 9, shared 0
void in_between();
__global__ void unbounded() {}
"""

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8refusion4cuda12_GLOBAL__N_15mergeIfEEvNS_6AttendE' for 'sm_80'
ptxas info    : Function properties for _ZN8refusion4cuda12_GLOBAL__N_15mergeIfEEvNS_6AttendE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem, 424 bytes cmem[0]
ptxas info    : Compile time = 107.257 ms
ptxas info    : Compiling entry function '_ZN8refusion4cuda12_GLOBAL__N_110merge_rowsENS_6AttendEi' for 'sm_120'
ptxas info    : Function properties for _ZN8refusion4cuda12_GLOBAL__N_110merge_rowsENS_6AttendEi
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 41 registers, 400 bytes cmem[0]
"""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_cuda_resources", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_budgets_are_read_from_the_line_above(check: ModuleType) -> None:
    assert check.budgets([SOURCE]) == {
        "merge": check.Budget(64, 1024),
        "merge_rows": check.Budget(40, 0),
        "unbounded": None,
    }


def test_every_kernel_of_the_project_has_a_budget(check: ModuleType) -> None:
    allowed = check.budgets(p.read_text() for p in check.CUDA.glob("*.cu*"))
    assert len(allowed) >= 8
    assert all(allowed.values())
    heads = sum(p.read_text().count("__global__ void") for p in check.CUDA.glob("*.cu*"))
    assert len(allowed) == heads


def test_report(check: ModuleType) -> None:
    merge, rows = check.parse(REPORT, check.budgets([SOURCE]))
    assert (merge.kernel, merge.architecture, merge.registers, merge.shared, merge.spilled) == (
        "merge",
        "sm_80",
        64,
        1024,
        0,
    )
    assert (rows.kernel, rows.architecture, rows.registers, rows.shared) == ("merge_rows", "sm_120", 41, 0)
    assert (rows.stack, rows.spilled) == (16, 12)
    assert merge.occupancy == 32 / 64  # 2048 registers a warp
    assert rows.occupancy == 42 / 48  # 41 registers take the room of 48
    with pytest.raises(ValueError, match="no kernel in the sources"):
        check.parse(REPORT, {"other": None})


def test_faults(check: ModuleType) -> None:
    allowed = check.budgets([SOURCE])
    merge, rows = check.parse(REPORT, allowed)
    assert check.faults([merge], {"merge": allowed["merge"]}) == []
    found = check.faults([merge, rows], {**allowed, "merge": check.Budget(63, 1023)})
    assert [fault.partition(" ")[2] for fault in found] == [
        "has no budget",
        "on sm_80 uses 64 registers, its budget is 63",
        "on sm_80 uses 1024 bytes of static shared memory, its budget is 1023",
        "on sm_120 spills 12 bytes",
        "on sm_120 uses 41 registers, its budget is 40",
    ]


def test_table_has_a_line_an_instance(check: ModuleType) -> None:
    lines = check.table(check.demangled(check.parse(REPORT, check.budgets([SOURCE])))).splitlines()
    assert len(lines) == 3
    assert "sm_80" in lines[0]
    assert "sm_120" in lines[0]
    assert any("  64   1024   50%" in line for line in lines)

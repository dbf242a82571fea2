#!/usr/bin/env python3
"""Compiles every CUDA file for every architecture and holds ptxas to the budgets that stand beside the kernels.

A kernel's budget is a line directly above it (and its template head): `// budget: registers 64, shared 1024`, registers
of a thread and bytes of static shared memory of a block; dynamic shared memory belongs to the launch and is not seen
here. Warnings, spills, a kernel without a budget and one above it fail. Needs nvcc.

Usage: scripts/check_cuda_resources.py [--architectures 80 90 120] [--jobs 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

CUDA = Path(__file__).resolve().parents[1] / "csrc" / "cuda"
REGISTERS = 65536  # of a multiprocessor, on every architecture from sm_80 on
WARPS = {80: 64, 90: 64, 100: 64}  # most a multiprocessor holds; 48 elsewhere


@dataclass(frozen=True)
class Budget:
    registers: int
    shared: int


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel, or one instance of a template, on one architecture."""

    kernel: str
    instance: str
    architecture: str
    registers: int
    shared: int
    stack: int
    spilled: int

    @property
    def occupancy(self) -> float:
        """Share of the warps of a multiprocessor that the registers leave room for."""
        each = -(-self.registers * 32 // 256) * 256  # registers are given to a warp by 256
        number = re.search(r"\d+", self.architecture)
        most = WARPS.get(int(number[0]), 48) if number else 48
        return min(1.0, REGISTERS // each / most)


def budgets(sources: Iterable[str]) -> dict[str, Budget | None]:
    """The budget of every `__global__` function; None for one without."""
    found: dict[str, Budget | None] = {}
    budget = r"(?:// budget: registers (\d+), shared (\d+)\n)?"
    for source in sources:
        for match in re.finditer(budget + r"(?:template .*\n)?__global__ +void\s+(\w+)\(", _plain(source)):
            found[match[3]] = Budget(int(match[1]), int(match[2])) if match[1] else None
    return found


def _plain(source: str) -> str:
    """Without launch bounds, whose parentheses would look like the kernel's."""
    return re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", source)


def parse(report: str, kernels: Iterable[str]) -> list[Usage]:
    """What `ptxas -v` wrote. Raises `ValueError` for an entry function that is none of the kernels."""
    entry = r"Compiling entry function '(?P<symbol>\w+)' for '(?P<architecture>\w+)'"
    stack = r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    used = r"Used (?P<registers>\d+) registers(?P<rest>.*)"
    found = []
    current: dict[str, str] = {}
    for line in report.splitlines():
        if match := re.search(entry, line):
            current = match.groupdict()
        elif (match := re.search(stack, line)) and "stack" not in current:
            current |= match.groupdict()
        elif match := re.search(used, line):
            shared = re.search(r"(\d+) bytes smem", match["rest"])
            spilled = int(current["stores"]) + int(current["loads"])
            names = [k for k in kernels if f"{len(k)}{k}" in current["symbol"]]
            if not names:
                raise ValueError(f"no kernel in the sources for {current['symbol']}")
            kernel = max(names, key=len)
            numbers = (int(match["registers"]), int(shared[1]) if shared else 0, int(current["stack"]), spilled)
            found.append(Usage(kernel, current["symbol"], current["architecture"], *numbers))
    return found


def faults(usages: Iterable[Usage], allowed: dict[str, Budget | None]) -> list[str]:
    """One sentence for everything that exceeds what is allowed."""
    found = [f"{kernel} has no budget" for kernel, budget in allowed.items() if budget is None]
    for u in usages:
        where = f"{u.instance} on {u.architecture}"
        budget = allowed[u.kernel]
        if u.spilled:
            found.append(f"{where} spills {u.spilled} bytes")
        if budget is not None and u.registers > budget.registers:
            found.append(f"{where} uses {u.registers} registers, its budget is {budget.registers}")
        if budget is not None and u.shared > budget.shared:
            found.append(f"{where} uses {u.shared} bytes of static shared memory, its budget is {budget.shared}")
    return found


def demangled(usages: list[Usage]) -> list[Usage]:
    """With instances named as in the sources, where c++filt is there to do it."""
    if not usages or shutil.which("c++filt") is None:
        return usages
    names = subprocess.run(["c++filt"], input="\n".join(u.instance for u in usages), capture_output=True, text=True)
    shortened = []
    for usage, name in zip(usages, names.stdout.splitlines(), strict=True):
        name = re.sub(r"refusion::cuda::|\(anonymous namespace\)::|^void ", "", name)
        shortened.append(Usage(**{**asdict(usage), "instance": re.sub(r"\(.*", "", name)}))
    return shortened


def table(usages: Iterable[Usage]) -> str:
    """One line an instance, its architectures side by side: registers, shared bytes, occupancy by registers."""
    rows: dict[str, dict[str, Usage]] = {}
    for u in usages:
        rows.setdefault(u.instance, {})[u.architecture] = u
    columns = sorted({a for row in rows.values() for a in row}, key=lambda a: (len(a), a))
    width = max((len(name) for name in rows), default=0)
    lines = [f"{'registers, shared, occupancy':{width}}" + "".join(f"  {c:>18}" for c in columns)]
    for name, row in sorted(rows.items()):
        cells = [f"{row[c].registers:4} {row[c].shared:6} {row[c].occupancy:5.0%}" if c in row else "" for c in columns]
        lines.append(f"{name:{width}}" + "".join(f"  {cell:>18}" for cell in cells))
    return "\n".join(lines)


def compile_reports(files: list[Path], architectures: list[str], jobs: int) -> list[str]:
    """What ptxas says of each file. Raises `RuntimeError` with nvcc's words where it fails."""
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    options = ["-std=c++17", f"-I{CUDA.parent}", "-Werror", "all-warnings", "-Xptxas", "-v", *codes]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(file: Path) -> str:
            command = ["nvcc", "-fatbin", *options, str(file), "-o", f"{folder}/{file.stem}.fatbin"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"nvcc refuses {file.name}:\n{done.stderr}")
            return done.stderr

        return list(pool.map(one, files))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--architectures", nargs="+", default=["80", "90", "120"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write what ptxas said here, too")
    args = parser.parse_args()
    if shutil.which("nvcc") is None:
        parser.error("nvcc is not on PATH")

    allowed = budgets(p.read_text() for p in sorted(CUDA.glob("*.cu*")))
    # The largest first, so that no long one runs alone at the end.
    files = sorted(CUDA.glob("*.cu"), key=lambda p: ("attend_" in p.name or "score_hidden" in p.name, p.name))[::-1]
    usages: list[Usage] = []
    for report in compile_reports(files, args.architectures, args.jobs):
        usages += parse(report, allowed)
    usages = demangled(usages)
    wrong = faults(usages, allowed)
    compiled = {u.kernel for u in usages}
    wrong += [f"{kernel} was never compiled" for kernel in allowed if kernel not in compiled]
    print(table(usages))
    if args.json:
        args.json.write_text(json.dumps([{**asdict(u), "occupancy": u.occupancy} for u in usages], indent=1))
    for fault in dict.fromkeys(wrong):
        print(f"error: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python
"""Runs the op tests on the CUDA kernels without a GPU, in every build and order of the emulation, then prints which
lines of the kernels were run. docs/testing-cuda.md says what that shows.

Usage: scripts/emulate_cuda.py [--jobs 2] [--every 5] [--least 95] [--coverage-only]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cuda"))
import builds  # noqa: E402
import runs  # noqa: E402


def run_all(chosen: list[runs.Run], jobs: int, every: int) -> bool:
    """Whether all passed. The log of one that did not is printed."""
    for build in dict.fromkeys(run.build for run in chosen):
        builds.module(build)  # once, before processes ask for it at the same time
    waiting, running, passed = list(chosen), {}, True
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                log = Path(folder) / f"{len(waiting)}.log"
                running[run] = (runs.start(run, ROOT, "tests/ops", every=every, log=log), log, time.monotonic())
            time.sleep(0.1)
            for run, (process, log, begun) in list(running.items()):
                if process.poll() is None:
                    continue
                text = log.read_text()
                seconds = time.monotonic() - begun
                print(f"{run!s:40} {text.strip().splitlines()[-1]} ({seconds:.0f} s)", flush=True)
                if process.returncode:
                    print(text)
                    passed = False
                del running[run]
    return passed


def lines_run() -> dict[str, dict[int, int]]:
    """How often each line of each kernel file was run, summed over instances of templates."""
    counts: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for kernel in builds.kernels():
        target, _ = builds.object_of(kernel, "coverage")
        command = ["gcov", "--json-format", "--stdout", str(target.with_name(target.name + ".gcda"))]
        report = subprocess.run(command, check=True, capture_output=True, text=True, cwd=target.parent).stdout
        for document in report.splitlines():
            for file in json.loads(document)["files"]:
                path = (ROOT / file["file"]).resolve()
                if path.parent == ROOT / "csrc" / "cuda":
                    for line in file["lines"]:
                        counts[path.name][line["line_number"]] += line["count"]
    return counts


def print_coverage(counts: dict[str, dict[int, int]]) -> float:
    total = done = 0
    for name, lines in sorted(counts.items()):
        missed = [str(n) for n, count in sorted(lines.items()) if not count]
        total, done = total + len(lines), done + len(lines) - len(missed)
        print(f"{name:28} {len(lines):4} lines {100 * (1 - len(missed) / len(lines)):6.1f} % {' '.join(missed)}")
    share = 100 * done / total
    print(f"{'all kernels':28} {total:4} lines {share:6.1f} %")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=5, help="of many cases of a test, run every so many")
    parser.add_argument("--least", type=float, default=95.0, help="percent of lines that must have run")
    parser.add_argument("--coverage-only", action="store_true")
    options = parser.parse_args()
    builds.forget_counts()
    chosen = [] if options.coverage_only else list(runs.RUNS[1:])  # the first one is part of the ordinary tests
    passed = run_all([*chosen, runs.Run("coverage", "ascending")], options.jobs, options.every)
    share = print_coverage(lines_run())
    if share < options.least:
        print(f"fewer than {options.least} % of the lines were run")
    return 0 if passed and share >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())

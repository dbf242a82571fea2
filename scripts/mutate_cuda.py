#!/usr/bin/env python
"""Breaks the CUDA kernels on purpose and sees whether the op tests notice, on the emulated backend.

`--planted`: one bug of each kind of scripts/planted_cuda_bugs.py; all must be caught.
Otherwise: one-token mutants of the kernels (barriers, waits and masks removed, comparisons and indices changed), in the
configurations one after another until one fails; prints what became of each. docs/testing-cuda.md explains the
survivors. Processes with different shares may run side by side.

Usage: scripts/mutate_cuda.py [--planted [--all-runs]] [--files compact_rows.cu ...] [--share 1/4] [--seconds 1800]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planted_cuda_bugs import BUGS

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "mutants" / str(os.getpid())
sys.path.insert(0, str(ROOT / "tests" / "cuda"))
from runs import ASCENDING, Run, start  # noqa: E402

TRIED = (
    ASCENDING,
    Run("race", "ascending"),
    Run("asan", "ascending"),
    Run("plain", "random", seed=1),
)
THINNED = 5  # of many cases of a test, one in so many is tried
HOSTILE = ("-m", "", "-k", "stay_inside", "tests/cuda/test_emulation.py")  # on indices that nobody has checked
TIME_LIMIT = 240  # seconds: a kernel that never ends is caught as well
# What a mutant of a file is tried on: a part of the cases of its op.
TESTS = {
    "accept_tokens": ["test_slots.py"],
    "attend": ["test_attend.py"],
    "compact_rows": ["test_compact_rows.py"],
    "ranges": ["test_rope_append.py", "test_compact_rows.py", "test_slots.py"],
    "rope_append": ["test_rope_append.py"],
    "score_hidden": ["test_score_hidden.py"],
    "score_merge": ["test_score_tokens.py"],
    "score_state": ["test_score_tokens.py", "test_score_hidden.py"],
    "score_tokens": ["test_score_tokens.py"],
    "select_slots": ["test_slots.py"],
}
# Name, what is replaced, by what.
RULES = (
    ("no __syncthreads", r"__syncthreads\(\);", ";"),
    ("no cp.async wait", r"cp_async_wait<[^>]*(?:>)?[^>]*>\(\);", ";"),
    ("< to <=", r"(?<=[\w\])]) < (?=[\w(])", " <= "),
    ("<= to <", r" <= ", " < "),
    (">= to >", r" >= ", " > "),
    ("> to >=", r"(?<=[\w\])]) > (?=[\w(])", " >= "),
    ("half a mask", r"_sync\(kAllLanes", "_sync(0xffffu"),
    ("half a tree", r"lanes = 16;", "lanes = 8;"),
    ("min to max", r"(?<![f\w])min\(", "max("),
    ("max to min", r"(?<![f\w])max\(", "min("),
    ("fmaxf to fminf", r"\bfmaxf\(", "fminf("),
    ("+ 1 to + 0", r" \+ 1\b", " + 0"),
    ("+ 8 to + 0", r" \+ 8\b", " + 0"),
    ("- 1 to - 0", r" - 1\b", " - 0"),
    (">> 2 to >> 1", r" >> 2\b", " >> 1"),
    ("& 3 to & 1", r" & 3\b", " & 1"),
    ("& 7 to & 3", r" & 7\b", " & 3"),
    ("and to or", r" && ", " || "),
)


@dataclass(frozen=True)
class Mutant:
    file: str
    rule: str
    line: int
    text: str  # the line
    source: str  # of the whole file


def mutants(files: list[str]) -> Iterator[Mutant]:
    for name in files:
        path = ROOT / "csrc" / "cuda" / name
        source = path.read_text()
        for rule, old, new in RULES:
            for match in re.finditer(old, source):
                number = source.count("\n", 0, match.start())
                line = source.splitlines()[number].strip()
                comment = "//" in source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
                if not comment and "static_assert" not in line and not line.startswith(("#", "template")):
                    yield Mutant(
                        path.name, rule, number + 1, line, source[: match.start()] + new + source[match.end() :]
                    )


def prepare_tree() -> None:
    """A copy of what is compiled and of the tests. Objects are shared: an unchanged source is not compiled again."""
    TREE.mkdir(parents=True)
    for name in ("csrc", "tests"):
        shutil.copytree(ROOT / name, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", TREE)
    (TREE / "build").mkdir()
    (ROOT / "build" / "emulation").mkdir(parents=True, exist_ok=True)
    (TREE / "build" / "emulation").symlink_to(ROOT / "build" / "emulation")


def test_arguments(file: str) -> list[str]:
    """For pytest: the op tests that see the file, failures unshrunk."""
    stem = next(stem for stem in sorted(TESTS, key=len, reverse=True) if file.startswith(stem))
    return ["--hypothesis-profile", "unshrunk", *(f"tests/ops/{name}" for name in TESTS[stem])]


def symptom(run: Run, every: int, *arguments: str) -> str | None:
    """How the tests that pytest's arguments choose notice what the tree has, or None."""
    log = TREE / "run.log"
    process = start(run, TREE, "-x", *arguments, every=every, log=log)
    try:
        if (code := process.wait(TIME_LIMIT)) == 0:
            return None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "does not end"
    text = log.read_text(errors="replace")
    for sign, meaning in (
        ("AddressSanitizer", "address sanitizer"),
        ("runtime error: ", "undefined-behaviour sanitizer"),
        ("Fatal Python error", "crash"),
        (" error: ", "does not compile"),
        ("data races", "race detector"),
        ("unwritten", "race detector: unwritten"),
        ("[emulation] signal", "fault"),
        ("divergence", "divergence"),
        ("divergent", "divergence"),
        ("takes no part", "absent lane"),
        ("does not contain the calling lane", "mask"),
        ("cp.async", "cp.async"),
        ("dynamic shared memory", "shared memory"),
        ("AssertionError", "values"),
        ("E       assert", "values"),
    ):
        if sign in text:
            return meaning
    return "crash" if code < 0 else "fails"


def plant(all_runs: bool) -> int:
    """Whether every planted bug was caught by some configuration, as an exit status."""
    missed = 0
    print("| bug | " + " | ".join(map(str, TRIED)) + " |\n|---" + "|---" * len(TRIED) + "|")
    for bug in BUGS:  # a row when it is done
        path = TREE / "csrc" / "cuda" / bug.file
        original = path.read_text()
        broken = original
        for old, new in bug.changes:
            if broken.count(old) != 1:
                raise SystemExit(f"{bug.kind}: {bug.file} has {broken.count(old)} times {old!r}; adapt the bug")
            broken = broken.replace(old, new)
        path.write_text(broken)
        found: list[str | None] = []
        for run in TRIED:
            if all_runs or not any(found):
                found.append(symptom(run, bug.every, "-k", bug.tests, *test_arguments(bug.file)))
        path.write_text(original)
        missed += not any(found)
        cells = [f or "-" for f in found] + [""] * (len(TRIED) - len(found))
        print(f"| {bug.kind} (`{bug.file}`) | " + " | ".join(cells) + " |", flush=True)
    print(f"{len(BUGS) - missed} of {len(BUGS)} caught")
    return 1 if missed else 0


def noticed(file: str) -> str | None:
    """What notices the mutant of a file: a part of the cases in each configuration, hostile indices, then all cases."""
    tests = test_arguments(file)
    for run in TRIED:
        if found := symptom(run, THINNED, *tests):
            return found
    if symptom(ASCENDING, 1, *HOSTILE):
        return "hostile indices"
    return symptom(ASCENDING, 1, *tests)


def mutate(files: list[str], part: int, parts: int, seconds: float) -> int:
    """Prints what notices each mutant, and sums."""
    begun = time.monotonic()
    for file in files:
        if found := noticed(file):
            raise SystemExit(f"the tests fail on {file} as it is: {found}")
    counts: Counter[str] = Counter()
    by_rule: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in list(mutants(files))[part - 1 :: parts]:
        if time.monotonic() - begun > seconds:
            print("stopped: time is over")
            break
        path = TREE / "csrc" / "cuda" / mutant.file
        original = path.read_text()
        path.write_text(mutant.source)
        found = noticed(mutant.file) or "survives"
        path.write_text(original)
        counts[found] += 1
        by_rule[mutant.rule]["survives" if found == "survives" else "caught"] += 1
        print(f"{found}: {mutant.file}:{mutant.line} {mutant.rule}: {mutant.text}", flush=True)
    print(f"{sum(counts.values())} mutants: " + ", ".join(f"{n} {name}" for name, n in counts.most_common()))
    for rule, outcome in by_rule.items():
        print(f"  {rule}: {outcome['caught']} caught, {outcome['survives']} survive")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--all-runs", action="store_true", help="planted: do not stop at the first that catches a bug")
    parser.add_argument("--files", nargs="+", help="of csrc/cuda; default: all kernels")
    parser.add_argument("--share", default="1/1", help="I/N: every N-th mutant, from the I-th")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    names = sorted(p.name for p in (ROOT / "csrc" / "cuda").glob("*.cu*") if p.stem not in ("library", "portable"))
    part, _, parts = options.share.partition("/")
    prepare_tree()
    try:
        if options.planted:
            return plant(options.all_runs)
        return mutate(options.files or names, int(part), int(parts), options.seconds)
    finally:
        shutil.rmtree(TREE)


if __name__ == "__main__":
    sys.exit(main())

"""The configurations in which the op tests run on the emulated kernels, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Run:
    build: str
    schedule: str
    seed: int = 1
    preempt: int = 0  # race build: another thread goes on at one of so many memory accesses

    def __str__(self) -> str:
        order = f"{self.schedule} {self.seed}" if "random" in self.schedule else self.schedule
        return f"{self.build}, {order}" + (f", preempted at 1 of {self.preempt}" if self.preempt else "")

    def environment(self) -> dict[str, str]:
        settings = {
            "EMULATION_BUILD": self.build,
            "EMULATION_SCHEDULE": self.schedule,
            "EMULATION_SEED": str(self.seed),
            "EMULATION_PREEMPT": str(self.preempt),
        }
        if self.build == "asan":  # leaks are off: the interpreter itself keeps memory until the end
            settings |= {"LD_PRELOAD": _runtimes(), "ASAN_OPTIONS": "detect_leaks=0"}
        return settings


# The script, not `python -m pytest`, which would put the checkout, where nothing is compiled, before what is installed.
PYTEST = (sys.executable, str(Path(sysconfig.get_path("scripts")) / "pytest"), "-p", "no:cacheprovider")

ASCENDING = Run("plain", "ascending")
RUNS = (
    ASCENDING,
    Run("asan", "ascending"),  # the longest first
    Run("race", "ascending"),
    Run("race", "random", seed=4, preempt=100),
    Run("plain", "descending"),
    Run("plain", "random", seed=1),
    Run("plain", "random", seed=2),
    Run("plain", "random_by_warp", seed=3),
)


@cache
def _runtimes() -> str:
    """The sanitizer's library has to be the first in the process."""
    names = ("libasan.so", "libstdc++.so")
    found = (subprocess.run(["g++", f"-print-file-name={n}"], capture_output=True, text=True).stdout for n in names)
    return ":".join(path.strip() for path in found)


def start(run: Run, root: Path, *arguments: str, every: int = 1, log: Path) -> subprocess.Popen[bytes]:
    """pytest on the emulated backend, for the sources below `root`, in a process group of its own."""
    command = [*PYTEST, "-m", "emulated", "--rootdir", str(root)]
    settings = {**os.environ, **run.environment(), "EMULATION_EVERY": str(every), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        return subprocess.Popen(
            [*command, *arguments],
            cwd=root,
            env=settings,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

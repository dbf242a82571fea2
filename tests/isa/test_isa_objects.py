"""No function of one instruction set may be linked in place of another's: every weak one carries its namespace."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEVELS = ("avx2", "avx512", "amx")


def objects_of(level: str) -> list[Path]:
    return sorted(ROOT.glob(f"build/**/refusion_cpu_{level}.dir/**/*.o"))


@pytest.mark.skipif(not shutil.which("nm"), reason="nm (binutils) is not installed")
@pytest.mark.parametrize("level", LEVELS)
def test_weak_functions_stay_in_their_namespace(level: str) -> None:
    objects = objects_of(level)
    if not objects:
        pytest.skip(f"no objects of {level} under build/")
    command = ["nm", "-C", "--defined-only", *map(str, objects)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # W and u: code or data that the linker may take from any object. V (weak data) executes nothing.
    weak = re.findall(r"^[0-9a-f]+ [Wu] (.*)$", symbols, re.MULTILINE)
    assert [name for name in weak if f"refusion::cpu::{level}::" not in name] == []

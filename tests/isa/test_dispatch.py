"""The instruction set in use, asked in fresh processes because it is decided once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import refusion_ext

LEVELS = ("baseline", "avx2", "avx512", "amx")
PROGRAM = "import refusion_ext; print(refusion_ext.info().isa_in_use)"


def run(level: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REFUSION_EXT_MAX_ISA": level}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("level", LEVELS)
def test_variable_caps_the_level(level: str) -> None:
    best = run("").stdout.strip()
    assert best in LEVELS
    assert run(level).stdout.strip() == min(level, best, key=LEVELS.index)


def test_unknown_level_is_named() -> None:
    result = run("avx1024")
    assert result.returncode != 0
    assert "REFUSION_EXT_MAX_ISA must be one of baseline, avx2, avx512, amx, got 'avx1024'" in result.stderr


def test_level_in_use_is_at_most_the_one_found() -> None:
    info = refusion_ext.info()
    assert LEVELS.index(info.isa_in_use) <= LEVELS.index(info.isa_found)

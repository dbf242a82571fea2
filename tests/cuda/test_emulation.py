"""The emulation itself: values of every operation, and every kind of fault found; kernels on hostile indices."""

from __future__ import annotations

import os
import subprocess

import builds
import pytest

ASAN = {"ASAN_OPTIONS": "detect_leaks=0"}

pytestmark = pytest.mark.skipif(not builds.available(), reason="needs the sources, g++ and x86-64")


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        *(("plain", {"EMULATION_SCHEDULE": s}) for s in ("ascending", "descending", "random_by_warp")),
        *(("plain", {"EMULATION_SCHEDULE": "random", "EMULATION_SEED": str(s)}) for s in (1, 2)),
        ("asan", ASAN),
        *(("race", {"EMULATION_SCHEDULE": s}) for s in ("ascending", "descending")),
        ("race", {"EMULATION_SCHEDULE": "random", "EMULATION_PREEMPT": "5"}),
    ],
)
def test_selftest(mode: str, settings: dict[str, str]) -> None:
    arguments = ["race"] if mode == "race" else []
    done = subprocess.run(
        [builds.selftest(mode), *arguments], env={**os.environ, **settings}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all passed" in done.stdout


def test_the_sanitizer_sees_atomics() -> None:
    settings = {**os.environ, **ASAN}
    done = subprocess.run([builds.selftest("asan"), "asan"], env=settings, capture_output=True, text=True)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "atomic_behind_an_array" in done.stderr


def test_kernels_stay_inside_their_arrays_whatever_the_indices() -> None:
    """On a device nobody reads offsets, rows and windows before the kernels do. The sanitizer ends the program."""
    done = subprocess.run([builds.hostile("asan")], env={**os.environ, **ASAN}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all inside" in done.stdout


def test_an_unknown_schedule_is_refused() -> None:
    settings = {**os.environ, "EMULATION_SCHEDULE": "sideways"}
    done = subprocess.run([builds.selftest("plain")], env=settings, capture_output=True, text=True)
    assert done.returncode != 0
    assert "unknown EMULATION_SCHEDULE sideways" in done.stderr

"""Importing the package costs nothing and commits to nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import refusion_ext

ROOT = Path(refusion_ext.__file__).parents[1]


def run(code: str, **environment: str) -> str:
    """Output of a fresh interpreter."""
    import os

    variables = {k: v for k, v in os.environ.items() if k != "REFUSION_EXT_MAX_ISA"}
    variables["PYTHONPATH"] = os.pathsep.join((str(ROOT), *filter(None, (variables.get("PYTHONPATH"),))))
    done = subprocess.run([sys.executable, "-c", code], env=variables | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WITHOUT = """
import sys
for name in {blocked}:
    sys.modules[name] = None  # import fails
import refusion_ext
"""


def test_works_without_torch() -> None:
    code = WITHOUT.format(blocked=["torch", "jax"])
    code += """
import numpy as np
q = np.ones((1, 2, 8), np.float32)
cache = np.arange(32, dtype=np.float32).reshape(1, 1, 4, 8)
number = lambda *values: np.array(values, np.int32)
out = refusion_ext.attend(q, cache, cache, number(0, 1), number(1), number(0), number(0))
assert (out == cache[0, 0, 0]).all()
scores = refusion_ext.score_tokens(np.zeros((2, 5), np.float32))
assert scores.token.tolist() == [0, 0] and type(scores.entropy) is np.ndarray
refusion_ext.compact_rows(cache, number(2), number(0, 1), number(0))
assert cache[0, 0, 0, 0] == 16
try:
    refusion_ext.attend([1], cache, cache, number(0, 1), number(1), number(0), number(0))
except TypeError as error:
    print(error)
"""
    assert run(code) == "attend: q must be an array that speaks DLPack, got list"


def test_imports_no_framework() -> None:
    assert run(WITHOUT.format(blocked=["torch", "jax", "numpy"]) + "print(refusion_ext.info().version)")
    loaded = run("import refusion_ext, sys; print({'torch', 'jax', 'numpy'} & set(sys.modules))")
    assert loaded == "set()"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_starts_no_thread_and_touches_no_device() -> None:
    code = """
import os, refusion_ext
refusion_ext.info()
print(len(os.listdir("/proc/self/task")))
print([line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line or "cudart" in line])
print([os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
       if os.path.exists(f"/proc/self/fd/{fd}") and "nvidia" in os.readlink(f"/proc/self/fd/{fd}")])
"""
    assert run(code).splitlines() == ["1", "[]", "[]"]


def test_fork_after_import() -> None:
    code = """
import os
import numpy as np
import refusion_ext
child = os.fork()
scores = refusion_ext.score_tokens(np.eye(300, 4000, dtype=np.float32))  # large enough for threads
assert scores.token.tolist() == list(range(300))
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(code) == "0"


def test_modules_that_need_torch_come_by_attribute() -> None:
    code = (
        "import refusion_ext, sys; refusion_ext.reference.attend; refusion_ext.torch_ops; print('torch' in sys.modules)"
    )
    assert run(code) == "True"
    with pytest.raises(AttributeError, match="module 'refusion_ext' has no attribute 'atend'"):
        _ = refusion_ext.atend


def test_info() -> None:
    info = refusion_ext.info()
    assert info.version == refusion_ext.__version__
    assert info.isa_compiled[0] == "baseline"
    assert info.isa_found in info.isa_compiled
    assert info.isa_compiled.index(info.isa_in_use) <= info.isa_compiled.index(info.isa_found)
    assert info.threads >= 1
    assert info.cuda
    for part in (info.version, info.isa_in_use, str(info.threads), info.cuda):
        assert part in str(info)


def test_instruction_set_can_be_capped() -> None:
    code = "import refusion_ext; print(refusion_ext.info())"
    assert "instruction set  baseline" in run(code, REFUSION_EXT_MAX_ISA="baseline")
    code = """
import refusion_ext
for ask in (refusion_ext.info, lambda: refusion_ext.score_tokens(__import__("numpy").zeros((1, 1), "float32"))):
    try:
        ask()
    except ValueError as error:
        print(error)
"""
    message = "REFUSION_EXT_MAX_ISA must be one of baseline, avx2, avx512, amx, got 'sse'"
    assert run(code, REFUSION_EXT_MAX_ISA="sse").splitlines() == [message, message]

"""Builds of the emulation: the kernels of csrc/cuda behind the real bindings, and the emulation's own self-test.

Objects are kept in `build/emulation` of the checkout, named by the hash of what they include, so that an unchanged
tree compiles nothing. Modes: 'plain'; 'asan' (address and undefined-behaviour sanitizers); 'race' (race detector);
'coverage'.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
EMULATION = FOLDER / "emulation"
MODES = {
    "plain": ("-O2",),
    "asan": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
    "race": ("-O1", "-fsanitize=thread"),
    "coverage": ("-O1", "--coverage", "-fprofile-update=single"),
}
LINKED = {"asan": ("-fsanitize=address,undefined",), "coverage": ("--coverage",)}
COMMON = (
    *("-std=c++17", "-g", "-fPIC", "-fvisibility=hidden", "-Icsrc", "-Itests/cuda", "-Itests/cuda/emulation"),
    *("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-fno-strict-aliasing", "-ffp-contract=off"),
)


def available() -> bool:
    """Whether this is a checkout and there is a compiler that the emulation knows."""
    return (ROOT / "csrc" / "cuda").is_dir() and shutil.which("g++") is not None and os.uname().machine == "x86_64"


def kernels() -> list[Path]:
    return sorted(p for p in (ROOT / "csrc" / "cuda").glob("*.cu") if p.name != "library.cu")  # speaks to the driver


@functools.cache
def module(mode: str) -> Path:
    """The emulated `_C` of a mode, built if need be."""
    import pybind11

    include = (f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}", '-DREFUSION_VERSION="emulated"')
    jobs = [_object(FOLDER / "emulated_bindings.cpp", ("-O0", "-g0", "-fopenmp", *include))]
    jobs += [_object(p, ("-O2",)) for p in sorted(EMULATION.glob("*.cpp"))]
    jobs += [object_of(p, mode) for p in kernels()]
    return _link(jobs, f"_C-{mode}", ("-shared", "-fopenmp", "-ldl", *LINKED.get(mode, ())))


def selftest(mode: str) -> Path:
    """The emulation's self-test as a program."""
    return _program(EMULATION / "selftest.cu", mode, [])


def hostile(mode: str) -> Path:
    """The kernels on indices that nobody has checked, as a program."""
    return _program(FOLDER / "hostile.cu", mode, kernels())


def _program(source: Path, mode: str, others: list[Path]) -> Path:
    jobs = [_object(p, ("-O2",)) for p in sorted(EMULATION.glob("*.cpp"))]
    jobs += [object_of(p, mode) for p in (*others, source)]
    return _link(jobs, f"{source.stem}-{mode}", ("-ldl", *LINKED.get(mode, ())))


def load(path: Path) -> ModuleType:
    """Imports a module built by `module`."""
    spec = importlib.util.spec_from_file_location("_C", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def object_of(source: Path, mode: str) -> tuple[Path, list[str]]:
    """Where the object of CUDA code lies, and the command that makes it."""
    return _object(source, (*MODES[mode], "-x", "c++", "-include", "tests/cuda/emulation/cuda_emulation.h"))


def forget_counts() -> None:
    """Lets the counts of the build 'coverage' begin at zero."""
    for path in (ROOT / "build" / "emulation").glob("*.gcda"):
        path.unlink()


@functools.cache
def _includes(source: Path) -> tuple[Path, ...]:
    """The source and all of this project that it includes."""
    found = {source: None}
    for name in re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE):
        for folder in (source.parent, ROOT / "csrc", FOLDER, EMULATION):
            if (folder / name).exists():
                found |= dict.fromkeys(_includes(folder / name))
                break
    return tuple(found)


def _object(source: Path, flags: tuple[str, ...]) -> tuple[Path, list[str]]:
    """Where the object of a source lies, and the command that makes it."""
    digest = hashlib.sha256(repr(flags).encode())
    for path in (*_includes(source), *_includes(EMULATION / "cuda_emulation.h")):
        digest.update(path.read_bytes())
    target = ROOT / "build" / "emulation" / f"{source.stem}-{digest.hexdigest()[:16]}.o"
    return target, ["g++", *COMMON, *flags, "-c", str(source.relative_to(ROOT)), "-o", str(target)]


def _link(jobs: list[tuple[Path, list[str]]], name: str, flags: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(repr([str(target) for target, _ in jobs]).encode()).hexdigest()[:16]
    folder = ROOT / "build" / "emulation" / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / ("_C.so" if name.startswith("_C") else name)
    if not result.exists():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, [command for target, command in jobs if not target.exists()]))
        _run(["g++", *(str(target) for target, _ in jobs), *flags, "-o", str(result)])
    return result


def _run(command: list[str]) -> None:
    """Runs a compiler; its result appears complete or not at all, whoever else builds the same."""
    target = command[-1]
    temporary = f"{target}.{os.getpid()}"
    done = subprocess.run([*command[:-1], temporary], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    os.replace(temporary, target)

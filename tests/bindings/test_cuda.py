"""What a CUDA array meets on a machine without a GPU, and what the build does without nvcc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from calls import OPS, arrays, call, replaced, valid
from test_import import run
from test_rejections import ElsewhereDLPack

import refusion_ext

ROOT = Path(__file__).parents[2]
BUILT = refusion_ext.info().cuda_built
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the arrays only pretend to be on a GPU")


def elsewhere(op: str) -> dict[str, Any]:
    """A valid call whose arrays claim to lie on a CUDA device."""
    arguments = valid(op)
    for name, value in arrays(arguments).items():
        arguments = replaced(arguments, name, ElsewhereDLPack(value))
    return arguments


@without_gpu
@pytest.mark.parametrize("op", [op for op in OPS if op != "linear"])  # has no kernel there: torch does it
def test_no_device_is_a_named_error(op: str) -> None:
    """Never the oracle in silence, which would be slow, and never a crash."""
    if BUILT:
        expected = f"{op}: no CUDA driver for cuda:0 .*: install a driver of CUDA .* or newer"
        if Path("/dev/nvidiactl").exists():
            expected = f"{op}: (no CUDA driver|cannot use) "
    else:
        expected = (
            rf"{op}: the arrays lie on cuda:0, but refusion_ext was built without CUDA kernels \(.*REFUSION_CUDA=on"
        )
    with pytest.raises(refusion_ext.CudaUnavailableError, match=expected):
        call(op, elsewhere(op))


@without_gpu
def test_kernels_are_loaded_at_the_first_cuda_array() -> None:
    code = f"""
import sys
sys.path[:0] = {[str(ROOT / "tests" / "bindings"), str(ROOT / "tests")]}
import refusion_ext
from calls import call, valid
from test_cuda import elsewhere
loaded = lambda: "_cuda.so" in open("/proc/self/maps").read()
refusion_ext.info()
call("attend", valid("attend"))
print(loaded())
try:
    call("attend", elsewhere("attend"))
except refusion_ext.CudaUnavailableError as error:
    print(loaded())
"""
    assert run(code).splitlines() == ["False", str(BUILT)]


@pytest.mark.skipif(not BUILT, reason="built without CUDA kernels")
def test_a_lost_library_is_a_named_error(tmp_path: Path) -> None:
    package = Path(refusion_ext.__file__).parent
    shutil.copytree(package, tmp_path / "refusion_ext", ignore=shutil.ignore_patterns("_cuda.so", "__pycache__"))
    code = f"""
import sys
sys.path[:0] = {[str(tmp_path), str(ROOT / "tests" / "bindings"), str(ROOT / "tests")]}
import refusion_ext
assert refusion_ext.__file__.startswith({str(tmp_path)!r})
from calls import call
from test_cuda import elsewhere
try:
    call("attend", elsewhere("attend"))
except refusion_ext.CudaUnavailableError as error:
    print(error)
"""
    assert re.match(r"attend: cannot load the CUDA kernels: .*_cuda\.so.*; install refusion_ext again", run(code))


@pytest.mark.skipif(not BUILT, reason="built without CUDA kernels")
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_the_library_exports_its_table_alone() -> None:
    """Symbols of the static CUDA runtime would meet those of torch's."""
    library = Path(refusion_ext.__file__).with_name("_cuda.so")
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["refusion_cuda_library"]


def test_info_tells_what_was_built() -> None:
    info = refusion_ext.info()
    if BUILT:
        assert info.cuda_toolkit is not None
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?", info.cuda_toolkit)
        assert all(re.fullmatch(r"(sm_|PTX )\d+[a-z]?", code) for code in info.cuda_architectures)
        assert info.cuda == f"built with toolkit {info.cuda_toolkit} for {', '.join(info.cuda_architectures)}"
    else:
        assert info.cuda.startswith("not built: ")
        assert (info.cuda_toolkit, info.cuda_architectures) == (None, ())


def configure(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The part of the build that decides about CUDA, in a project without any other language."""
    lines = ["cmake_minimum_required(VERSION 3.18)", "project(test LANGUAGES NONE)"]
    lines += [f"include({ROOT / 'csrc' / 'cuda' / 'build.cmake'})"]
    lines += ['message(STATUS "built=${REFUSION_CUDA_BUILT} reason=${REFUSION_CUDA_REASON}")']
    (folder / "CMakeLists.txt").write_text("\n".join(lines))
    command = ["cmake", "-S", folder, "-B", folder / "build", *options]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


@needs_cmake
def test_on_without_nvcc_names_the_remedy(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DREFUSION_CUDA=on", CUDACXX=str(tmp_path / "nvcc"))
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert f"REFUSION_CUDA=on, but {tmp_path / 'nvcc'} does not work" in said
    assert "Install a CUDA toolkit" in said
    assert "REFUSION_CUDA=off" in said


@needs_cmake
def test_auto_with_a_broken_nvcc_builds_without(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'nvcc fatal : \"host\" compiler; missing' >&2\nexit 1\n")
    nvcc.chmod(0o755)
    done = configure(tmp_path, CUDACXX=str(nvcc))
    assert done.returncode == 0, done.stderr
    # Quotes would end the string that the reason becomes in C++.
    assert f"built= reason={nvcc} does not work: nvcc fatal : 'host' compiler' missing" in done.stdout


@needs_cmake
@pytest.mark.parametrize(("options", "message"), [
    (["-DREFUSION_CUDA=yes"], "REFUSION_CUDA must be auto, on or off, got 'yes'"),
    (["-DREFUSION_CUDA=off"], None),
])  # fmt: skip
def test_setting(tmp_path: Path, options: list[str], message: str | None) -> None:
    done = configure(tmp_path, *options)
    if message is None:
        assert "built= reason=REFUSION_CUDA=off" in done.stdout
    else:
        assert message in " ".join(done.stderr.split())

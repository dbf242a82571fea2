"""Builds the compiled module with CMake and Ninja; everything else stands in pyproject.toml.

Environment: REFUSION_CUDA is auto (the default: CUDA kernels where nvcc works), on or off; CMAKE_ARGS is passed on to
CMake (-DCMAKE_CUDA_ARCHITECTURES=80;90 is the default), MAX_JOBS limits parallel jobs.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
JOB_MEMORY = 2 << 30  # bytes that one compiler process may need


class CMakeBuild(build_ext):
    def build_extension(self, extension: Extension) -> None:
        import pybind11

        build = Path(self.build_temp).resolve()
        package = Path(self.get_ext_fullpath(extension.name)).resolve().parent
        build.mkdir(parents=True, exist_ok=True)
        (package / "_cuda.so").unlink(missing_ok=True)  # of an earlier build: this one may be without CUDA
        configure = [
            "cmake",
            *("-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
            # Named each time: a build folder kept from an earlier install remembers tools that are gone by now.
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DPYBIND11_FINDPYTHON=ON",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DREFUSION_VERSION={self.distribution.get_version()}",
            f"-DREFUSION_CUDA={os.environ.get('REFUSION_CUDA', 'auto')}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--parallel", str(job_count())], check=True)
        install = ["cmake", "--install", str(build), "--component", "python", "--prefix", str(package.parent)]
        subprocess.run(install, check=True)

    def copy_extensions_to_source(self) -> None:
        """For --inplace: also the library of the CUDA kernels, which setuptools does not know."""
        super().copy_extensions_to_source()
        built = Path(self.build_lib) / "refusion_ext" / "_cuda.so"
        target = ROOT / "refusion_ext" / built.name
        target.unlink(missing_ok=True)
        if built.exists():
            shutil.copy2(built, target)


def job_count() -> int:
    """As many jobs as cores, but no more than the memory carries."""
    if "MAX_JOBS" in os.environ:
        return max(1, int(os.environ["MAX_JOBS"]))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // JOB_MEMORY))


setup(ext_modules=[Extension("refusion_ext._C", sources=[])], cmdclass={"build_ext": CMakeBuild})

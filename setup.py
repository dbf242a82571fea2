"""Builds the compiled module with CMake and Ninja; everything else stands in pyproject.toml.

Environment: CMAKE_ARGS is passed on to CMake, MAX_JOBS limits parallel jobs.
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
        configure = [
            "cmake",
            *("-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
            # Named each time: a build folder kept from an earlier install remembers tools that are gone by now.
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DPYBIND11_FINDPYTHON=ON",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DREFUSION_VERSION={self.distribution.get_version()}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--parallel", str(job_count())], check=True)
        install = ["cmake", "--install", str(build), "--component", "python", "--prefix", str(package.parent)]
        subprocess.run(install, check=True)


def job_count() -> int:
    """As many jobs as cores, but no more than the memory carries."""
    if "MAX_JOBS" in os.environ:
        return max(1, int(os.environ["MAX_JOBS"]))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // JOB_MEMORY))


setup(ext_modules=[Extension("refusion_ext._C", sources=[])], cmdclass={"build_ext": CMakeBuild})

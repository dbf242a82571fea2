#!/usr/bin/env bash
# Builds the compiled module with warnings as errors and with sanitizers, and runs the kernel and binding tests on it.
# Usage: scripts/sanitize.sh BUILD_FOLDER   (a Python with the package's test and dev extras on PATH)
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
mkdir -p "$build/package"
cp -r refusion_ext "$build/package/"
rm -f "$build"/package/refusion_ext/*.so
cmake -S . -B "$build/cmake" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREFUSION_WERROR=ON \
  -DREFUSION_SANITIZE=address,undefined -DREFUSION_CUDA=off -DPYBIND11_FINDPYTHON=ON \
  -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)"
cmake --build "$build/cmake" --parallel 2
cmake --install "$build/cmake" --component python --prefix "$build/package"

# Leaks are off: the interpreter itself keeps memory until the end. The runtime must come first in the process.
preload=$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libstdc++.so)
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  LD_PRELOAD=$preload \
  PYTHONPATH="$build/package:$PWD/python" pytest -p no:cacheprovider tests/ops tests/bindings \
  -m "not oracle and not emulated"

#!/usr/bin/env bash
# Builds the package with its CUDA kernels, checks and measures them on this machine's GPU: operations, every op case,
# compute-sanitizer, whole decodes, microbenchmarks. Writes gpu_check.json and gpu_check.md to a folder.
# Needs a CUDA toolkit and a Python with torch, pybind11, cmake, ninja, pytest and hypothesis; no network.
# Usage: scripts/gpu_check.sh [--emulated] [--out FOLDER]
#   --emulated   no GPU: the installed package, kernels run by the emulation, tiny sizes. Tries this script itself.
set -euo pipefail
cd "$(dirname "$0")/.."
emulated=
out=build/gpu_check
while [ $# -gt 0 ]; do
  case $1 in
    --emulated) emulated=--emulated; shift ;;
    --out) out=$2; shift 2 ;;
    *) echo "gpu_check.sh: unknown option $1" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)

if [ -z "$emulated" ]; then
  mkdir -p "$out/package"
  cp -r refusion_ext "$out/package/"
  rm -f "$out"/package/refusion_ext/*.so
  architecture=$(python -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
  cmake -S . -B "$out/cmake" -G Ninja -DREFUSION_CUDA=on -DCMAKE_CUDA_ARCHITECTURES="$architecture" \
    -DPYBIND11_FINDPYTHON=ON -DPython_EXECUTABLE="$(command -v python)" \
    -Dpybind11_DIR="$(python -m pybind11 --cmakedir)"
  cmake --build "$out/cmake" --parallel
  cmake --install "$out/cmake" --component python --prefix "$out/package"
  export PYTHONPATH=$out/package:$PWD/python${PYTHONPATH:+:$PYTHONPATH}
fi
python scripts/gpu_check.py $emulated --out "$out"

"""The steps of scripts/gpu_check.sh behind the build. Each is run whatever the others do; any failure fails."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "cuda"), str(ROOT / "scripts")]

import gpu_benchmarks  # noqa: E402
import runs  # noqa: E402

# Under compute-sanitizer a kernel is ten to a hundred times slower: the large sizes are left out.
SANITIZED = "not (long_prefixes or many_rows or real_vocabulary or thousands)"


@dataclass(frozen=True)
class Step:
    name: str
    passed: bool
    seconds: float
    detail: str
    """What it found, in a line; the end of the output where it failed."""


def run_step(name: str, action: Callable[[], str]) -> Step:
    print(f"--- {name}", flush=True)
    began = time.perf_counter()
    try:
        passed, detail = True, action()
    except Exception as error:  # the other steps go on
        passed, detail = False, f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    print(f"    {'passed' if passed else 'FAILED'} in {seconds:.1f} s: {detail}", flush=True)
    return Step(name, passed, seconds, detail)


def output_of(command: list[str | Path], **environment: str) -> str:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, cwd=ROOT)
    output = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {output[-2000:]}")
    return output


def operations(emulated: bool, out: Path) -> str:
    """The value kernels of the emulation's self-test: the same program is right on both sides, or it ends with 1."""
    import builds

    answers = []
    if builds.available():
        answers.append("emulated: " + output_of([builds.selftest("plain")]).splitlines()[-1])
    if not emulated:
        program = out / "selftest"
        source = ROOT / "tests" / "cuda" / "emulation" / "selftest.cu"
        output_of(["nvcc", "-std=c++17", "-arch=native", f"-I{ROOT / 'csrc'}", source, "-o", program])
        answers.append("device: " + output_of([program]).splitlines()[-1])
    return ", ".join(answers)


def op_cases(backend: str, selection: str, prefix: tuple[str, ...] = (), **environment: str) -> str:
    """The op tests on one backend. Returns pytest's last line."""
    command = [*prefix, *runs.PYTEST, "tests/ops", "-m", backend]
    said = output_of([*command, "-k", selection], **environment)
    line = next((line for line in reversed(said.splitlines()) if " passed" in line), None)
    if line is None:
        raise RuntimeError(f"no test ran: {said[-500:]}")
    return line


def sanitizer(tool: str, selection: str) -> str:
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise RuntimeError("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    options = ("--tool", tool, "--error-exitcode", "9", "--target-processes", "all")
    # Without torch's cache of memory, every array is an allocation of its own, whose end the tool knows.
    return op_cases("cuda", selection, (program, *options), PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def decodes(emulated: bool) -> str:
    """The bundled checkpoint in float32: the same tokens from the CPU kernels and from the CUDA kernels."""
    import refusion
    import refusion_ext
    from refusion.cli.options import BUNDLED
    from refusion.tokenizer import Tokenizer

    checkpoint = BUNDLED / "code-refusion"
    tokenizer = Tokenizer.load(checkpoint)
    texts = (
        "Write score(xs) for a list: sort it, then take the last 3, then return the sum.",
        "Write tidy(n) for a number: square it, then return it.",
        "Create a function convert(data). Given a dict, keep only the values that are even; return the total.",
    )
    prompts = [tokenizer.prompt(text) for text in texts]
    length = 16 if emulated else 256
    configs = [
        refusion.DecodeConfig(max_new_tokens=length, lookahead=lookahead, temperature=temperature)
        for lookahead, temperature in (("off", 0.0), ("on", 0.0), ("off", 0.7))[: 1 if emulated else 3]
    ]
    model = refusion.load(checkpoint, dtype="float32")
    expected = [[r.tokens for r in refusion.generate(model, prompts, config)] for config in configs]
    if emulated:
        import backends

        kept = refusion_ext.ops._C
        refusion_ext.ops._C = backends.compiled_module("emulated")
        try:
            got = [[r.tokens for r in refusion.generate(model, prompts, config)] for config in configs]
        finally:
            refusion_ext.ops._C = kept
    else:
        torch.backends.cuda.matmul.allow_tf32 = False
        there = refusion.load(checkpoint, device="cuda", dtype="float32")
        got = [[r.tokens for r in refusion.generate(there, prompts, config)] for config in configs]
    different = sum(a != b for xs, ys in zip(expected, got, strict=True) for a, b in zip(xs, ys, strict=True))
    count = len(configs) * len(prompts)
    if different:
        raise RuntimeError(f"{different} of {count} decodes differ")
    return f"{count} decodes of {length} tokens are equal"


def machine(emulated: bool) -> dict[str, Any]:
    import refusion_ext

    facts: dict[str, Any] = {"torch": torch.__version__, "build": refusion_ext.info().as_dict()}
    if not emulated:
        properties = torch.cuda.get_device_properties(0)
        facts |= {"device": properties.name, "multiprocessors": properties.multi_processor_count}
        facts |= {"compute_capability": f"{properties.major}.{properties.minor}", "memory": properties.total_memory}
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader"]
        if shutil.which("nvidia-smi"):
            facts["driver"] = output_of(query).strip()
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    backend = "emulated" if args.emulated else "cuda"
    measured: list[gpu_benchmarks.Measured] = []
    rates: dict[str, float] = {}

    def benchmarks() -> str:
        found, results = gpu_benchmarks.run(args.emulated)
        rates.update(found)
        measured.extend(results)
        missed = [m.name for m in results if m.met is False]
        return f"{len(results)} cases" + (f", goals missed: {', '.join(missed)}" if missed else "")

    steps = [run_step("operations of the emulation", lambda: operations(args.emulated, args.out))]
    steps.append(run_step("op cases", lambda: op_cases(backend, "compact" if args.emulated else "")))
    if not args.emulated:
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
            steps.append(run_step(f"compute-sanitizer {tool}", lambda tool=tool: sanitizer(tool, SANITIZED)))
    steps.append(run_step("decodes, CPU = CUDA", lambda: decodes(args.emulated)))
    steps.append(run_step("microbenchmarks", benchmarks))

    report = {
        "backend": backend,
        "machine": machine(args.emulated),
        "rates": rates,
        "steps": [asdict(step) for step in steps],
        "benchmarks": [m.as_dict() for m in measured],
    }
    (args.out / "gpu_check.json").write_text(json.dumps(report, indent=1))
    lines = ["| step | | s | found |", "|---|---|---:|---|"]
    for step in steps:
        found = step.detail.replace("\n", " ").replace("|", "/")[-200:]
        lines.append(f"| {step.name} | {'passed' if step.passed else 'FAILED'} | {step.seconds:.1f} | {found} |")
    table = "\n".join((*lines, "", *gpu_benchmarks.table(rates, measured)))
    (args.out / "gpu_check.md").write_text(table + "\n")
    print("\n" + table)
    return 0 if all(step.passed for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main())

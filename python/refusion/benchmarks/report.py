"""Tables, JSON and the roofline plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .machine import Machine
from .timing import Timing


@dataclass(frozen=True, slots=True)
class Measured:
    """One case with all that is printed of it."""

    op: str
    name: str
    dtype: str
    ours: Timing
    alternatives: dict[str, Timing]
    error: float
    read: int
    written: int
    flops: int
    memory: int

    @property
    def fastest(self) -> tuple[str, Timing]:
        """The fastest alternative."""
        return min(self.alternatives.items(), key=lambda item: item[1].median)

    @property
    def ratio(self) -> float:
        """How many times faster than the fastest alternative."""
        return self.fastest[1].median / self.ours.median

    def floor(self, machine: Machine) -> float:
        """Seconds that no implementation can beat: bytes at measured bandwidth, or FLOPs at torch's matrix peak."""
        bandwidth = machine.copy if self.written else machine.read_bandwidth(self.memory)
        return max((self.read + self.written) / bandwidth, self.flops / machine.matrix_peak(self.dtype))

    def as_dict(self, machine: Machine) -> dict[str, Any]:
        name, timing = self.fastest
        return {
            "op": self.op,
            "case": self.name,
            "dtype": self.dtype,
            "seconds": asdict(self.ours),
            "alternatives": {key: asdict(value) for key, value in self.alternatives.items()},
            "fastest_alternative": name,
            "ratio": timing.median / self.ours.median,
            "relative_error": self.error,
            "bytes": self.read + self.written,
            "flops": self.flops,
            "share_of_floor": self.floor(machine) / self.ours.median,
        }


def machine_lines(machine: Machine) -> list[str]:
    reads = ", ".join(f"{size >> 20} MiB {rate / 1e9:.0f}" for size, rate in machine.read.items())
    peaks = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in machine.matrix.items())
    return [
        f"{machine.processor}, {machine.threads} threads, kernels at level {machine.isa}, torch {machine.torch}",
        f"read GB/s: {reads}; copy GB/s (read + written): {machine.copy / 1e9:.0f}; matrix product GFLOP/s: {peaks}",
    ]


def op_lines(results: Sequence[Measured], machine: Machine) -> list[str]:
    """A Markdown table."""
    lines = [
        "| op | case | dtype | ours µs | fastest alternative | its µs | ratio | GB/s | GFLOP/s | of floor | error |",
        "|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for r in results:
        name, timing = r.fastest
        seconds = r.ours.median
        lines.append(
            f"| {r.op} | {r.name} | {r.dtype} | {seconds * 1e6:.1f} | {name} | {timing.median * 1e6:.1f} "
            f"| {r.ratio:.2f} | {(r.read + r.written) / seconds / 1e9:.1f} | {r.flops / seconds / 1e9:.0f} "
            f"| {r.floor(machine) / seconds:.0%} | {r.error:.2f} |"
        )
    return lines


def plot_roofline(results: Sequence[Measured], machine: Machine, path: Path) -> None:
    """Achieved FLOP/s over FLOPs per byte, under the measured roofs. Raises `RuntimeError` without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise RuntimeError("a plot needs matplotlib: pip install 'refusion-ext[bench]'") from None

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    intensity = [2.0**i for i in range(-3, 13)]
    memory = machine.read_bandwidth(max(machine.read))
    for colour, (dtype, peak) in zip(("tab:blue", "tab:orange"), machine.matrix.items(), strict=False):
        axes.plot(intensity, [min(peak, memory * x) for x in intensity], "-", color=colour, label=f"{dtype} roof")
        for marker, op in (("o", "attend"), ("s", "score_hidden")):
            mine = [r for r in results if r.op == op and r.dtype == dtype]
            ours = [(r.flops / r.read, r.flops / r.ours.median) for r in mine]
            torch = [(r.flops / r.read, r.flops / r.fastest[1].median) for r in mine]
            if mine:
                axes.plot(*zip(*ours, strict=True), marker, color=colour, label=f"{op}, {dtype}")
                axes.plot(
                    *zip(*torch, strict=True), marker, color=colour, fillstyle="none", label=f"torch for {op}, {dtype}"
                )
    axes.set(
        xscale="log", yscale="log", xlabel="FLOP per byte of input", ylabel="FLOP per second", title=machine.processor
    )
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)

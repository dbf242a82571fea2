"""What the machine can do at best, measured before anything is compared with it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

import refusion_ext

from .timing import interleave

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Peaks of all threads together; bandwidths in bytes per second, rates in FLOP per second."""

    processor: str
    threads: int
    isa: str
    torch: str
    read: dict[int, float]
    """Read bandwidth by size of the memory that is read again and again, in bytes."""
    copy: float
    """Bytes read plus bytes written per second, from and to memory."""
    matrix: dict[str, float]
    """Best matrix product of torch, by dtype."""

    def matrix_peak(self, dtype: str) -> float:
        """Of `dtype`, or of float32 where torch multiplies the narrow type slower."""
        return max(self.matrix[dtype], self.matrix["float32"])

    def read_bandwidth(self, size: int) -> float:
        """Of memory of about this size: the smallest measured one that is not smaller."""
        fitting = [measured for measured in sorted(self.read) if measured >= size]
        return self.read[fitting[0] if fitting else max(self.read)]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(seconds: float = 1.0) -> Machine:
    """Takes about ten times `seconds`."""
    return Machine(
        processor=_processor(),
        threads=torch.get_num_threads(),
        isa=refusion_ext.info().isa_in_use,
        torch=torch.__version__,
        read={size * MEBIBYTE: _read(size * MEBIBYTE, seconds) for size in (1, 4, 16, 512)},
        copy=_copy(256 * MEBIBYTE, seconds),
        matrix={
            name: _matrix(dtype, seconds) for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
        },
    )


def _read(size: int, seconds: float) -> float:
    """The faster of a sum and a maximum, both of which do next to nothing but read."""
    data = torch.ones(size // 4)
    timings = interleave({"sum": lambda: data.sum(), "max": lambda: data.max()}, seconds)
    return size / min(t.fastest for t in timings.values())


def _copy(size: int, seconds: float) -> float:
    source, target = torch.ones(size // 4), torch.zeros(size // 4)
    return 2 * size / interleave({"copy": lambda: target.copy_(source)}, seconds)["copy"].fastest


def _matrix(dtype: torch.dtype, seconds: float) -> float:
    best = 0.0
    for size in (256, 512, 1024, 2048):
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        fastest = interleave({"mm": partial(torch.mm, a, b)}, seconds / 2)["mm"].fastest
        best = max(best, 2 * size**3 / fastest)
        if fastest > seconds / 50:  # a type that torch multiplies in plain loops would take minutes at the next size
            break
    return best


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()

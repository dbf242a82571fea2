"""What was built, and what of it this machine uses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from . import _C


@dataclass(frozen=True)
class BuildInfo:
    """From `refusion_ext.info()`; `str()` of it is a table."""

    version: str
    isa_compiled: tuple[str, ...]
    """Instruction sets in this build, ascending."""
    isa_found: str
    """Best of them that processor and operating system support."""
    isa_in_use: str
    """The one found, capped by the environment variable REFUSION_EXT_MAX_ISA."""
    threads: int
    """OpenMP threads of a large call."""
    cuda_built: bool
    cuda: str
    """One sentence: what was built, or why nothing was. Says nothing about devices: asking would start their driver."""
    cuda_architectures: tuple[str, ...]
    """Machine code (sm_80) and intermediate code (PTX 90) in the build."""
    cuda_toolkit: str | None
    """Version of nvcc."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        capped = "" if self.isa_in_use == self.isa_found else f", capped from {self.isa_found}"
        return "\n".join(
            (
                f"refusion_ext     {self.version}",
                f"instruction set  {self.isa_in_use}{capped} (compiled: {', '.join(self.isa_compiled)})",
                f"OpenMP threads   {self.threads}",
                f"CUDA             {self.cuda}",
            )
        )


def info() -> BuildInfo:
    """Version, instruction sets compiled, found and in use, threads, and whether there are CUDA kernels.

    Raises `ValueError` where REFUSION_EXT_MAX_ISA names no instruction set.
    """
    built, reason, toolkit, code = _C.cuda_build()
    return BuildInfo(
        version=_C.__version__,
        isa_compiled=tuple(_C.isa_compiled()),
        isa_found=_C.isa_found(),
        isa_in_use=_C.isa_in_use(),
        threads=_C.threads(),
        cuda_built=built,
        cuda=f"built with toolkit {toolkit} for {code}" if built else f"not built: {reason}",
        cuda_architectures=tuple(code.split(", ")) if built else (),
        cuda_toolkit=toolkit if built else None,
    )

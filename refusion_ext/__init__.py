"""Kernels for decoding with ReFusion and other diffusion language models: token and slot confidences, attention over
reordered positions, in-place compaction of the KV cache.

Works with torch, numpy and JAX arrays and anything else that speaks DLPack. Importing it imports no framework, starts
no thread and touches no device. `refusion_ext.reference` (the oracle) and `refusion_ext.torch_ops` (the same ops for
torch.compile) are imported at first use, since they need torch.
"""

from __future__ import annotations

import importlib
from typing import Any

try:
    from ._C import CudaUnavailableError, __version__
except ModuleNotFoundError as error:
    if error.name != f"{__name__}._C":
        raise
    raise ModuleNotFoundError(
        "refusion_ext: its compiled module is missing here. This is the source folder, which hides the installed "
        "package while a program is started from the checkout: start it from another folder, or build in place "
        "with 'python setup.py build_ext --inplace'",
        name=error.name,
    ) from None
from .build_info import BuildInfo, info
from .ops import accept_tokens, attend, compact_rows, linear, rope_append, score_hidden, score_tokens, select_slots
from .results import Acceptance, SlotSelection, TokenScores

__all__ = [
    "Acceptance",
    "BuildInfo",
    "CudaUnavailableError",
    "SlotSelection",
    "TokenScores",
    "__version__",
    "accept_tokens",
    "attend",
    "compact_rows",
    "info",
    "linear",
    "rope_append",
    "score_hidden",
    "score_tokens",
    "select_slots",
]


def __getattr__(name: str) -> Any:
    if name in ("reference", "torch_ops"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

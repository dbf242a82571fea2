"""The backends on which the op tests run: they stand in for the compiled module that `refusion_ext.ops` calls.

'oracle' is the reference in plain torch, 'cpu' the installed kernels, 'emulated' the CUDA kernels run on the CPU,
'cuda' the installed CUDA kernels: arguments go to the device with their strides, and what was written comes back.
"""

from __future__ import annotations

import os
from typing import Any

import builds
import torch
from torch import Tensor

from refusion_ext import _C

BACKENDS = ("oracle", "cpu", "emulated", "cuda")


def missing(backend: str) -> str | None:
    """Why a backend cannot be had here, or None."""
    if backend == "emulated" and not builds.available():
        return "needs the sources, g++ and x86-64"
    if backend == "cuda" and not torch.cuda.is_available():
        return "no CUDA device"
    return None


def compiled_module(backend: str) -> Any:
    """What takes the place of `refusion_ext.ops._C`. EMULATION_BUILD chooses the build of 'emulated' ('plain')."""
    if backend == "cpu":
        return _C
    if backend == "emulated":
        return builds.load(builds.module(os.environ.get("EMULATION_BUILD", "plain")))
    return _Oracle() if backend == "oracle" else _Device()


class _Oracle:
    """Has no kernel for anything."""

    NoKernel = _C.NoKernel

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: Any) -> None:
            raise self.NoKernel(name)

        return refuse


class _Device:
    """Runs each call on the device."""

    NoKernel = _C.NoKernel

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            copies = [_to_device(a) if isinstance(a, Tensor) else a for a in arguments]
            getattr(_C, name)(*copies)
            for argument, copy in zip(arguments, copies, strict=True):
                if isinstance(argument, Tensor):
                    argument.copy_(copy)

        return call


def _to_device(x: Tensor) -> Tensor:
    """A copy with the same strides and offset, and what lies between the elements."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return memory.cuda().as_strided(x.shape, x.stride(), x.storage_offset())

"""Allocation in the framework of the caller's arrays. A framework is imported only after the caller did so."""

from __future__ import annotations

import sys
from typing import Any


def empty(shape: tuple[int, ...], dtype: str, like: Any) -> Any:
    """An uninitialised array where `like` lies; for JAX, whose arrays cannot be written, a numpy array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return like.new_empty(shape, dtype=getattr(torch, dtype))
    return _namespace(like).empty(shape, dtype=dtype)


def empty_like(like: Any, shape: tuple[int, ...] | None = None) -> Any:
    """`empty` with the dtype of `like`, and its shape unless one is given."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        if shape is None:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        return like.new_empty(shape)
    if not hasattr(like, "dtype"):  # no array at all: the op will say so
        return None
    return _namespace(like).empty(like.shape if shape is None else shape, dtype=like.dtype)


def deliver(result: Any, like: Any) -> Any:
    """`result`, an array or a named tuple of arrays, as arrays of the framework of `like`."""
    if not _is_jax(like):
        return result
    asarray = sys.modules["jax"].numpy.asarray
    return type(result)(*map(asarray, result)) if isinstance(result, tuple) else asarray(result)


def _is_jax(array: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def _namespace(like: Any) -> Any:
    if hasattr(like, "__array_namespace__") and not _is_jax(like):
        return like.__array_namespace__()
    import numpy

    return numpy

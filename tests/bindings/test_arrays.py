"""Arrays of every framework, in every layout that an op takes, give the same results."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from calls import OPS, arrays, call, replaced, valid
from torch import Tensor

import refusion_ext

RESULTS = {"rope_append": ("k_cache", "v_cache", "out"), "compact_rows": ("cache",)}


def results_of(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: x for n, x in arrays(arguments).items() if n.startswith("out") or n in RESULTS.get(op, ())}


def converted(arguments: dict[str, Any], convert: Callable[[Tensor], Any], *, results: bool = True) -> dict[str, Any]:
    for name, value in arrays(arguments).items():
        if results or not name.startswith("out"):
            arguments = replaced(arguments, name, convert(value))
    return arguments


def pair(op: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two calls with equal arguments in different memory."""
    arguments = valid(op)
    return arguments, converted(arguments, torch.clone)


def assert_same_results(op: str, got: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in results_of(op, expected).items():
        assert np.array_equal(np.asarray(results_of(op, got)[name]), value.numpy()), name


def fields(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """The arrays of two results, side by side."""
    if one is None:
        return []
    return list(zip(one, other, strict=True)) if isinstance(one, tuple) else [(one, other)]


class OldTensor(torch.Tensor):
    """torch before 2.10: no exchange API, unversioned capsules, none for tensors that require grad."""

    __dlpack_c_exchange_api__ = None

    def __dlpack__(self, stream: Any = None) -> Any:
        if self.requires_grad:
            raise BufferError("can't export tensors that require gradient")
        return torch._C._to_dlpack(self)


def old(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OldTensor)


@pytest.mark.parametrize("op", OPS)
def test_numpy(op: str) -> None:
    expected, arguments = pair(op)
    call(op, expected)
    arguments = converted(arguments, Tensor.numpy)
    call(op, arguments)
    assert_same_results(op, arguments, expected)
    allocated = call(op, {n: x for n, x in arguments.items() if n != "out"})
    for got, written in fields(allocated, arguments.get("out")):
        assert type(got) is np.ndarray
        assert got.dtype == written.dtype
        assert np.array_equal(got, written)


@pytest.mark.parametrize("op", OPS)
def test_torch_without_the_exchange_api(op: str) -> None:
    expected, arguments = pair(op)
    call(op, expected)
    call(op, converted(arguments, old))
    assert_same_results(op, arguments, expected)


def test_torch_without_the_exchange_api_that_requires_grad() -> None:
    expected, arguments = pair("score_hidden")
    call("score_hidden", expected)
    arguments["weight"] = old(arguments["weight"]).requires_grad_()
    with pytest.raises(TypeError, match="score_hidden: weight requires grad"):
        call("score_hidden", arguments)
    with torch.no_grad():
        call("score_hidden", arguments)
    assert_same_results("score_hidden", arguments, expected)


@pytest.mark.parametrize("op", OPS)
def test_parameters_under_no_grad(op: str) -> None:
    expected, arguments = pair(op)
    call(op, expected)
    with torch.no_grad():
        call(op, converted(arguments, lambda x: torch.nn.Parameter(x) if x.is_floating_point() else x))
    assert_same_results(op, arguments, expected)


def test_bfloat16_of_numpy() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    arguments = valid("attend")
    names = ("q", "k_cache", "v_cache", "out")
    arguments |= {n: arguments[n].bfloat16() for n in names}
    expected = call("attend", arguments)
    as_numpy = arguments | {n: arguments[n].float().numpy().astype(bfloat16) for n in names}
    as_numpy["out"].fill(0)
    call("attend", as_numpy)
    assert np.array_equal(as_numpy["out"].astype(np.float32), expected.float().numpy())
    del as_numpy["out"]
    got = call("attend", as_numpy)
    assert got.dtype == bfloat16
    assert np.array_equal(got.astype(np.float32), expected.float().numpy())


@pytest.mark.parametrize("op", OPS)
def test_jax(op: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    expected, arguments = pair(op)
    call(op, expected)

    def to_jax(x: Tensor) -> Any:  # JAX has no int64 unless told so
        return x.numpy() if x.dtype == torch.int64 else jnp.asarray(x.numpy())

    given = converted(arguments, to_jax, results=False)
    for name in results_of(op, given):
        if name not in given:
            continue
        with pytest.raises(
            TypeError, match=f"{op}: {name} is written in place, but is a JAX array, which cannot change"
        ):
            call(op, replaced(arguments, name, jnp.asarray(arguments[name].numpy())))
    given |= {n: x.numpy() for n, x in results_of(op, arguments).items() if n in given and n != "out"}
    if op not in RESULTS:
        del given["out"]
        result = call(op, given)
        for got, value in fields(result, expected["out"]):
            assert isinstance(got, type(jnp.zeros(1)))
            assert np.array_equal(np.asarray(got), value.numpy())


def test_jax_bfloat16() -> None:
    jnp = pytest.importorskip("jax.numpy")
    arguments = valid("attend")
    del arguments["out"]
    names = ("q", "k_cache", "v_cache")
    expected = call("attend", arguments | {n: arguments[n].bfloat16() for n in names})
    got = call("attend", arguments | {n: jnp.asarray(arguments[n].numpy(), jnp.bfloat16) for n in names})
    assert got.dtype == jnp.bfloat16
    assert np.array_equal(np.asarray(got.astype(jnp.float32)), expected.float().numpy())


class Exporter:
    """Counts what a consumer does with the capsules of a numpy array."""

    def __init__(self, array: Any, *, versioned: bool) -> None:
        self.array = array
        self.versioned = versioned
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        return self.array.__dlpack__(max_version=max_version if self.versioned else None)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_capsules_are_released(op: str, versioned: bool) -> None:
    arguments = valid(op)
    memory = {n: x.clone().numpy() for n, x in arrays(arguments).items()}
    before = {n: sys.getrefcount(x) for n, x in memory.items()}
    for name in memory:
        arguments = replaced(arguments, name, Exporter(memory[name], versioned=versioned))
    for _ in range(3):
        call(op, arguments)
    with pytest.raises(ValueError, match=op):
        call(op, replaced(arguments, next(iter(memory)), np.zeros((1,) * 5, np.float32)))
    del arguments
    gc.collect()
    assert {n: sys.getrefcount(x) for n, x in memory.items()} == before


def test_an_exporter_that_fails() -> None:
    class Broken:
        shape = (1, 1)

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("out of paper")

    class Wrong(Broken):
        def __dlpack__(self, **_: Any) -> Any:
            return 3

    with pytest.raises(TypeError, match="score_tokens: logits cannot be read through DLPack: out of paper"):
        refusion_ext.score_tokens(Broken(), out=valid("score_tokens")["out"])
    with pytest.raises(TypeError, match="score_tokens: logits returned no DLPack capsule"):
        refusion_ext.score_tokens(Wrong(), out=valid("score_tokens")["out"])


# Layouts


def spread(x: Tensor) -> Tensor:
    """The same values with gaps behind every axis but the last, at an address that only suits one element."""
    whole = torch.full([n + 2 for n in x.shape], torch.nan, dtype=x.dtype)
    view = whole[tuple(slice(1, n + 1) for n in x.shape)]
    view.copy_(x)
    return view


STRIDED = {
    "score_tokens": ("logits",),
    "score_hidden": ("hidden", "weight"),
    "linear": ("x", "weight", "residual"),
    "rope_append": ("qkv", "k_cache", "v_cache"),
    "attend": ("q", "k_cache", "v_cache"),
    "compact_rows": ("cache",),
}


@pytest.mark.parametrize("layout", ["gaps", "axes in another order", "downwards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", STRIDED)
def test_strides(op: str, dtype: torch.dtype, layout: str) -> None:
    floats = ("logits", "hidden", "weight", "x", "bias", "norm", "residual", "qkv", "q_norm", "k_norm", "q", "k_cache")
    floats += ("v_cache", "cache")
    arguments = valid(op)
    arguments |= {n: x.to(dtype) for n, x in arguments.items() if n in floats}
    if op in ("linear", "rope_append", "attend"):
        arguments["out"] = arguments["out"].to(dtype)
    expected = converted(arguments, torch.clone)
    call(op, expected)
    for name in STRIDED[op]:
        x = arguments[name]
        if layout == "gaps":
            arguments[name] = spread(x)
        elif layout == "axes in another order":
            order = list(range(x.ndim - 1))[::-1]
            arguments[name] = x.permute(*order, -1).contiguous().permute(*order, -1)
        elif dtype == torch.bfloat16:
            pytest.skip("torch has no negative strides, numpy no bfloat16")
        else:
            arguments[name] = x.numpy()[::-1].copy()[::-1]
    call(op, arguments)
    for name, value in results_of(op, expected).items():
        got = torch.as_tensor(np.ascontiguousarray(x) if isinstance(x := arrays(arguments)[name], np.ndarray) else x)
        torch.testing.assert_close(got, value)


@pytest.mark.parametrize("op", OPS)
def test_empty(op: str) -> None:
    """No rows, tokens or slots: nothing to do, whatever the address of no elements is."""
    arguments = valid(op)
    counted = {"sequence_offsets", "slot_offsets", "source_offsets", "committed", "destination"}
    whole = {
        "weight",
        "bias",
        "norm",
        "q_norm",
        "k_norm",
        "cosine",
        "sine",
        "k_cache",
        "v_cache",
        "cache",
        "suppressed",
        "eos_token_ids",
    }
    if op in ("select_slots", "accept_tokens"):
        counted -= {"sequence_offsets"}
        arguments["sequence_offsets"] = torch.zeros(3, dtype=torch.int32)
        arguments["slot_offsets"] = torch.zeros(1, dtype=torch.int32)
    for name, value in arrays(arguments).items():
        if name in counted:
            arguments = replaced(arguments, name, torch.zeros_like(value))
        elif name not in whole and name not in ("sequence_offsets", "out.counts", "out.run"):
            arguments = replaced(arguments, name, value[:0])
    before = {n: x.clone() for n, x in results_of(op, arguments).items()}
    call(op, arguments)
    for name in before.keys() - {"out.counts", "out.run"}:
        assert torch.equal(results_of(op, arguments)[name], before[name])
    for name in before.keys() & {"out.counts", "out.run"}:
        assert results_of(op, arguments)[name].tolist() == [0, 0]


def test_compact_rows_of_one_plane() -> None:
    arguments = valid("compact_rows")
    planes = arguments["cache"].clone()
    call("compact_rows", arguments)
    for plane in planes.flatten(0, 1):
        call("compact_rows", arguments | {"cache": plane})
    assert torch.equal(planes, arguments["cache"])


@pytest.mark.parametrize("op", ["score_tokens", "score_hidden"])
def test_suppressed_row_by_row(op: str) -> None:
    arguments = valid(op)
    del arguments["out"], arguments["given"]
    by_row = torch.stack([torch.arange(7).roll(-row)[:6] for row in range(3)]).int()  # leaves one id a row
    got = call(op, arguments | {"suppressed": by_row})
    assert got.token.tolist() == [6, 0, 1]
    alone = [call(op, arguments | {"suppressed": ids}) for ids in by_row]
    for row, scores in enumerate(alone):
        assert [float(x[row]) for x in got] == [float(x[row]) for x in scores]


@pytest.mark.parametrize("op", ["score_tokens", "score_hidden"])
def test_entropy_and_margin_can_be_left_out(op: str) -> None:
    arguments = valid(op)
    expected = call(op, {n: x for n, x in arguments.items() if n != "out"})
    arguments["out"] = arguments["out"]._replace(entropy=None, margin=None)
    got = call(op, arguments)
    assert got is arguments["out"]
    for one, other in zip(got[:3], expected[:3], strict=True):
        assert torch.equal(one, other)

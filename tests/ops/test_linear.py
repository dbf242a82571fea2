from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import DTYPES, EPSILON, assert_as_good, gapped, name_of
from torch import Tensor

import refusion_ext
from refusion_ext import reference

# Rows around the register tile (3 or 6) and the panel (64); outputs around a tile (4 or 8) and a group (64); widths
# around a step (8 to 32) and a block (256 or 512).
SHAPES = (
    *((1, 1, 8), (1, 70, 32), (2, 63, 24), (3, 5, 33), (4, 64, 96), (5, 65, 40), (6, 128, 1024), (7, 129, 1032)),
    *((13, 300, 1000), (64, 130, 128), (65, 40, 64), (130, 70, 2056), (16, 520, 520)),
    # Rows along the lanes: panels of one to four vectors, whole and not; odd widths.
    *((9, 9, 511), (17, 7, 257), (33, 72, 31), (32, 8, 512), (47, 1, 513), (48, 12, 255), (49, 5, 33), (80, 66, 16)),
    *((97, 64, 17), (112, 1, 1), (120, 63, 1024), (200, 65, 127)),
)


@pytest.fixture(autouse=True)
def only_where_there_is_a_kernel(backend: str) -> None:
    if backend in ("emulated", "cuda"):
        pytest.skip("linear is for the CPU")


def inputs(rows: int, outputs: int, width: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Everything that a call takes."""
    weight = torch.randn(outputs, width) / width**0.5
    terms = {"bias": torch.randn(outputs), "norm": torch.rand(width) + 0.5, "residual": torch.randn(rows, outputs)}
    return {"x": torch.randn(rows, width).to(dtype), "weight": weight.to(dtype)} | {
        name: term.to(dtype) for name, term in terms.items()
    }


def gated(arguments: dict[str, Tensor]) -> dict[str, Any]:
    """The same call with a SwiGLU in place of the norm."""
    rest = {name: term for name, term in arguments.items() if name != "norm"}
    return rest | {"x": torch.cat([4 * torch.randn_like(rest["x"]), rest["x"]], -1), "gated": True}


def in_torch(
    x: Tensor, weight: Tensor, bias: Any = None, norm: Any = None, gated: bool = False, residual: Any = None
) -> Tensor:
    x = x if norm is None else F.rms_norm(x, x.shape[-1:], norm, 1e-6)
    if gated:
        gate, up = x.chunk(2, -1)
        x = F.silu(gate) * up
    y = F.linear(x, weight, bias)
    return y if residual is None else residual + y


def check(arguments: dict[str, Any], got: Tensor) -> None:
    wide = {name: x.double() if isinstance(x, Tensor) else x for name, x in arguments.items()}
    exact = reference.linear(**wide)
    largest = exact.abs().max().item() if exact.numel() else 0.0
    floor = 8 * EPSILON * max(1.0, largest) + torch.finfo(got.dtype).eps * largest
    assert_as_good(got, in_torch(**arguments), exact, floor=floor)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correctness(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    arguments = inputs(*shape, dtype)
    check(arguments, refusion_ext.linear(**arguments))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    arguments = gated(inputs(*shape, dtype))
    check(arguments, refusion_ext.linear(**arguments))


def test_gates_of_any_size() -> None:
    gate = torch.tensor([-1e30, -200.0, -89.0, -20.0, 0.0, 20.0, 89.0, 200.0, 1e30, float("nan")])
    x = torch.cat([gate[:, None], torch.full((10, 1), 2.0)], -1)
    got = refusion_ext.linear(x, torch.ones(1, 1), gated=True)
    torch.testing.assert_close(got[:, 0], 2 * F.silu(gate), rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("absent", ["bias", "norm", "residual"])
def test_every_term_may_be_absent(absent: str) -> None:
    arguments = inputs(5, 70, 40, torch.bfloat16)
    del arguments[absent]
    check(arguments, refusion_ext.linear(**arguments))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("width", [8, 31, 40, 1023, 1025])
def test_gaps_between_rows_are_not_read(dtype: torch.dtype, width: int) -> None:
    arguments = inputs(7, 70, width, dtype)
    for case in (arguments, gated(arguments)):
        spread = {name: gapped(case[name], gap=5) for name in ("x", "weight", "residual")}
        check(case, refusion_ext.linear(**(case | spread)))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("width", [96, 513, 1040])
@pytest.mark.parametrize("swiglu", [False, True])
def test_a_row_is_the_same_alone_and_in_any_batch(backend: str, dtype: torch.dtype, width: int, swiglu: bool) -> None:
    if backend == "oracle":
        pytest.skip("torch multiplies matrices of few rows in another order")
    arguments = gated(inputs(150, 700, width, dtype)) if swiglu else inputs(150, 700, width, dtype)
    whole = refusion_ext.linear(**arguments)
    for first, end in ((0, 1), (5, 7), (6, 18), (0, 13), (5, 70), (31, 64), (64, 150)):
        part = {name: arguments[name][first:end] for name in ("x", "residual")}
        assert torch.equal(refusion_ext.linear(**(arguments | part)), whole[first:end])


def test_the_residual_may_be_written_to() -> None:
    arguments = inputs(9, 300, 64, torch.bfloat16)
    expected = refusion_ext.linear(**arguments)
    stream = arguments["residual"]
    assert refusion_ext.linear(**arguments, out=stream) is stream
    assert torch.equal(stream, expected)


def test_rows_outputs_and_width_may_be_empty() -> None:
    assert refusion_ext.linear(torch.zeros(0, 8), torch.zeros(5, 8)).shape == (0, 5)
    assert refusion_ext.linear(torch.zeros(2, 8), torch.zeros(0, 8)).shape == (2, 0)
    bias = torch.randn(5)
    flat = refusion_ext.linear(torch.zeros(2, 0), torch.zeros(5, 0), bias=bias)
    assert torch.equal(flat, bias.expand(2, 5))

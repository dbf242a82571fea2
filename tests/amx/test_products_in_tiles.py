"""linear and score_hidden with their products in emulated AMX tiles: the oracles of the other instruction sets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from amx import emulated
from amx.emulated import Kernels, linear, score_hidden
from ops import test_linear, test_score_hidden
from ops.cases import gapped, name_of

pytestmark = emulated.NEEDS

# Rows, outputs and width around one and two tiles (16, 32), a group (64), a task (512) and a panel (64 rows).
SHAPES = (
    *((1, 1, 8), (1, 15, 32), (2, 16, 33), (15, 17, 64), (16, 31, 31), (17, 32, 96), (31, 33, 40), (32, 47, 32)),
    *((33, 48, 100), (48, 63, 64), (49, 64, 65), (64, 65, 128), (65, 130, 64), (100, 600, 72), (5, 1100, 40)),
)


def check_linear(kernels: Kernels, arguments: dict[str, Tensor]) -> None:
    before = kernels.products()
    test_linear.check(arguments, linear(kernels, **arguments))
    assert kernels.products() > before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_is_right(kernels: Kernels, shape: tuple[int, int, int]) -> None:
    check_linear(kernels, test_linear.inputs(*shape, torch.bfloat16))


@pytest.mark.parametrize("absent", ["bias", "norm", "residual"])
def test_every_term_may_be_absent(kernels: Kernels, absent: str) -> None:
    arguments = test_linear.inputs(5, 70, 40, torch.bfloat16)
    del arguments[absent]
    check_linear(kernels, arguments)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_score_hidden_is_right(kernels: Kernels, shape: tuple[int, int, int]) -> None:
    hidden, weight = test_score_hidden.inputs(*shape, torch.bfloat16)
    before = kernels.products()
    test_score_hidden.check(hidden, weight, score_hidden(kernels, hidden, weight))
    assert kernels.products() > before


@pytest.mark.parametrize("width", [8, 31, 40, 1023, 1025])
def test_gaps_between_rows_are_not_read(kernels: Kernels, width: int) -> None:
    arguments = test_linear.inputs(7, 70, width, torch.bfloat16)
    spread = {name: gapped(arguments[name], gap=5) for name in ("x", "weight", "residual")}
    check_linear(kernels, arguments | spread)
    hidden, weight = test_score_hidden.inputs(7, 70, width, torch.bfloat16)
    test_score_hidden.check(hidden, weight, score_hidden(kernels, gapped(hidden), gapped(weight, gap=5)))


@pytest.mark.parametrize(("outputs", "width"), [(1, 32), (17, 40), (64, 96), (75, 31)])
def test_no_tile_reaches_past_the_matrix(kernels: Kernels, outputs: int, width: int) -> None:
    arguments = test_linear.inputs(18, outputs, width, torch.bfloat16)
    room = torch.full((outputs * width + 4096,), torch.nan, dtype=torch.bfloat16)
    weight = arguments["weight"] = room[: outputs * width].view(outputs, width).copy_(arguments["weight"])
    end = weight.data_ptr() + 2 * weight.numel()
    kernels.forbid(end, end + 2 * 4096)
    check_linear(kernels, arguments)
    assert kernels.stray_loads() == 0
    kernels.forbid(None, None)


def test_a_row_is_the_same_alone_and_in_any_batch(kernels: Kernels) -> None:
    arguments = test_linear.inputs(67, 200, 96, torch.bfloat16)
    whole = linear(kernels, **arguments)
    for row in (0, 15, 16, 31, 33, 63, 64, 66):
        one = {name: arguments[name][row : row + 1] for name in ("x", "residual")}
        assert torch.equal(linear(kernels, **(arguments | one)), whole[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=name_of)
def test_other_types_fall_through(kernels: Kernels, dtype: torch.dtype) -> None:
    before = kernels.products()
    arguments = test_linear.inputs(5, 70, 40, dtype)
    test_linear.check(arguments, linear(kernels, **arguments))
    hidden, weight = test_score_hidden.inputs(5, 70, 40, dtype)
    test_score_hidden.check(hidden, weight, score_hidden(kernels, hidden, weight))
    assert kernels.products() == before

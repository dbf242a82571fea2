"""The ops behind torch's dispatcher."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import pytest
import torch
from calls import OPS, arrays, call, valid
from torch import Tensor

import refusion_ext

NAMESPACE = torch.ops.refusion_ext


def dispatched(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the schema: the fields of a result type stand one by one."""
    return {
        n.removeprefix("out."): x for n, x in ({**arguments, **arrays(arguments)}).items() if not isinstance(x, tuple)
    }


@pytest.fixture(autouse=True)
def registered() -> None:
    assert refusion_ext.torch_ops.SCHEMAS


@pytest.mark.parametrize("op", OPS)
def test_same_as_eager(op: str) -> None:
    torch.manual_seed(0)
    eager = valid(op)
    torch.manual_seed(0)
    through_torch = valid(op)
    call(op, eager)
    assert getattr(NAMESPACE, op)(**dispatched(op, through_torch)) is None
    for name, value in arrays(eager).items():
        assert torch.equal(arrays(through_torch)[name], value), name


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str) -> None:
    torch.library.opcheck(getattr(NAMESPACE, op).default, (), dispatched(op, valid(op)))


def test_opcheck_without_optional_arguments() -> None:
    arguments = dispatched("score_tokens", valid("score_tokens"))
    for name in ("given", "suppressed", "temperature", "sample_keys"):
        del arguments[name]
    torch.library.opcheck(NAMESPACE.score_tokens.default, (), arguments | {"entropy": None, "margin": None})


def test_compiled_without_graph_breaks() -> None:
    arguments = valid("attend")
    del arguments["out"]

    def twice(q: Tensor, **rest: Tensor) -> Tensor:
        first, second = torch.empty_like(q), torch.empty_like(q)
        NAMESPACE.attend(q, **rest, out=first)
        NAMESPACE.attend(first + q, **rest, out=second)
        return second * 2

    expected = twice(**arguments)
    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")  # inductor would compile C++ for a minute
    assert torch.equal(compiled(**arguments), expected)


def test_errors_come_through() -> None:
    arguments = dispatched("attend", valid("attend"))
    with pytest.raises(TypeError, match="attend: committed must be int32, got int64"):
        NAMESPACE.attend(**arguments | {"committed": arguments["committed"].long()})
    with pytest.raises(TypeError, match="attend: q requires grad"):
        NAMESPACE.attend(**arguments | {"q": arguments["q"].clone().requires_grad_()})


def test_importing_twice() -> None:
    importlib.reload(refusion_ext.torch_ops)
    del sys.modules["refusion_ext.torch_ops"]
    importlib.import_module("refusion_ext.torch_ops")
    gc.collect()
    NAMESPACE.attend(**dispatched("attend", valid("attend")))

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from refusion.training import TrainConfig
from refusion.training.optimiser import Optimiser, schedule


def config(**changes: object) -> TrainConfig:
    start = {"out": Path("out"), "data": Path("data.jsonl"), "init": Path("start"), "max_steps": 100}
    return TrainConfig(**(start | changes))


def test_schedule_cosine() -> None:
    cosine = config(warmup=0, min_learning_rate=0.1)
    assert [schedule(cosine, 0, share) for share in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1])


def test_schedule_plateau_and_decay() -> None:
    linear = config(warmup=4, decay=0.4, min_learning_rate=0.2)
    assert [schedule(linear, step, 0.0) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert [schedule(linear, 50, share) for share in (0.5, 0.6, 0.8, 1.0)] == pytest.approx([1.0, 1.0, 0.6, 0.2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decay": 1.5}, "decay must lie in .0, 1., got 1.5"),
        ({"decay": -0.1}, "decay must lie in .0, 1., got -0.1"),
        ({"optimizer": "muon", "fsdp": True}, "optimizer 'muon' needs whole matrices: not with fsdp"),
    ],
)
def test_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def parameters() -> dict[str, torch.nn.Parameter]:
    shapes = {"embedding": (8, 4), "layers.0.qkv": (6, 4), "layers.0.input_norm": (4,)}
    found = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    for parameter in found.values():
        parameter.grad = torch.arange(parameter.numel()).reshape(parameter.shape).float()
    return found


def test_adamw_decays_matrices_and_no_vectors() -> None:
    found = parameters()
    for parameter in found.values():
        parameter.grad = torch.zeros_like(parameter)
    Optimiser(found, config(learning_rate=0.1, weight_decay=0.5)).step(0.5)
    assert torch.allclose(found["embedding"], torch.full((8, 4), 1 - 0.05 * 0.5))
    assert torch.equal(found["layers.0.input_norm"], torch.ones(4))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_takes_the_matrices_of_the_layers_alone() -> None:
    found = parameters()
    optimiser = Optimiser(found, config(optimizer="muon"))
    optimiser.step(1.0)
    assert all(parameter.grad is None for parameter in found.values())
    kinds = {name: set(optimiser.state_of(parameter) or ()) for name, parameter in found.items()}
    assert "exp_avg" in kinds["embedding"]
    assert "exp_avg" in kinds["layers.0.input_norm"]
    assert "momentum_buffer" in kinds["layers.0.qkv"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_restored_it_goes_on_the_same_way(optimizer: str) -> None:
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    settings = config(optimizer=optimizer)
    one = parameters()
    first = Optimiser(one, settings)
    first.step(1.0)
    other = {name: torch.nn.Parameter(p.detach().clone()) for name, p in one.items()}
    second = Optimiser(other, settings)
    for name, parameter in one.items():
        state = first.state_of(parameter)
        assert state is not None
        second.restore(other[name], {key: value.clone() for key, value in state.items()})
    for optimiser, group in ((first, one), (second, other)):
        for parameter in group.values():
            parameter.grad = torch.full_like(parameter, 0.3)
        optimiser.step(0.5)
    assert all(torch.equal(one[name], other[name]) for name in one)

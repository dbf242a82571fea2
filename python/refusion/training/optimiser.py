"""AdamW, or Muon for the matrices of the layers and AdamW for everything else, driven as one optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .config import TrainConfig

VOCABULARY = ("embedding", "head")  # rows of these are looked up one by one: Muon's matrix norm does not fit them


class Optimiser:
    """Steps all parameters; learning rates follow `schedule`.

    Muon (Jordan et al., 2024) makes every update of a matrix orthogonal. In the runs of docs/training.md it reached
    the same masked loss in about half of the steps.
    """

    def __init__(self, parameters: Mapping[str, Tensor], config: TrainConfig) -> None:
        matrices = [p for n, p in parameters.items() if p.ndim >= 2 and n not in VOCABULARY]
        tables = [p for n, p in parameters.items() if p.ndim >= 2 and n in VOCABULARY]
        vectors = [p for p in parameters.values() if p.ndim < 2]
        self.parts: list[tuple[torch.optim.Optimizer, float]] = []
        if config.optimizer == "muon":
            if not hasattr(torch.optim, "Muon"):
                raise ValueError(f"optimizer 'muon' needs torch 2.9 or newer, this is {torch.__version__}")
            rate = config.matrix_learning_rate
            self.parts.append((torch.optim.Muon(matrices, lr=rate, weight_decay=config.weight_decay), rate))
            matrices = []
        groups = [
            {"params": matrices + tables, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        rate = config.learning_rate
        adam = torch.optim.AdamW(groups, lr=rate, betas=(config.beta1, config.beta2), fused=True)
        self.parts.append((adam, rate))

    def step(self, factor: float) -> None:
        """One step at `factor` times the peak learning rates; gradients are dropped."""
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()

    def state_of(self, parameter: Tensor) -> dict[str, Any] | None:
        """Moments of a parameter, or None before its first step."""
        return next((o.state[parameter] for o, _ in self.parts if parameter in o.state), None)

    def restore(self, parameter: Tensor, state: dict[str, Any]) -> None:
        """The inverse of `state_of`."""
        for optimizer, _ in self.parts:
            if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
                optimizer.state[parameter] = state


def schedule(config: TrainConfig, step: int, progress: float) -> float:
    """Share of the peak learning rate: linear warm-up; then a cosine, or a plateau and a linear decay.

    Args:
        config: with warmup, decay and min_learning_rate.
        step: steps done.
        progress: share of the run that is done, 0 to 1.
    """
    warm = min((step + 1) / config.warmup, 1.0) if config.warmup else 1.0
    low = config.min_learning_rate
    left = min((1 - progress) / config.decay, 1.0) if config.decay else 0.5 * (1 + math.cos(math.pi * progress))
    return warm * (low + (1 - low) * left)

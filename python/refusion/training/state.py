"""The state of a run in one file: everything that the next step depends on, so that continuing gives the same bits."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import write_atomically
from .config import TrainConfig
from .distributed import local, shard_like, whole
from .optimiser import Optimiser

STATE = "training-state.pt"
VERSION = 1

# A run may be continued with other values of these; every other one decides which weights come out.
_FREE = {"out", "data", "init", "device", "micro_batch", "model_config", "tokenizer", "fsdp"}
_FREE |= {"max_steps", "max_minutes", "log_every", "save_every"}
_FREE |= {"eval_every", "eval_data", "eval_samples", "eval_settings"}


class StateError(ValueError):
    """A training state is missing, damaged, belongs to another run or could not be written."""


class Average:
    """Exponential moving average of the weights, in float32."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in parameters.items()}
        self._live = [local(p.detach()) for p in parameters.values()]
        self._mean = [local(p) for p in self.values.values()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Early on the decay is smaller, so that the initial weights are soon forgotten."""
        torch._foreach_lerp_(self._mean, self._live, 1 - min(self.decay, (1 + step) / (10 + step)))


def gather(parameters: Mapping[str, Tensor], optimiser: Optimiser) -> dict[str, dict[str, Tensor]]:
    """Whole optimiser state by parameter name, on the CPU; every process calls this."""
    moments = {n: optimiser.state_of(p) for n, p in parameters.items()}
    return {n: {k: whole(v).cpu().clone() for k, v in m.items()} for n, m in moments.items() if m is not None}


def scatter(
    parameters: Mapping[str, Tensor],
    optimiser: Optimiser,
    weights: dict[str, Tensor],
    moments: dict[str, dict[str, Tensor]],
) -> None:
    """Puts whole weights and the state of `gather` in place, sharded as the parameters are."""
    for name, parameter in parameters.items():
        parameter.detach().copy_(shard_like(weights[name], parameter))
        if name in moments:
            # The count of steps is a scalar on every process.
            state = {
                k: shard_like(v, parameter) if v.ndim else v.to(parameter.device) for k, v in moments[name].items()
            }
            optimiser.restore(parameter, state)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Writes the file whole or not at all; raises `StateError`, with the previous state untouched, when it cannot."""

    def write(target: Path) -> None:
        with open(target, "wb") as file:  # a Python file: a full disk is an OSError with its reason
            try:
                torch.save(state | {"version": VERSION}, file)
            except RuntimeError as error:  # closing the archive fails as well, and hides why
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    try:
        write_atomically(path, write)
    except OSError as error:
        kept = f"; {path.name} there is that of the last save and intact" if path.exists() else ""
        raise StateError(f"{path}: could not be written: {error.strerror or error}{kept}") from None
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name, too, survives a power cut
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(directory)


def read_state(path: Path) -> dict[str, Any]:
    """Reads a state; raises `StateError` when there is none or it is damaged."""
    if not path.is_file():
        raise StateError(f"{path}: no training state to resume from")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile, pickle and torch each raise their own kinds
        raise StateError(f"{path}: damaged: {error}") from None
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise StateError(f"{path}: not a training state of version {VERSION}")
    return state


def check_settings(state: dict[str, Any], config: TrainConfig) -> None:
    """Raises `StateError` when the run was started with another value of a setting that decides its weights."""
    for name, value in config.to_json().items():
        before = state["settings"].get(name)
        if name not in _FREE and before != value:
            raise StateError(f"{config.out}: the run was started with {name} {before!r}, not {value!r}")

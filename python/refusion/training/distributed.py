"""One process or many: DDP and FSDP2 behind a few functions. `torchrun` tells through the environment which this is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True)
class Workers:
    """This process among its peers."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()


@contextmanager
def workers(device: torch.device) -> Iterator[Workers]:
    """Joins the process group that `torchrun` describes, if it does; leaves it at the end."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Workers()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Workers(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def worker_device(name: str) -> torch.device:
    """The device of this process: under torchrun, 'cuda' is the one with the number of the local rank."""
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("device 'cuda': torch finds no CUDA device")
        device = torch.device(
            "cuda", device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", "0"))
        )
        torch.cuda.set_device(device)
    return device


def parallel(module: nn.Module, layers: nn.ModuleList, team: Workers, fsdp: bool) -> nn.Module:
    """The module as it is, under DDP, or with its parameters sharded in place (FSDP2: each layer, then the rest)."""
    if fsdp:
        if team.count == 1:
            raise RuntimeError("--fsdp needs several processes: torchrun --nproc-per-node N -m refusion train ...")
        for layer in layers:
            fully_shard(layer)
        fully_shard(module)
        return module
    return nn.parallel.DistributedDataParallel(module) if team.count > 1 else module


@contextmanager
def gradients_stay_local(module: nn.Module, local: bool) -> Iterator[None]:
    """While accumulating: no exchange of gradients until the last micro-batch."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and local:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(not local)
    yield


def whole(value: Tensor) -> Tensor:
    """A sharded tensor gathered on every process; others as they are."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value: Tensor) -> Tensor:
    """This process's part of a sharded tensor, sharing its memory; others as they are."""
    return value.to_local() if isinstance(value, DTensor) else value


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor on the device of `like`, sharded as that is."""
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value

"""The unit of work of a forward: a flat, unpadded list of tokens of one or many sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Chunk:
    """Tokens of sequence n stand at `sequence_offsets[n] : sequence_offsets[n + 1]`. All on the model's device."""

    input_ids: Tensor
    """int32 or int64 [tokens]."""
    position_ids: Tensor
    """int32 [tokens]: original positions, which RoPE uses."""
    rows: Tensor
    """int32 [tokens]: cache row that receives the token's key and value."""
    window_begin: Tensor
    """int32 [tokens]: provisional rows [begin, end), counted from the committed ones, that the token sees."""
    window_end: Tensor
    sequence_offsets: Tensor
    """int32 [sequences + 1]."""
    committed: Tensor
    """int32 [sequences]: rows that every token of the sequence sees."""


def upload(host: Tensor, device: torch.device) -> Tensor:
    """A copy on the device that the host does not wait for; on the CPU the tensor itself.

    From ordinary memory a copy would wait for the device. Pinned memory is kept by torch until the copy is done.
    """
    return host if device.type == "cpu" else host.contiguous().pin_memory().to(device, non_blocking=True)

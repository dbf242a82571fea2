"""The KV store: per sequence `[committed rows | provisional rows | free]`, allocated once, compacted in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import refusion_ext

from .chunk import Chunk, upload
from .history import History
from .model import ModelConfig
from .rope import rope_tables


class CacheOverflowError(RuntimeError):
    """A chunk does not fit into the cache; nothing was written."""


@dataclass(frozen=True, slots=True)
class Retain:
    """What survives of one sequence: `rows` (absolute, ascending) move to `first` and follow each other from there.

    Rows before `first` stay. Afterwards the first `committed` rows are committed and the others provisional.
    """

    first: int
    rows: list[int]
    committed: int


class KVCache:
    """Keys and values of all layers for a fixed number of sequences.

    Args:
        config: shape of the model.
        sequences: how many sequences may be decoded at once.
        capacity: rows of each sequence.
        dtype, device: of the rows.
        record: remember what stands in every row, for `refusion.exactness`.

    Memory: num_hidden_layers * 2 * sequences * num_key_value_heads * capacity * head_dim elements, and the rotary
    tables with capacity * head_dim float32.
    """

    def __init__(
        self,
        config: ModelConfig,
        sequences: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        record: bool = False,
    ) -> None:
        self.config = config
        self.sequences = sequences
        self.capacity = capacity
        shape = (config.num_hidden_layers, 2, sequences, config.num_key_value_heads, capacity, config.head_dim)
        self.rows = torch.empty(shape, dtype=dtype, device=device)
        self.layers = [(layer[0], layer[1]) for layer in self.rows]
        self.committed = [0] * sequences
        self.provisional = [0] * sequences
        self.histories = [History() for _ in range(sequences)] if record else None
        positions = torch.arange(capacity, device=device)
        self.cosine, self.sine = rope_tables(
            positions, config.head_dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings
        )

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def append(self, sequence: int, tokens: int) -> int:
        """Reserves provisional rows after the present ones; returns the first. Raises `CacheOverflowError`."""
        first = self.committed[sequence] + self.provisional[sequence]
        if first + tokens > self.capacity:
            raise CacheOverflowError(
                f"cache: sequence {sequence} has {first} rows and {tokens} more exceed its capacity of {self.capacity}"
            )
        self.provisional[sequence] += tokens
        return first

    def record(self, sequence: int, chunk: Chunk, tokens: slice) -> None:
        """Notes what a chunk puts into the rows that `append` reserved, when the cache records."""
        if self.histories is not None:
            arrays = (chunk.input_ids, chunk.position_ids, chunk.window_begin, chunk.window_end)
            self.histories[sequence].append(self.committed[sequence], *(array[tokens].tolist() for array in arrays))

    def retain(self, kept: dict[int, Retain]) -> None:
        """Commits, keeps and drops rows of several sequences (key: sequence) in one in-place compaction."""
        sources: list[int] = []
        offsets, destination = [0], []
        for sequence in range(self.sequences):
            move = kept.get(sequence)
            if move is not None:
                end = self.committed[sequence] + self.provisional[sequence]
                if move.rows and move.rows[-1] >= end:
                    raise ValueError(
                        f"cache: row {move.rows[-1]} of sequence {sequence} is kept, but it has {end} rows"
                    )
                if not 0 <= move.committed <= move.first + len(move.rows):
                    raise ValueError(f"cache: cannot commit {move.committed} of {move.first + len(move.rows)} rows")
                if move.rows and move.rows[-1] != move.first + len(move.rows) - 1:  # else all stand where they belong
                    sources.extend(move.rows)
            destination.append(move.first if move is not None else 0)
            offsets.append(len(sources))
        if sources:
            # One array for the three: one copy to the device.
            packed = upload(torch.tensor((*sources, *offsets, *destination), dtype=torch.int32), self.device)
            refusion_ext.compact_rows(self.rows, *packed.split((len(sources), len(offsets), len(destination))))
        for sequence, move in kept.items():
            if self.histories is not None:
                self.histories[sequence].retain(move.first, move.rows)
            self.committed[sequence] = move.committed
            self.provisional[sequence] = move.first + len(move.rows) - move.committed

    def rollback(self, sequence: int) -> None:
        """Drops the provisional rows."""
        self.provisional[sequence] = 0
        if self.histories is not None:
            del self.histories[sequence].rows[self.committed[sequence] :]

    def crop(self, sequence: int, committed: int) -> None:
        """Drops all rows from `committed` on. Raises `ValueError` when there are fewer."""
        if not 0 <= committed <= self.committed[sequence]:
            raise ValueError(f"cache: cannot crop {self.committed[sequence]} committed rows to {committed}")
        self.committed[sequence] = committed
        self.rollback(sequence)

    def chunk(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        sequence: int = 0,
        window_begin: Tensor | None = None,
        window_end: Tensor | None = None,
    ) -> Chunk:
        """A chunk of one sequence whose rows are reserved here; windows default to causal within the chunk."""
        tokens = len(input_ids)
        held = self.provisional[sequence]
        first = self.append(sequence, tokens)
        count = torch.arange(tokens, dtype=torch.int32)
        before = [0] * (sequence + 1) + [tokens] * (self.sequences - sequence)
        begin = torch.full_like(count, held) if window_begin is None else window_begin
        end = count + 1 + held if window_end is None else window_end
        offsets, committed = (torch.tensor(x, dtype=torch.int32) for x in (before, self.committed))
        parts = (position_ids.to(torch.int32), count + first, begin, end, offsets, committed)
        chunk = Chunk(input_ids.to(self.device), *(part.to(self.device) for part in parts))
        self.record(sequence, chunk, slice(None))
        return chunk

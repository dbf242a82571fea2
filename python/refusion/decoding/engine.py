"""Runs decoders: the forwards of all active sequences as one flat chunk, their scores in one call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import refusion_ext
from refusion_ext import TokenScores

from ..attention import CachedAttention
from ..cache import KVCache
from ..chunk import Chunk, upload
from ..model import Qwen3
from .result import Event, Result
from .work import Cost, Decoder, Forward, Score, Scores, Steps

# From this vocabulary on the LM head is streamed into the scores (score_hidden): measured 1.3 to 4 times as fast as a
# product and score_tokens at 151,671 ids, and no logits in memory. At some thousand ids the two are about equal.
STREAMED_VOCABULARY = 16_384

NO_SCORES = Scores(np.empty(0, np.int64), *(np.empty(0, np.float32) for _ in range(3)))


@dataclass(slots=True)
class Run:
    """A decoder at work in one sequence of the cache."""

    index: int
    """Which prompt."""
    seed: int
    decoder: Decoder
    steps: Steps[None]
    work: Forward | Score
    began: float
    offset: int = 0
    """First row of its last forward in the chunk."""


class Engine:
    """Decodes any number of sequences, at most `sequences` at a time; a finished one makes room for the next.

    Args:
        model: weights, on the device where everything runs.
        sequences: cache sequences.
        capacity: cache rows of each.
        temperature: of the sampling; 0 takes the most probable token.
        suppressed: ids that are never chosen.
        eos_token_ids: suppressed, too, before `min_new_tokens`.
        min_new_tokens: answer positions below this take no EOS.
        cost: shared with the decoders; learns what a forward costs.
        record: let the cache remember what stands in its rows, for `refusion.exactness`.
    """

    def __init__(
        self,
        model: Qwen3,
        sequences: int,
        capacity: int,
        *,
        temperature: float = 0.0,
        suppressed: Iterable[int] = (),
        eos_token_ids: Iterable[int] = (),
        min_new_tokens: int = 0,
        cost: Cost | None = None,
        record: bool = False,
    ) -> None:
        self.model = model
        self.cache = KVCache(model.config, sequences, capacity, model.dtype, model.device, record)
        self.temperature = temperature
        self.min_new_tokens = min_new_tokens
        self.cost = cost or Cost()
        self._always = tuple(suppressed)
        self._early = (*self._always, *eos_token_ids) if min_new_tokens else self._always
        self._suppressed = torch.tensor(self._always, dtype=torch.int32, device=model.device)
        # Chunk arrays are built here and live until the next forward: no allocation a round on the host.
        self._host = np.empty((5, 256), np.int32)
        self._sequences = np.zeros((2, sequences + 1), np.int32)
        self._count = np.arange(capacity + 1, dtype=np.int32)

    def run(self, decoders: Iterable[tuple[int, int, Decoder]]) -> Iterator[Event | tuple[int, Result]]:
        """Decodes (index, seed, decoder) triples; yields commits as they happen and each result when it is complete."""
        waiting = deque(decoders)
        free = list(range(self.cache.sequences - 1, -1, -1))
        active: dict[int, Run] = {}
        with torch.inference_mode():
            while waiting or active:
                while waiting and free:
                    index, seed, decoder = waiting.popleft()
                    sequence = free.pop()
                    self.cache.crop(sequence, 0)
                    steps = decoder.run()
                    active[sequence] = Run(index, seed, decoder, steps, next(steps), time.perf_counter())
                hidden = self._forward(active)
                yield from self._advance(active, hidden)
                for sequence in [s for s in active if s not in self._busy]:
                    run = active.pop(sequence)
                    free.append(sequence)
                    run.decoder.stats.seconds = time.perf_counter() - run.began
                    yield run.index, _result(run.decoder)

    def _forward(self, active: dict[int, Run]) -> Tensor:
        """One pass of every active sequence's tokens; returns hidden states [tokens, hidden_size]."""
        began = time.perf_counter()
        forwards = {s: run.work for s, run in active.items() if isinstance(run.work, Forward)}
        self.cache.retain({s: work.retain for s, work in forwards.items()})
        chunk = self._chunk(active, forwards)
        hidden = self.model.hidden(chunk.input_ids, CachedAttention(self.cache, chunk))
        if hidden.device.type == "cpu":  # elsewhere the time of a launch says nothing
            self.cost.observe(hidden.shape[0], time.perf_counter() - began)
        return hidden

    def _chunk(self, active: dict[int, Run], forwards: dict[int, Forward]) -> Chunk:
        total = sum(len(work.tokens) for work in forwards.values())
        if total > self._host.shape[1]:
            self._host = np.empty((5, 2 * total), np.int32)
        input_ids, positions, rows, begin, end = self._host
        offsets, committed = self._sequences
        at = 0
        for sequence in range(self.cache.sequences):
            offsets[sequence] = at
            committed[sequence] = self.cache.committed[sequence]
            work = forwards.get(sequence)
            if work is None:
                continue
            count = len(work.tokens)
            held = self.cache.provisional[sequence]
            first = self.cache.append(sequence, count)
            part = slice(at, at + count)
            input_ids[part] = work.tokens
            positions[part] = work.positions
            rows[part] = self._count[first : first + count]
            begin[part] = held if work.window_begin is None else np.add(work.window_begin, held)
            end[part] = held + count if work.bidirectional else self._count[held + 1 : held + count + 1]
            run = active[sequence]
            run.offset = at
            stats = run.decoder.stats
            stats.phases[work.phase] = stats.phases.get(work.phase, 0) + 1
            stats.computed_tokens += count
            at += count
        offsets[self.cache.sequences] = at
        arrays = (self._host[:, :at], self._sequences)
        tokens, per_sequence = (upload(torch.from_numpy(x), self.cache.device) for x in arrays)
        ids, places, into, first, last = tokens
        chunk = Chunk(ids, places, into, first, last, per_sequence[0], per_sequence[1, :-1])
        for sequence, work in forwards.items():
            offset = active[sequence].offset
            self.cache.record(sequence, chunk, slice(offset, offset + len(work.tokens)))
        return chunk

    def _advance(self, active: dict[int, Run], hidden: Tensor) -> Iterator[Event]:
        """Scores what was asked for and resumes the decoders until each wants a forward or is done."""
        self._busy = set(active)
        asking = dict(active)
        while asking:
            for sequence, scores in self._score(asking, hidden).items():
                run = asking[sequence]
                answer = run.decoder.answer
                try:
                    run.work = run.steps.send(scores)
                except StopIteration:
                    self._busy.discard(sequence)
                if answer.news:
                    positions, withdrawn = answer.take_news()
                    tokens = [answer.tokens[p] for p in positions]
                    yield Event(run.index, positions, tokens, withdrawn, answer.tokens[: answer.prefix])
            asking = {s: r for s, r in asking.items() if s in self._busy and isinstance(r.work, Score)}

    def _score(self, asking: dict[int, Run], hidden: Tensor) -> dict[int, Scores]:
        """Chooses or looks up the tokens of the asked rows; the one place where results come back to the host."""
        asked = {s: run.work.score if isinstance(run.work, Forward) else run.work for s, run in asking.items()}
        rows: list[int] = []
        given: list[int] = []
        for sequence, score in asked.items():
            offset = asking[sequence].offset
            rows += [offset + row for row in score.rows] if offset else score.rows
            given += score.given if score.given is not None else [-1] * len(score.rows)
        if not rows:
            return dict.fromkeys(asked, NO_SCORES)
        device = hidden.device
        chosen = hidden.index_select(0, upload(torch.tensor(rows), device))
        choice: dict[str, Any] = {
            "given": upload(torch.tensor(given), device) if max(given) >= 0 else None,
            "suppressed": self._suppressed_ids(asked),
            "temperature": self.temperature,
            "sample_keys": self._sample_keys(asking, asked) if self.temperature > 0 else None,
        }
        if self.model.config.vocab_size >= STREAMED_VOCABULARY:
            host = _to_host(refusion_ext.score_hidden(self.model.normed(chosen), self.model.head_weight, **choice))
        else:
            host = _to_host(refusion_ext.score_tokens(self.model.logits(chosen), **choice))
        scores, at = {}, 0
        for sequence, score in asked.items():
            part = slice(at, at + len(score.rows))
            scores[sequence] = Scores(*(array[part] for array in host))
            at += len(score.rows)
        return scores

    def _suppressed_ids(self, asked: dict[int, Score]) -> Tensor | None:
        """The same ids for every row, or [rows, ids] (padded with -1) while some row lies before min_new_tokens."""
        if len(self._early) > len(self._always):
            positions = [p for score in asked.values() for p in score.positions]
            if min(positions) < self.min_new_tokens:
                padded = self._always + (-1,) * (len(self._early) - len(self._always))
                ids = [self._early if p < self.min_new_tokens else padded for p in positions]
                return upload(torch.tensor(ids, dtype=torch.int32), self.cache.device)
        return self._suppressed if self._always else None

    def _sample_keys(self, asking: dict[int, Run], asked: dict[int, Score]) -> Tensor:
        """Noise depends on seed, position and round alone, so that a batch samples what each sequence would alone."""
        keys = [(asking[s].seed, 0, p, score.round) for s, score in asked.items() for p in score.positions]
        return upload(torch.tensor(keys, dtype=torch.int64), self.cache.device)


def _to_host(found: TokenScores) -> tuple[np.ndarray, ...]:
    token, probability, _, entropy, margin = found
    if token.device.type == "cpu":
        return tuple(x.numpy() for x in (token, probability, entropy, margin))
    return unpack(pack(found).cpu().numpy())  # the one copy of a forward that the host waits for


def pack(found: TokenScores) -> Tensor:
    """The scores as the bytes of one int32 array."""
    token, probability, _, entropy, margin = found
    return torch.cat([x.view(torch.int32) for x in (token, probability, entropy, margin)])


def unpack(packed: np.ndarray) -> tuple[np.ndarray, ...]:
    """Token, probability, entropy and margin from what `pack` made."""
    rows = len(packed) // 5
    return packed[: 2 * rows].view(np.int64), *packed[2 * rows :].view(np.float32).reshape(3, rows)


def _result(decoder: Decoder) -> Result:
    answer = decoder.answer
    positions = answer.positions()
    tokens = [answer.tokens[p] for p in positions]
    decoder.stats.tokens = len(tokens)
    finished = bool(tokens) and tokens[-1] in answer.eos_token_ids
    return Result(tokens, [answer.probabilities[p] for p in positions], decoder.stats, finished)

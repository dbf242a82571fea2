"""Masked diffusion decoding of one sequence (LLaDA, arXiv 2502.09992): bidirectional, all of it in every forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cache import Retain
from .config import MDMConfig
from .result import Answer, Stats
from .work import Forward, Score, Steps


class MaskedDecoder:
    """Writes the most confident positions of each block and masks the others again (low-confidence remasking)."""

    def __init__(
        self, prompt: Sequence[int], config: MDMConfig, mask_token_id: int, eos_token_ids: frozenset[int]
    ) -> None:
        self.config = config
        self.mask = mask_token_id
        self.prompt = list(prompt)
        self.answer = Answer(config.max_new_tokens, eos_token_ids)
        self.stats = Stats(prompt_tokens=len(prompt))
        self.capacity = len(self.prompt) + config.max_new_tokens

    def run(self) -> Steps[None]:
        length = len(self.answer.tokens)
        block = min(self.config.block_size or length, length)
        step = 0
        for begin in range(0, length, block):
            masked = list(range(begin, min(begin + block, length)))
            steps = -(-len(masked) * (self.config.steps or length) // length)  # of this block
            while masked:
                scores = yield self._forward(masked, step)
                step += 1
                chosen = self._choose(scores.probability, -(-len(masked) // max(steps, 1)))
                steps -= 1
                written = [masked[i] for i in chosen]
                self.answer.write(written, scores.token[chosen].tolist(), scores.probability[chosen].tolist())
                masked = [p for p in masked if not self.answer.written[p]]
            end = next((p for p in range(length) if self._is_end(p)), None)
            if end is not None:
                self.answer.cut(end + 1)
                return

    def _forward(self, masked: list[int], step: int) -> Forward:
        """Every position again, masks included: a bidirectional model has no cache that stays exact."""
        answer = self.answer
        shown = [t if w else self.mask for t, w in zip(answer.tokens, answer.written, strict=True)]
        tokens = self.prompt + shown
        score = Score([len(self.prompt) + p for p in masked], masked, round=step)
        everything = list(range(len(tokens)))
        return Forward("decode", tokens, everything, Retain(0, [], 0), score, bidirectional=True)

    def _choose(self, probability: np.ndarray, count: int) -> list[int]:
        """Indices of the positions to write now: all above the threshold and at least the best, or the `count` best."""
        best_first = np.argsort(-probability, kind="stable")
        if self.config.threshold is None:
            return sorted(best_first[:count].tolist())
        above = np.flatnonzero(probability > np.float32(self.config.threshold)).tolist()
        return above or [int(best_first[0])]

    def _is_end(self, position: int) -> bool:
        return bool(self.answer.written[position]) and self.answer.tokens[position] in self.answer.eos_token_ids

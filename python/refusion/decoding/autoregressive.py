"""Autoregressive decoding of one sequence on the same cache and kernels: the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ..cache import Retain
from .config import ARConfig
from .result import Answer, Stats
from .work import PREFILL_TOKENS, Forward, Score, Steps


class ARDecoder:
    """One token a forward. For checkpoints trained with the next-token objective."""

    def __init__(self, prompt: Sequence[int], config: ARConfig, eos_token_ids: frozenset[int]) -> None:
        if not prompt:
            raise ValueError("prompt: the first token needs something to follow")
        self.prompt = list(prompt)
        self.answer = Answer(config.max_new_tokens, eos_token_ids)
        self.stats = Stats(prompt_tokens=len(prompt))
        self.capacity = len(self.prompt) + config.max_new_tokens

    def run(self) -> Steps[None]:
        rows = 0
        unread = self.prompt
        retain = Retain(0, [], 0)
        for position in range(len(self.answer.tokens)):
            while True:
                part, unread = unread[:PREFILL_TOKENS], unread[PREFILL_TOKENS:]
                asked = Score([len(part) - 1], [position]) if not unread else Score([], [])
                phase = "prefill" if unread else "decode"
                scores = yield Forward(phase, part, list(range(rows, rows + len(part))), retain, asked)
                retain = Retain(rows, list(range(rows, rows + len(part))), rows + len(part))
                rows += len(part)
                if not unread:
                    break
            token = int(scores.token[0])
            self.answer.write([position], [token], [float(scores.probability[0])])
            if token in self.answer.eos_token_ids:
                self.answer.cut(position + 1)
                return
            unread = [token]

"""What stands beside a sequence, or in the same forward, and who computes it change no bit of its answer."""

from __future__ import annotations

import itertools

import pytest
import torch

import refusion
from refusion.cli.options import BUNDLED
from refusion.linear import ALWAYS

PROMPTS = ("def main():\n    ", "x", "class Foo:\n    def __init__(self, x):\n        pass", "import os\n")


@pytest.mark.skipif(torch.bfloat16 not in ALWAYS, reason="at other levels torch multiplies what has many tokens")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_tokens_and_probabilities_depend_on_neither_batch_nor_lookahead_nor_threads(dtype: torch.dtype) -> None:
    directory = BUNDLED / "python-bytes"
    model, tokenizer = refusion.load(directory, dtype=dtype), refusion.Tokenizer.load(directory)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    threads, found = torch.get_num_threads(), []
    try:
        for lookahead, batch_size, team in itertools.product(("off", "on"), (1, 3, 4), (1, 2)):
            torch.set_num_threads(team)
            config = refusion.DecodeConfig(max_new_tokens=64, token_threshold=0.3, lookahead=lookahead)
            results = refusion.generate(model, prompts, config, batch_size=batch_size)
            found.append([(result.tokens, result.probabilities) for result in results])
    finally:
        torch.set_num_threads(threads)
    assert all(other == found[0] for other in found)

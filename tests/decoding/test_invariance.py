"""What stands beside a sequence, or in the same forward, changes no bit of its answer."""

from __future__ import annotations

import pytest
import torch

import refusion
from refusion.cli.options import BUNDLED
from refusion.linear import ALWAYS

PROMPTS = ("def main():\n    ", "x", "class Foo:\n    def __init__(self, x):\n        pass", "import os\n")


@pytest.mark.skipif(
    torch.bfloat16 not in ALWAYS, reason="products of many and few tokens are rounded alike with AVX-512"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_tokens_and_probabilities_depend_on_neither_batch_nor_lookahead(dtype: torch.dtype) -> None:
    directory = BUNDLED / "python-bytes"
    model, tokenizer = refusion.load(directory, dtype=dtype), refusion.Tokenizer.load(directory)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    found = []
    for lookahead in ("off", "on"):
        config = refusion.DecodeConfig(max_new_tokens=64, token_threshold=0.3, lookahead=lookahead)
        for batch_size in (1, 3, 4):
            results = refusion.generate(model, prompts, config, batch_size=batch_size)
            found.append([(result.tokens, result.probabilities) for result in results])
    assert all(other == found[0] for other in found)

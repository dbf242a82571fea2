"""Eight prompts of bundled models, one by one and as one ragged batch: the same tokens, how much faster?

python scripts/bench_batch.py
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch

import refusion
from refusion.cli.options import BUNDLED
from refusion.evaluation.compare import PROBLEMS

ROUNDS = 5
PYTHON = [
    "def main():\n    ",
    "import os\n",
    "class Foo:\n    def __init__(self, x):\n",
    "# compute the sum\ntotal = 0\n",
    "for i in range(10):\n    print(",
    "return self.",
    "if x is None:\n        raise ValueError(",
    "with open(path) as f:\n",
]


def problems() -> list[str]:
    lines = (BUNDLED / "code-refusion" / PROBLEMS).read_text(encoding="utf-8").splitlines()[:8]
    return [json.loads(line)["query"] for line in lines]


def measure(name: str, dtype: torch.dtype, texts: list[str], config: Any) -> None:
    directory = BUNDLED / name
    model, tokenizer = refusion.load(directory, dtype=dtype), refusion.Tokenizer.load(directory)
    prompts = [tokenizer.prompt(text) for text in texts]
    for threads in range(1, torch.get_num_threads() + 1):
        torch.set_num_threads(threads)
        alone, together = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            single = [refusion.generate(model, prompt, config) for prompt in prompts]
            middle = time.perf_counter()
            batch = refusion.generate(model, prompts, config, batch_size=8)
            alone.append(middle - began)
            together.append(time.perf_counter() - middle)
        assert [r.tokens for r in single] == [r.tokens for r in batch]
        times = f"{1e3 * min(alone):.0f} ms one by one, {1e3 * min(together):.0f} ms together"
        print(f"{name}, {dtype}, {threads} thread(s): {times}, ratio {min(alone) / min(together):.2f}")


def main() -> int:
    for dtype in (torch.float32, torch.bfloat16):
        measure("code-refusion", dtype, problems(), refusion.DecodeConfig(max_new_tokens=128, token_threshold=0.5))
        measure("python-bytes", dtype, PYTHON, refusion.DecodeConfig(max_new_tokens=128))
        measure("code-ar", dtype, problems(), refusion.ARConfig(max_new_tokens=128))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

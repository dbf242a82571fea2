"""Eight prompts of the bundled code models, one by one and as one ragged batch: the same tokens, how much faster?

python scripts/bench_batch.py
"""

from __future__ import annotations

import json
import time

import torch

import refusion
from refusion.cli.options import BUNDLED
from refusion.evaluation.compare import PROBLEMS


def main() -> int:
    lines = (BUNDLED / "code-refusion" / PROBLEMS).read_text(encoding="utf-8").splitlines()[:8]
    for variant, config in (
        ("refusion", refusion.DecodeConfig(max_new_tokens=128, token_threshold=0.5)),
        ("ar", refusion.ARConfig(max_new_tokens=128)),
    ):
        directory = BUNDLED / f"code-{variant}"
        model, tokenizer = refusion.load(directory), refusion.Tokenizer.load(directory)
        prompts = [tokenizer.prompt(json.loads(line)["query"]) for line in lines]
        for threads in range(1, torch.get_num_threads() + 1):
            torch.set_num_threads(threads)
            alone, together = [], []
            for _ in range(5):
                began = time.perf_counter()
                single = [refusion.generate(model, prompt, config) for prompt in prompts]
                middle = time.perf_counter()
                batch = refusion.generate(model, prompts, config, batch_size=8)
                alone.append(middle - began)
                together.append(time.perf_counter() - middle)
            assert [r.tokens for r in single] == [r.tokens for r in batch]
            times = f"{1e3 * min(alone):.0f} ms one by one, {1e3 * min(together):.0f} ms together"
            print(f"{variant}, {threads} thread(s): {times}, ratio {min(alone) / min(together):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

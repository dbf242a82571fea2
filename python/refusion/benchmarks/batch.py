"""Ragged prompts of the bundled models, one by one and as one batch: the same tokens, how much faster?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import refusion
from refusion.decoding import ARConfig, DecodeConfig
from refusion.evaluation.compare import PROBLEMS

from .timing import interleave

HEADER = "| model | dtype | threads | one by one, ms | together, ms | times as fast |\n|---|---|---:|---:|---:|---:|"
PYTHON = (
    "def main():\n    ",
    "import os\n",
    "class Foo:\n    def __init__(self, x):\n",
    "# compute the sum\ntotal = 0\n",
    "for i in range(10):\n    print(",
    "return self.",
    "if x is None:\n        raise ValueError(",
    "with open(path) as f:\n",
)


@dataclass(frozen=True, slots=True)
class BatchTiming:
    model: str
    dtype: str
    threads: int
    alone: float
    """Seconds of all decodes one after another, median."""
    together: float
    """Of the batch."""

    def line(self) -> str:
        times = f"{1e3 * self.alone:.0f} | {1e3 * self.together:.0f} | {self.alone / self.together:.2f}"
        return f"| {self.model} | {self.dtype} | {self.threads} | {times} |"


def measure(
    bundled: Path, seconds: float, *, prompts: int = len(PYTHON), max_new_tokens: int = 128
) -> Iterator[BatchTiming]:
    """Both ways in turns for `seconds`, for each model and dtype, on one thread and on all.

    Raises AssertionError where a batch writes other tokens than single decodes.
    """
    lines = (bundled / "code-refusion" / PROBLEMS).read_text(encoding="utf-8").splitlines()
    problems = tuple(json.loads(line)["query"] for line in lines[:prompts])
    slots = DecodeConfig(max_new_tokens=max_new_tokens)
    code = DecodeConfig(max_new_tokens=max_new_tokens, token_threshold=0.5)
    cases: tuple[tuple[str, tuple[str, ...], DecodeConfig | ARConfig], ...] = (
        ("code-refusion", problems, code),
        ("python-bytes", PYTHON[:prompts], slots),
        ("code-ar", problems, ARConfig(max_new_tokens=max_new_tokens)),
    )
    threads = torch.get_num_threads()
    try:
        for dtype in (torch.float32, torch.bfloat16):
            for name, texts, config in cases:
                for used in sorted({1, threads}):
                    torch.set_num_threads(used)
                    yield _measure(bundled / name, dtype, texts, config, seconds)
    finally:
        torch.set_num_threads(threads)


def _measure(
    directory: Path, dtype: torch.dtype, texts: tuple[str, ...], config: DecodeConfig | ARConfig, seconds: float
) -> BatchTiming:
    model, tokenizer = refusion.load(directory, dtype=dtype), refusion.Tokenizer.load(directory)
    prompts = [tokenizer.prompt(text) for text in texts]

    def alone() -> list[list[int]]:
        return [refusion.generate(model, prompt, config).tokens for prompt in prompts]

    def together() -> list[list[int]]:
        return [r.tokens for r in refusion.generate(model, prompts, config, batch_size=len(prompts))]

    assert alone() == together(), f"{directory.name}: a batch wrote other tokens"
    timings = interleave({"alone": alone, "together": together}, seconds)
    names = directory.name, str(dtype).removeprefix("torch."), torch.get_num_threads()
    return BatchTiming(*names, timings["alone"].median, timings["together"].median)

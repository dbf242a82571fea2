"""Decodes without end in changing ways and prints the memory of the process: it must not grow.

    python scripts/soak.py --minutes 30

Prompts, decoders, lengths, thresholds, batch sizes and sampling are drawn anew for every call. Prints 30 lines, and
ends with an error when the second half of the run uses 5 % more memory than the first.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from pathlib import Path

import refusion
from refusion.cli.options import DEFAULT_CHECKPOINT
from refusion.decoding.config import SamplingConfig


def draw_config(draw: random.Random) -> SamplingConfig:
    shared = {
        "max_new_tokens": draw.randint(1, 200),
        "temperature": draw.choice((0.0, 0.0, 0.8)),
        "seed": draw.randrange(1 << 30),
        "eos_token_ids": draw.choice(((), None)),
    }
    kind = draw.choice(("refusion", "refusion", "ar", "mdm"))
    if kind == "ar":
        return refusion.ARConfig(**shared)
    if kind == "mdm":
        return refusion.MDMConfig(
            **shared | {"max_new_tokens": draw.randint(1, 40)}, threshold=draw.choice((None, 0.7))
        )
    slot = draw.choice((2, 4, 8, 16))
    return refusion.DecodeConfig(
        **shared,
        slot_size=slot,
        block_size=draw.choice((None, 2 * slot, 4 * slot)),
        slot_threshold=draw.choice((0.5, 0.9)),
        token_threshold=draw.choice((0.3, 0.9)),
        lookahead=draw.choice(("auto", "on", "off")),
    )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--model", type=Path, default=DEFAULT_CHECKPOINT)
    args = parser.parse_args()
    model = refusion.load(args.model)
    draw = random.Random(0)
    began = time.monotonic()
    samples: list[int] = []
    decodes = tokens = 0
    while (elapsed := (time.monotonic() - began) / 60) < args.minutes:
        vocab = model.config.vocab_size
        prompts = [
            [draw.randrange(vocab) for _ in range(draw.randint(1, 120))] for _ in range(draw.choice((1, 1, 4, 9)))
        ]
        results = refusion.generate(model, prompts, draw_config(draw), batch_size=draw.choice((1, 4, 8)))
        decodes, tokens = decodes + len(results), tokens + sum(len(r.tokens) for r in results)
        if elapsed * 60 >= 60 * (len(samples) + 1) * args.minutes / 30:
            samples.append(resident_bytes())
            print(f"{elapsed:5.1f} min  {decodes} decodes  {tokens} tokens  {samples[-1] / 1e6:.1f} MB", flush=True)
    half = len(samples) // 2
    if half and max(samples[half:]) > 1.05 * max(samples[:half]):
        print("memory grew")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""English instructions answered by small Python functions: training data and held-out problems.

    python -m refusion.tasks.code --split train --count 150000 --seed 0 --out train.jsonl

writes JSON Lines of {"query", "response", "program"}; the test split adds "tests", calls with the values they must
return (packed: `refusion.sandbox.read_tests`). Programs, not wordings, are split: a program that occurs in one split
never occurs in the other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..sandbox import write_tests
from .checks import make_tests
from .generator import Generator
from .layout import build_tokenizer, fill_slots

TOKENIZER_SAMPLES = 20_000


def items(
    split: str, seed: int, *, layout: str = "slots", tests: bool | None = None, **sizes: int
) -> Iterator[dict[str, Any]]:
    """Problems as they are written to a file, without end.

    Args:
        split: 'train' or 'test'.
        seed: decides the sequence.
        layout: 'slots' fills every line up to a slot (`refusion.tasks.layout`), 'plain' is the code alone.
        tests: add hidden calls, and leave out programs that cannot be told from slightly wrong ones; None: for 'test'.
        sizes: `least_functions`, `most_functions`, `most_steps` and `loops` of `Generator`.
    """
    if layout not in ("slots", "plain"):
        raise ValueError(f"layout must be 'slots' or 'plain', got {layout!r}")
    for problem in Generator(seed, split, **sizes):
        item = {"query": problem.query, "response": fill_slots(problem.code) if layout == "slots" else problem.code}
        item["program"] = problem.program
        if tests or (tests is None and split == "test"):
            calls = make_tests(problem, seed)
            if calls is None:
                continue
            yield item | {"tests": write_tests(calls)}
        else:
            yield item


def write_tokenizer(path: Path) -> None:
    """Trains the task's tokenizer, always the same one, and saves it as `tokenizer.json`."""
    problems = islice(Generator(0, "train"), TOKENIZER_SAMPLES)
    core = build_tokenizer(text for problem in problems for text in (problem.query, problem.code))
    core.save(str(path))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m refusion.tasks.code", description=__doc__.split("\n")[0])
    parser.add_argument("--split", choices=("train", "test"), default="train")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", choices=("slots", "plain"), default="slots")
    parser.add_argument("--most-functions", type=int, default=3)
    parser.add_argument("--most-steps", type=int, default=5)
    parser.add_argument("--loops", type=float, default=0.2, help="share of a list's functions that end in a loop")
    parser.add_argument("--out", type=Path, help="JSON Lines file of problems")
    parser.add_argument("--tokenizer", type=Path, help="write the task's tokenizer.json here")
    args = parser.parse_args(arguments)
    if args.tokenizer:
        write_tokenizer(args.tokenizer)
    if args.out:
        sizes = {"most_functions": args.most_functions, "most_steps": args.most_steps, "loops": args.loops}
        with open(args.out, "w", encoding="utf-8") as file:
            for item in islice(items(args.split, args.seed, layout=args.layout, **sizes), args.count):
                file.write(json.dumps(item) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The problems that `refusion compare` decodes: half of one function, half of several, with hidden tests.

    python -m refusion.tasks.held_out --out problems.jsonl

writes the file that is shipped with the code checkpoints. No program of it is in any training file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from .code import items
from .layout import filled_length

SEED = 1
COUNT = 200
SHORTEST, CANVAS = 40, 128  # tokens of the expected answer, filled up to slots and with EOS


def problems() -> Iterator[dict[str, Any]]:
    """Without end: one function and several in turn; {"query", "response", "program", "tests"}."""
    single, several = _of(1, 1), _of(2, 3)
    while True:
        yield next(single)
        yield next(several)


def _of(least: int, most: int) -> Iterator[dict[str, Any]]:
    for item in items("test", SEED, layout="plain", most_functions=most, least_functions=least):
        if SHORTEST <= filled_length(item["response"]) < CANVAS:
            yield item


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m refusion.tasks.held_out", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file of problems")
    parser.add_argument("--count", type=int, default=COUNT)
    args = parser.parse_args(arguments)
    lines = (json.dumps(item) + "\n" for item in islice(problems(), args.count))
    args.out.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

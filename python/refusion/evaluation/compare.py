"""ReFusion against autoregressive and masked diffusion decoding: same size, same data, same problems, one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import refusion_ext

from ..checkpoint import load, read_recommended, read_training
from ..decoding.config import ARConfig, DecodeConfig, MDMConfig, SamplingConfig
from ..tasks.held_out import CANVAS
from ..tokenizer import Tokenizer
from .answers import Answered, Summary, decode_items, summarise
from .checkers import make_checker
from .items import Item, read_items

PROBLEMS = "held-out.jsonl"  # beside the weights of ReFusion
SLOW_SHARE = 5  # one problem in so many is decoded at a token a forward: it takes 50 times as long as ReFusion


@dataclass(frozen=True)
class Setting:
    """One row of the comparison."""

    variant: str
    name: str
    config: SamplingConfig
    every: int = 1
    """Only every n-th problem is decoded."""


@dataclass(frozen=True)
class Row:
    """What a setting reached."""

    variant: str
    name: str
    summary: Summary


@dataclass(frozen=True)
class Comparison:
    """All rows, with the two that the others are measured against."""

    rows: tuple[Row, ...]
    training: dict[str, dict[str, Any]]
    """By variant, what its checkpoint's `training.json` says: objective, steps, tokens, seed."""
    dtype: str
    """Of the weights and the cache."""

    @property
    def autoregressive(self) -> Row:
        return next(r for r in self.rows if r.variant == "ar")

    @property
    def masked(self) -> Row:
        """Masked diffusion at one token a forward, the paper's comparison."""
        return next(r for r in self.rows if r.variant == "mdm")

    def speedup(self, row: Row, over: Row) -> float:
        return row.summary.tokens_per_second / over.summary.tokens_per_second

    def to_json(self) -> str:
        rows = [
            asdict(row)
            | {"over_ar": self.speedup(row, self.autoregressive), "over_mdm": self.speedup(row, self.masked)}
            for row in self.rows
        ]
        facts = {"canvas": CANVAS, "dtype": self.dtype, "training": self.training}
        return json.dumps(facts | {"rows": rows}, indent=2) + "\n"


def settings(recommended: dict[str, Any]) -> list[Setting]:
    """The rows: AR; masked diffusion as published and with a threshold; ReFusion, recommended first, then others."""
    best = _refusion(recommended)
    rows = [
        Setting("ar", "AR, cached", ARConfig(max_new_tokens=CANVAS)),
        Setting("mdm", "MDM, one token a forward", _masked(None), SLOW_SHARE),
        *(Setting("mdm", f"MDM, threshold {t}", _masked(t)) for t in (0.97, 0.9)),
        Setting("refusion", f"ReFusion {_describe(best)} (recommended)", best),
    ]
    for slot_threshold, token_threshold in ((0.99, 0.7), (0.9, 0.9), (0.9, 0.3), (0.6, 0.3)):
        config = _refusion(recommended | {"slot_threshold": slot_threshold, "token_threshold": token_threshold})
        if config != best:
            rows.append(Setting("refusion", f"ReFusion {_describe(config)}", config))
    return rows


def _refusion(changes: dict[str, Any]) -> DecodeConfig:
    return DecodeConfig(**changes | {"max_new_tokens": CANVAS})


def _masked(threshold: float | None) -> MDMConfig:
    # The whole canvas is one block, as in training: written in smaller ones, the answers are worse.
    return MDMConfig(max_new_tokens=CANVAS, threshold=threshold)


def _describe(config: DecodeConfig) -> str:
    return f"{config.slot_threshold:g}/{config.token_threshold:g}"


def compare(checkpoints: Path, count: int = 200, *, progress: Callable[[int, int], None] | None = None) -> Comparison:
    """Decodes held-out problems with every setting, one sequence at a time, and runs the answers against tests.

    Args:
        checkpoints: directory with `code-refusion` (which holds the problems), `code-ar` and `code-mdm`.
        count: problems, at most.
        progress: called with problems done and their number.

    The settings take turns on every problem, so that a drift of the machine's speed hits all of them. Seconds are
    those of decoding alone; tokens are those of the answers' text; prompts do not count.
    """
    directories = {variant: checkpoints / f"code-{variant}" for variant in ("refusion", "ar", "mdm")}
    dtype = _fastest_dtype()
    models = {variant: load(path, dtype=dtype) for variant, path in directories.items()}
    tokenizer = Tokenizer.load(directories["refusion"])
    rows = settings(read_recommended(directories["refusion"]))
    items = read_items(directories["refusion"] / PROBLEMS, count)
    for setting in rows:
        decode_items(models[setting.variant], tokenizer, items[:1], setting.config)  # warms caches and allocators
    answers: list[list[tuple[Item, Answered]]] = [[] for _ in rows]
    for number, item in enumerate(items):
        for index in _turns(len(rows), number):
            if number % rows[index].every == 0:
                [answer] = decode_items(models[rows[index].variant], tokenizer, [item], rows[index].config)
                answers[index].append((item, answer))
        if progress is not None:
            progress(number + 1, len(items))
    with make_checker("code", tokenizer) as right:
        summaries = [summarise([a for _, a in given], [right(i, a.text) for i, a in given]) for given in answers]
    training = {variant: read_training(path) for variant, path in directories.items()}
    found = tuple(Row(s.variant, s.name, summary) for s, summary in zip(rows, summaries, strict=True))
    return Comparison(found, training, dtype)


def _fastest_dtype() -> str:
    """bfloat16 where the kernels multiply it: twice the rate of float32, and the same problems solved."""
    return "bfloat16" if refusion_ext.info().isa_in_use in ("avx512", "amx") else "float32"


def _turns(count: int, number: int) -> Sequence[int]:
    """The order of the settings on a problem: rotating."""
    shift = number % count
    return [*range(shift, count), *range(shift)]

"""`refusion eval`: how many items of a file a checkpoint answers rightly, and how fast."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from .options import add_decoding, add_model, decode_config


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="score a checkpoint on a file",
        description='Answers the items of a JSON Lines file of {"query", "response", "tests"} and says how many '
        "answers are right.",
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FILE", help="JSON Lines")
    add(
        "--checker",
        default="exact",
        metavar="NAME",
        help="exact: equal to 'response'; code: passes 'tests' in the sandbox; module:function: your own, called with "
        "the item's fields and the answer's text (default: %(default)s)",
    )
    add("--limit", type=int, metavar="N", help="items (default: all)")
    add("--batch-size", type=int, default=1, metavar="N", help="items decoded together (default: %(default)s)")
    add("--out", type=Path, metavar="FILE", help="write every answer with its verdict as JSON Lines")
    add("--json", action="store_true", help="print one JSON object instead of a line")
    add_model(parser)
    add_decoding(parser)


def run(args: argparse.Namespace) -> int:
    from ..checkpoint import load, read_recommended, write_atomically
    from ..evaluation import decode_items, make_checker, read_items, summarise
    from ..tokenizer import Tokenizer

    for name in ("limit", "batch_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    items = read_items(args.data, args.limit)
    config = decode_config(args, read_recommended(args.model))
    tokenizer = Tokenizer.load(args.model)
    model = load(args.model, device=args.device, dtype=args.dtype)
    with make_checker(args.checker, tokenizer) as is_right:
        answers = decode_items(model, tokenizer, items, config, batch_size=args.batch_size)
        right = [is_right(item, answer.text) for item, answer in zip(items, answers, strict=True)]
    summary = summarise(answers, right)
    if args.out:
        records = [
            {"query": item.query, "answer": answer.text, "right": verdict, "tokens": answer.tokens}
            for item, answer, verdict in zip(items, answers, right, strict=True)
        ]
        text = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(args.out, lambda file: file.write_text(text, encoding="utf-8"))
    if args.json:
        print(json.dumps(asdict(summary)))
    else:
        share = f"{100 * summary.accuracy:.1f} ± {100 * summary.error:.1f} %"
        rates = f"{summary.tokens_per_forward:.2f} tokens per forward, {summary.tokens_per_second:.0f} per second"
        print(f"{share} of {summary.items} items right ({args.checker}); {rates}")
    return 0

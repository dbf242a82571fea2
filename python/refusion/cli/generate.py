"""`refusion generate`: one prompt in, text out as it becomes final."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from .options import add_decoding, add_model, decode_config

if TYPE_CHECKING:
    from ..decoding import Result
    from ..decoding.config import SamplingConfig
    from ..model import Qwen3
    from ..tokenizer import Tokenizer


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="complete a prompt",
        description="Completes a prompt: text to standard output as it becomes final, statistics to standard error.",
        epilog="Examples: refusion generate harbor; "
        "refusion generate --model code-refusion 'Write score(xs) for a list: sort it, then return the sum.'",
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("prompt", nargs="?", metavar="PROMPT", help="text; '-' or nothing: read standard input")
    prompt.add_argument("--prompt-ids", metavar="IDS", help="token ids instead of text, separated by commas or spaces")
    chat = parser.add_mutually_exclusive_group()
    chat.add_argument(
        "--chat", action="store_true", default=None, help="use the chat template (default: when there is one)"
    )
    chat.add_argument("--no-chat", dest="chat", action="store_false", help="take the prompt as it is")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text and statistics")
    add_model(parser)
    add_decoding(parser)


def run(args: argparse.Namespace) -> int:
    from ..checkpoint import load, read_recommended
    from ..tokenizer import Tokenizer

    config = decode_config(args, read_recommended(args.model))
    model = load(args.model, device=args.device, dtype=args.dtype)
    tokenizer = Tokenizer.load(args.model)
    prompt_ids = _prompt_ids(args, tokenizer)
    result = _decode(model, tokenizer, prompt_ids, config, show=not args.json)
    if args.json:
        print(json.dumps(_as_json(result, tokenizer.decode(result.tokens))))
    else:
        print(_statistics(result), file=sys.stderr)
    return 0


def _prompt_ids(args: argparse.Namespace, tokenizer: Tokenizer) -> list[int]:
    if args.prompt_ids is not None:
        try:
            return [int(x) for x in args.prompt_ids.replace(",", " ").split()]
        except ValueError:
            raise ValueError(f"--prompt-ids: expected integers, got {args.prompt_ids!r}") from None
    text = args.prompt
    if text is None or text == "-":
        if text is None and sys.stdin.isatty():
            raise ValueError("no PROMPT given, and standard input is a terminal (use '-' to type one)")
        text = sys.stdin.read()
    return tokenizer.prompt(text, chat=args.chat)


def _decode(model: Qwen3, tokenizer: Tokenizer, prompt_ids: list[int], config: SamplingConfig, show: bool) -> Result:
    from ..decoding import Event, Result, stream
    from ..tokenizer import TextStream

    text = TextStream(tokenizer)
    for item in stream(model, prompt_ids, config):
        if show:
            new = text.push(item.prefix) if isinstance(item, Event) else text.finish(item.tokens) + "\n"
            print(new, end="", flush=True)
        if isinstance(item, Result):
            return item
    raise AssertionError("a stream ends with its result")


def _statistics(result: Result) -> str:
    stats = result.stats
    phases = ", ".join(f"{count} {phase}" for phase, count in stats.phases.items())
    rates = f"{stats.tokens_per_forward:.2f} tokens per forward, {stats.tokens_per_second:.0f} tokens per second"
    return f"{stats.tokens} tokens in {stats.forwards} forwards ({phases}), {stats.seconds:.3f} s: {rates}"


def _as_json(result: Result, text: str) -> dict[str, Any]:
    stats = result.stats
    return {
        "text": text,
        "tokens": result.tokens,
        "finished": result.finished,
        "stats": {
            "tokens": stats.tokens,
            "prompt_tokens": stats.prompt_tokens,
            "forwards": stats.forwards,
            "phases": stats.phases,
            "tokens_per_forward": stats.tokens_per_forward,
            "computed_tokens": stats.computed_tokens,
            "wasted_tokens": stats.wasted_tokens,
            "seconds": stats.seconds,
            "tokens_per_second": stats.tokens_per_second,
        },
    }

"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..decoding.config import SamplingConfig

BUNDLED = Path(__file__).parent.parent / "checkpoints"
DEFAULT_CHECKPOINT = BUNDLED / "dictionary"


def checkpoint(text: str) -> Path:
    """A directory, or the name of a bundled checkpoint where there is no such directory."""
    path = Path(text)
    return BUNDLED / text if not path.exists() and (BUNDLED / text / "config.json").is_file() else path


def count(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def bundled() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


# Options whose default is the checkpoint's generation_config.json, else that of the decoder's config class.
_SAMPLING = ("max_new_tokens", "min_new_tokens", "temperature", "seed")
_OF_DECODER = {
    "refusion": (
        "slot_size",
        "block_size",
        "slot_threshold",
        "token_threshold",
        "slot_score",
        "semantics",
        "lookahead",
    ),
    "ar": (),
    "mdm": ("block_size", "steps", "threshold"),
}


def add_model(parser: argparse.ArgumentParser) -> None:
    """--model, --device, --dtype."""
    parser.add_argument(
        "--model",
        type=checkpoint,
        default=DEFAULT_CHECKPOINT,
        metavar="DIR",
        help=f"checkpoint directory, or a bundled one: {', '.join(bundled())} (default: {DEFAULT_CHECKPOINT.name})",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="type of weights and cache (default: as stored)"
    )


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Every field of the decoder configs."""
    group = parser.add_argument_group(
        "decoding", "Defaults come from the checkpoint's generation_config.json where it has one."
    )
    group.add_argument("--decoder", choices=tuple(_OF_DECODER), default="refusion", help="(default: %(default)s)")
    group.add_argument("--max-new-tokens", type=int, metavar="N", help="length of the answer in tokens, at most (128)")
    group.add_argument("--min-new-tokens", type=int, metavar="N", help="no end of sequence before this many tokens (0)")
    group.add_argument("--temperature", type=float, metavar="T", help="0: the most probable token; above: sample (0)")
    group.add_argument("--seed", type=int, metavar="N", help="of the sampling (0)")
    group.add_argument("--no-eos", action="store_true", help="never end before --max-new-tokens")
    group.add_argument("--slot-size", type=int, metavar="K", help="tokens a slot (8)")
    group.add_argument("--block-size", type=int, metavar="N", help="tokens of an outer block (the whole answer)")
    group.add_argument("--slot-threshold", type=float, metavar="P", help="write a slot above this confidence (0.9)")
    group.add_argument(
        "--token-threshold", type=float, metavar="P", help="keep a drafted token above this probability (0.9)"
    )
    group.add_argument(
        "--slot-score", choices=("first", "mean", "minimum", "entropy", "margin"), help="confidence of a slot (first)"
    )
    group.add_argument(
        "--semantics", choices=("strict", "reference"), help="reference: the public script's slips included (strict)"
    )
    group.add_argument("--lookahead", choices=("auto", "on", "off"), help="plan while verifying: same tokens (auto)")
    group.add_argument("--steps", type=int, metavar="N", help="mdm: forwards for the whole answer (one a token)")
    group.add_argument(
        "--threshold", type=float, metavar="P", help="mdm: write every token above this probability instead"
    )


def decode_config(args: argparse.Namespace, recommended: dict[str, Any]) -> SamplingConfig:
    """The config of `--decoder` from the options given; raises `ValueError` for an option of another decoder."""
    from ..decoding.api import CONFIGS

    mine = _SAMPLING + _OF_DECODER[args.decoder]
    for decoder, names in _OF_DECODER.items():
        for name in names:
            if name not in mine and getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} belongs to --decoder {decoder}, not {args.decoder}")
    chosen = {name: recommended[name] for name in mine if name in recommended}
    chosen |= {name: getattr(args, name) for name in mine if getattr(args, name) is not None}
    if args.no_eos:
        chosen["eos_token_ids"] = ()
    return CONFIGS[args.decoder](**chosen)

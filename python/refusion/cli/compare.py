"""`refusion compare`: the shipped code models against one another."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .options import BUNDLED, count


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="ReFusion against autoregressive and masked diffusion decoding",
        description="Decodes held-out code problems with the bundled ReFusion, autoregressive (AR) and masked "
        "diffusion (MDM) models, runs the answers against hidden tests and prints accuracy and speed of each.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--problems", type=count, default=200, metavar="N", help="held-out problems")
    add("--checkpoints", type=Path, default=BUNDLED, metavar="DIR", help="holds code-refusion, code-ar and code-mdm")
    add("--json", type=Path, default=Path("compare.json"), metavar="FILE", help="figures for machines")
    add("--plot", type=Path, default=Path("compare.png"), metavar="FILE", help="picture (needs matplotlib)")
    add("--threads", type=count, metavar="N", help="of torch (default: its own choice)")


def run(args: argparse.Namespace) -> int:
    import torch
    from tqdm import tqdm  # type: ignore[import-untyped]

    from ..checkpoint import write_atomically
    from ..evaluation.compare import compare
    from ..evaluation.report import plot, table

    if args.threads:
        torch.set_num_threads(args.threads)
    bar = tqdm(total=args.problems, disable=not sys.stderr.isatty(), unit="problem", dynamic_ncols=True)
    with bar:
        comparison = compare(args.checkpoints, args.problems, progress=lambda done, _: bar.update(done - bar.n))
    print(table(comparison))
    write_atomically(args.json, lambda file: file.write_text(comparison.to_json(), encoding="utf-8"))
    drawn = plot(comparison, args.plot)
    written = f"wrote {args.json}" + (
        f" and {args.plot}" if drawn else "; no picture: pip install 'refusion-ext[bench]'"
    )
    print(written, file=sys.stderr)
    return 0

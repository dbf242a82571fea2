"""The command `refusion`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

COMMANDS = {
    "generate": "refusion.cli.generate",
    "bench": "refusion.cli.bench",
    "info": "refusion.cli.info",
    "train": "refusion.cli.train",
    "eval": "refusion.cli.eval",
    "compare": "refusion.cli.compare",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        args = _parser().parse_args(argv)
        _share_cores()
        code: int = importlib.import_module(COMMANDS[args.command]).run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("\nrefusion: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader left; without this the interpreter would complain once more while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        print(f"refusion: error: {error}", file=sys.stderr)
        return 1


def _share_cores() -> None:
    """Lets threads that wait for one another sleep after some microseconds; read when torch is loaded, later.

    The default of OpenMP is to spin for milliseconds: where another process wants the cores, each of the hundred
    waits of a forward then lasts as long as the scheduler's turn, and a decode twenty to fifty times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refusion", description="Decode with ReFusion masked diffusion language models."
    )
    parser.add_argument("--version", action="version", version=f"refusion {_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS.values():
        importlib.import_module(module).add_parser(subparsers)
    return parser


def _version() -> str:
    try:
        return version("refusion-ext")
    except PackageNotFoundError:
        return "unknown (not installed)"

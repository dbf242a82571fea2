"""`refusion bench`: measures the machine, then every op and whole decodes against their alternatives."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

from .options import BUNDLED, count

PRESETS = ("tiny", "0.6b", "8b")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure the kernels and decoders on this machine",
        description="Measures this machine's read and copy bandwidth and matrix peak, then each op against its torch "
        "alternatives and whole decodes against each other, interleaved in one run, with every op's result checked.",
        epilog="Example: refusion bench --op 'attend.*bfloat16' --json bench.json --plot roofline.png",
    )
    parser.add_argument("--op", nargs="?", const="", metavar="REGEX", help="op suite, of the cases that match")
    parser.add_argument(
        "--decode", nargs="?", const="", metavar="REGEX", help="decode suite, of the settings that match"
    )
    parser.add_argument("--forward", action="store_true", help="a forward of 16 tokens against reading its weights")
    parser.add_argument("--batch", action="store_true", help="eight prompts one by one and as a batch")
    parser.add_argument("--overhead", action="store_true", help="cost of an eager call and of a small forward")
    parser.add_argument("--preset", choices=PRESETS, default="0.6b", help="shapes of the model (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="time of an op case (default: %(default)s)"
    )
    parser.add_argument("--acceptance", type=float, default=0.9, metavar="P", help="drawn by the decode suite (0.9)")
    parser.add_argument(
        "--threads", type=count, metavar="N", help="threads of torch and the kernels (default: all cores)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a roofline plot (PNG, needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    import torch

    from ..benchmarks import batch, forward, machine, overhead, report, shapes

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    everything = args.op is None and args.decode is None and not (args.forward or args.batch or args.overhead)
    measured = machine.measure(min(args.seconds, 1.0))
    print("\n".join(report.machine_lines(measured)), flush=True)
    written: dict[str, Any] = {"machine": measured.as_dict()}
    if everything or args.op is not None:
        results = _ops(args)
        print("\n" + "\n".join(report.op_lines(results, measured)), flush=True)
        written["ops"] = [r.as_dict(measured) for r in results]
        if args.plot:
            report.plot_roofline(results, measured, args.plot)
    if everything or args.decode is not None:
        written["decode"] = _decodes(args)
    if everything or args.forward:
        timing = forward.measure(shapes.PRESETS[args.preset], measured, args.seconds)
        print("\n" + "\n".join(timing.lines()), flush=True)
        written["forward"] = dataclasses.asdict(timing)
    if everything or args.batch:
        print(f"\n{batch.HEADER}", flush=True)
        written["batch"] = []
        for found in batch.measure(BUNDLED, args.seconds):
            print(found.line(), flush=True)
            written["batch"].append(dataclasses.asdict(found))
    if everything or args.overhead:
        costs = overhead.measure(args.seconds)
        print("\n" + "\n".join(costs.lines()), flush=True)
        written["overhead"] = dataclasses.asdict(costs)
    if args.json:
        args.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


def _ops(args: argparse.Namespace) -> list[Any]:
    from ..benchmarks import ops, shapes, suite

    wanted = re.compile(args.op) if args.op else None
    return suite.run(ops.cases(shapes.PRESETS[args.preset], args.quick), args.seconds, wanted, _progress)


def _decodes(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    import torch

    from ..benchmarks import decode, shapes
    from ..checkpoint import load

    if args.preset == "tiny":
        model, settings = load(BUNDLED / "python-bytes"), decode.real_settings(128)
        prompts = [list(text.encode()) for text in ("def to_json(self, path):\n", "class Reader:\n", "import os\n")]
    else:
        config = shapes.PRESETS[args.preset]
        model, settings = decode.random_model(config, torch.bfloat16), decode.drawn_settings(64, args.acceptance)
        prompts = [torch.randint(0, 1000, (256,)).tolist()]
    settings = [s for s in settings if not args.decode or re.search(args.decode, s.name)]
    timings = decode.run(model, prompts, settings, 1 if args.quick else 3, _progress)
    print(f"\n{args.preset}: {len(prompts)} prompts, one at a time\n\n{decode.HEADER}")
    print("\n".join(timing.line(timings[0]) for timing in timings), flush=True)
    return {args.preset: [dataclasses.asdict(timing) for timing in timings]}


def _progress(title: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{title}", end="\r", file=sys.stderr, flush=True)

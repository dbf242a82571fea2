"""`refusion info`: the build, the machine and a checkpoint's shape."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
from typing import Any

from .options import add_model


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("info", help="show the build, the machine and a checkpoint's shape")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    import torch

    import refusion_ext

    from ..checkpoint import load

    model = load(args.model, device=args.device, dtype=args.dtype)
    parameters = sum(p.numel() for p in model.parameters())
    sections: dict[str, dict[str, Any]] = {
        "build": dataclasses.asdict(refusion_ext.info()),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "torch threads": torch.get_num_threads(),
            "CUDA device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "checkpoint": {
            "path": str(args.model),
            "parameters": parameters,
            "dtype": str(model.dtype).removeprefix("torch."),
            **{
                k: v
                for k, v in model.config.to_hugging_face().items()
                if k not in ("architectures", "use_sliding_window")
            },
        },
    }
    if args.json:
        print(json.dumps(sections))
        return 0
    for title, entries in sections.items():
        print(title)
        for name, value in entries.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            print(f"  {name.replace('_', ' '):26} {'none' if shown is None else shown}")
    return 0


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

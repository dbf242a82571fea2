"""`refusion train`: trains a model on pairs of query and response."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from .options import count


def _settings(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return value


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a model",
        description="Trains a model on pairs of query and response with the ReFusion, autoregressive or masked "
        "diffusion objective. Several processes: torchrun --nproc-per-node N -m refusion train ...",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    none = argparse.SUPPRESS  # the defaults are those of TrainConfig, which needs torch to import
    add = parser.add_argument
    add("--data", type=Path, default=none, metavar="FILE", help='JSON Lines or a JSON list of {"query", "response"}')
    add("--out", type=Path, required=True, metavar="DIR", help="checkpoint, state, log and plot go here")
    add("--objective", choices=("refusion", "ar", "mdm"), default=none, help="what is learned (refusion)")
    add("--resume", action="store_true", help="continue the run in --out with its settings")
    start = parser.add_argument_group("start")
    start.add_argument("--init", type=Path, default=none, metavar="DIR", help="checkpoint to start from")
    start.add_argument(
        "--config", dest="model_config", type=Path, default=none, metavar="JSON", help="shape of a new model"
    )
    start.add_argument("--tokenizer", type=Path, default=none, metavar="PATH", help="tokenizer.json or its directory")
    chat = start.add_mutually_exclusive_group()
    chat.add_argument("--chat", action="store_true", default=none, help="queries through the chat template")
    chat.add_argument("--no-chat", dest="chat", action="store_false", default=none, help="queries as they are")
    length = parser.add_argument_group("length of the run")
    length.add_argument("--max-steps", type=int, default=none, metavar="N")
    length.add_argument("--max-minutes", type=float, default=none, metavar="M")
    batch = parser.add_argument_group("batches")
    batch.add_argument("--batch-size", type=int, default=none, metavar="N", help="samples a step, over all processes")
    batch.add_argument(
        "--micro-batch", type=int, default=none, metavar="N", help="samples a forward; fewer need less memory"
    )
    batch.add_argument(
        "--max-length", type=int, default=none, metavar="N", help="tokens a sample; longer answers are cut"
    )
    batch.add_argument(
        "--answer-multiple", type=int, default=none, metavar="N", help="fill answers with EOS to a multiple"
    )
    batch.add_argument("--slot-sizes", type=int, nargs="+", default=none, metavar="K", help="of the refusion objective")
    batch.add_argument("--seed", type=int, default=none)
    step = parser.add_argument_group("optimiser")
    step.add_argument("--optimizer", choices=("adamw", "muon"), default=none, help="muon: for the layers' matrices")
    rates = ("learning-rate", "matrix-learning-rate", "min-learning-rate", "decay")
    for name in (*rates, "weight-decay", "beta1", "beta2", "clip", "ema"):
        step.add_argument(f"--{name}", type=float, default=none, metavar="X")
    step.add_argument("--warmup", type=int, default=none, metavar="STEPS")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", default=none, help="cpu or cuda")
    machine.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default=none)
    machine.add_argument(
        "--fsdp", action="store_true", default=none, help="shard model and optimiser over the processes"
    )
    machine.add_argument("--threads", type=count, default=none, metavar="N", help="of torch, each process")
    report = parser.add_argument_group("reports")
    for name in ("log-every", "save-every", "eval-every"):
        report.add_argument(f"--{name}", type=int, default=none, metavar="STEPS")
    report.add_argument(
        "--eval-data", type=Path, default=none, metavar="FILE", help="held-out items, decoded for exact match"
    )
    report.add_argument("--eval-samples", type=int, default=none, metavar="N")
    report.add_argument("--eval-settings", type=_settings, default=none, metavar="JSON", help='e.g. {"slot_size": 8}')


def run(args: argparse.Namespace) -> int:
    import torch

    from ..training.config import TrainConfig
    from ..training.state import STATE, read_state
    from ..training.trainer import train

    given = vars(args)
    if "threads" in given:
        torch.set_num_threads(args.threads)
    settings = {f.name: given[f.name] for f in fields(TrainConfig) if f.name in given}
    if "slot_sizes" in settings:
        settings["slot_sizes"] = tuple(settings["slot_sizes"])
    if args.resume:
        return train(TrainConfig.from_json(read_state(args.out / STATE)["settings"], **settings), resume=True)
    if "data" not in settings:
        raise ValueError("--data is needed to start a run")
    return train(TrainConfig(**settings))

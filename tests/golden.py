"""Recorded outputs of the public implementation, see tests/data/README.md."""

from __future__ import annotations

import json
from pathlib import Path

import refusion

DATA = Path(__file__).parent / "data"
CHECKPOINT = Path(refusion.__file__).parent / "checkpoints" / "python-bytes"
CASES = json.loads((DATA / "decode.json").read_text())
SETTINGS = ("eos_token_id", "gen_length", "slot_size", "serial_num_blocks", "slot_threshold", "token_threshold")


def config_of(case: dict, **changes: object) -> refusion.DecodeConfig:
    padded = -(-case["gen_length"] // case["slot_size"]) * case["slot_size"]
    settings = {
        "max_new_tokens": case["gen_length"],
        "slot_size": case["slot_size"],
        "block_size": padded // case["serial_num_blocks"],
        "slot_threshold": case["slot_threshold"],
        "token_threshold": case["token_threshold"],
        "eos_token_ids": () if case["eos_token_id"] == -5 else (case["eos_token_id"],),
        "semantics": "reference",
    }
    return refusion.DecodeConfig(**settings | changes)

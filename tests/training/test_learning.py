"""End to end: a run on a small task learns what it has not seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden import CHECKPOINT
from refusion.training import TrainConfig, train
from refusion.training.log import read_log
from training_runs import TINY

COLOURS = {"red": "ROSSO", "blue": "AZZURRO", "green": "VERDE", "white": "BIANCO", "black": "NERO", "grey": "GRIGIO"}
ANIMALS = {"cat": "gatto", "dog": "cane", "cow": "mucca", "hen": "gallina", "fox": "volpe", "owl": "gufo", "bee": "ape"}


@pytest.mark.parametrize(
    ("objective", "steps", "least"), [("refusion", 400, 0.55), ("ar", 200, 0.55), ("mdm", 400, 0.4)]
)
def test_unseen_pairs_are_learned(tmp_path: Path, objective: str, steps: int, least: float) -> None:
    """Two words to be translated; one pair in six is held out."""
    items = [
        {"query": f"{colour} {animal}: ", "response": f"{ANIMALS[animal]} {COLOURS[colour]}!"}
        for colour in COLOURS
        for animal in ANIMALS
    ]
    for name, chosen in (("train", [x for i, x in enumerate(items) if i % 6]), ("eval", items[::6])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, chosen)))
    shape = json.loads((CHECKPOINT / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(shape | TINY | {"hidden_size": 64, "intermediate_size": 128}))
    config = TrainConfig(
        data=tmp_path / "train.jsonl",
        out=tmp_path / "run",
        objective=objective,
        model_config=tmp_path / "config.json",
        tokenizer=CHECKPOINT,
        max_steps=steps,
        batch_size=32,
        optimizer="muon",
        learning_rate=4e-3,
        warmup=20,
        slot_sizes=(4, 8),
        answer_multiple=16,
        eval_data=tmp_path / "eval.jsonl",
        eval_settings={"slot_size": 4} if objective == "refusion" else {},
    )
    assert train(config) == 0
    log = read_log(tmp_path / "run" / "log.jsonl")
    losses = [record["loss"] for record in log if "loss" in record]
    assert losses[-1] < losses[0] / 4
    assert log[-1]["exact"] >= least
    if objective == "refusion":
        assert log[-1]["tokens_per_forward"] > 1.0

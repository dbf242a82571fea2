"""The problems of `refusion compare`: what is shipped is what the module makes, and the models never saw it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import refusion
from refusion.tasks.generator import Generator
from refusion.tasks.held_out import CANVAS, COUNT, SHORTEST, main, problems
from refusion.tasks.layout import filled_length

SHIPPED = Path(refusion.__file__).parent / "checkpoints" / "code-refusion" / "held-out.jsonl"


def test_the_shipped_file_is_what_the_module_writes(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "some.jsonl"), "--count", "20"]) == 0
    shipped = SHIPPED.read_text(encoding="utf-8").splitlines()
    assert (tmp_path / "some.jsonl").read_text(encoding="utf-8").splitlines() == shipped[:20]
    assert len(shipped) == COUNT


def test_one_function_and_several_in_turn() -> None:
    for number, item in enumerate(islice(problems(), 10)):
        assert (item["response"].count("def ") > 1) == bool(number % 2)
        assert SHORTEST <= filled_length(item["response"]) < CANVAS
        assert item["tests"]


def test_no_program_is_one_to_train_on() -> None:
    programs = {json.loads(line)["program"] for line in SHIPPED.read_text(encoding="utf-8").splitlines()}
    for loops in (0.2, 0.6):
        assert not programs & {p.program for p in islice(Generator(0, "train", loops=loops), 3000)}

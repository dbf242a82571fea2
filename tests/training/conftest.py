"""A small task and the shape of a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden import CHECKPOINT
from training_runs import TINY, write_task


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with train.jsonl, eval.jsonl and config.json."""
    directory = tmp_path_factory.mktemp("task")
    write_task(directory / "train.jsonl", 300, 0)
    write_task(directory / "eval.jsonl", 8, 1)
    shape = json.loads((CHECKPOINT / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(shape | TINY))
    return directory

"""A small task, a small model, and runs of the command in processes of their own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


def write_task(path: Path, samples: int, seed: int) -> Path:
    """Letters, and the same letters in capitals and then backwards."""
    draw = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(samples):
            word = "".join(draw.choices("abcd", k=draw.randint(2, 12)))
            file.write(json.dumps({"query": f"{word}: ", "response": f"{word.upper()} {word[::-1]}"}) + "\n")
    return path


def command(*arguments: object, processes: int = 1, port: int = 29541) -> list[str]:
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(port)]
    return [*start, "-m", "refusion", "train", "--threads", "1", *map(str, arguments)]


def start(*arguments: object) -> subprocess.Popen[str]:
    """The command in the background, its output in a pipe."""
    return subprocess.Popen(
        command(*arguments), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ.copy()
    )

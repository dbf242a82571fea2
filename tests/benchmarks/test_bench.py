"""The bench measures what it says: checked on small shapes, since its figures are of no use in a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from refusion.benchmarks import batch, forward
from refusion.benchmarks.machine import Machine
from refusion.benchmarks.shapes import PRESETS
from refusion.cli import main
from refusion.cli.options import BUNDLED


def machine() -> Machine:
    return Machine("test", 1, "baseline", torch.__version__, {1 << 20: 5e9, 1 << 29: 2e9}, 1e9, {})


def test_forward_counts_what_must_be_read() -> None:
    config = PRESETS["tiny"]
    timing = forward.measure(config, machine(), 0.01, tokens=4, prefix=8)
    per_layer = config.hidden_size * (config.qkv_width + 3 * config.intermediate_size + 128) + 2 * 128 + 2 * 32
    weights = 2 * config.num_hidden_layers * per_layer + 4 * config.vocab_size * 128 + 2 * 128
    rows = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * 8 * config.head_dim
    assert timing.bytes == weights + rows
    assert timing.floor == timing.bytes / 2e9  # the bandwidth of memory, not of a cache
    assert timing.seconds > 0


def test_batches_are_timed_for_every_model_and_thread_count() -> None:
    threads = torch.get_num_threads()
    timings = list(batch.measure(BUNDLED, 0.01, prompts=2, max_new_tokens=4))
    cases = {(t.model, t.dtype, t.threads) for t in timings}
    models = ("code-refusion", "python-bytes", "code-ar")
    assert cases == {(m, d, n) for m in models for d in ("float32", "bfloat16") for n in (1, threads)}
    assert all(t.alone > 0 and t.together > 0 for t in timings)
    assert torch.get_num_threads() == threads


def test_bench_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    options = ["--preset", "tiny", "--seconds", "0.01", "--json", str(file)]
    assert main(["bench", "--op", "attend.*float32", "--quick", "--forward", *options]) == 0
    written = json.loads(file.read_text())
    assert set(written) == {"machine", "ops", "forward"}
    assert written["ops"]
    assert "| 16 tokens after 1024 |" in capsys.readouterr().out

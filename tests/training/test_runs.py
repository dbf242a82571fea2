"""Whole runs: continued to the same bits, ended by signals, on full disks, on several processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import refusion
from golden import CHECKPOINT
from refusion.checkpoint import read_training
from refusion.training import StateError, TrainConfig, train
from refusion.training.log import read_log
from refusion.training.state import STATE, read_state, write_state
from training_runs import command, start


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in the order of the processes that tests start
    yield
    torch.set_num_threads(before)


def settings(task: Path, out: Path, **changes: Any) -> TrainConfig:
    start_of_run = {"model_config": task / "config.json", "tokenizer": CHECKPOINT}
    given = {
        "max_steps": 60,
        "batch_size": 8,
        "micro_batch": 3,
        "log_every": 1,
        "warmup": 4,
        "ema": 0.9,
        "save_every": 8,
    }
    return TrainConfig(data=task / "train.jsonl", out=out, **start_of_run | given | changes)


def options(task: Path, out: Path, max_steps: int = 60) -> list[object]:
    return [
        *("--data", task / "train.jsonl", "--config", task / "config.json", "--tokenizer", CHECKPOINT, "--out", out),
        *("--max-steps", max_steps, "--batch-size", 8, "--micro-batch", 3, "--log-every", 1, "--warmup", 4),
        *("--ema", 0.9, "--save-every", 4),
    ]


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"step {step} "):
            return
    raise AssertionError(f"the run ended before step {step}")


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    states = [read_state(path / STATE) for path in (one, other)]
    assert states[0]["step"] == states[1]["step"]
    for part in ("weights", "average"):
        for name, value in states[0][part].items():
            assert torch.equal(value, states[1][part][name]), (part, name)
    for name, moments in states[0]["moments"].items():
        assert all(torch.equal(v, states[1]["moments"][name][k]) for k, v in moments.items()), name
    timeless = ("step", "loss", "gradient_norm", "learning_rate", "tokens")
    logs = [[{k: r[k] for k in timeless} for r in read_log(path / "log.jsonl")] for path in (one, other)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resume_after_kill_gives_the_same_bits(task: Path, tmp_path: Path, optimizer: str) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(settings(task, whole, optimizer=optimizer)) == 0
    process = start(*options(task, broken), "--optimizer", optimizer)
    wait_for_step(process, 10)
    process.kill()
    process.wait()
    assert read_state(broken / STATE)["step"] == 8  # step 10 and what came after is lost, and taken again
    assert train(settings(task, broken, optimizer=optimizer), resume=True) == 0
    assert_same_run(whole, broken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_leave(task: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(*options(task, tmp_path / "run", max_steps=1_000_000))
    wait_for_step(process, 5)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert f"{number.name}: saved step" in said
    assert "Traceback" not in said
    logged = read_log(tmp_path / "run" / "log.jsonl")[-1]["step"]
    assert read_state(tmp_path / "run" / STATE)["step"] == logged
    assert refusion.load(tmp_path / "run").config.hidden_size == 32
    assert json.loads((tmp_path / "run" / "training.json").read_text())["steps"] == logged


def test_a_checkpoint_tells_what_it_started_from(task: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(settings(task, first, max_steps=1)) == 0
    start = {"init": first, "model_config": None, "tokenizer": None}
    assert train(settings(task, second, max_steps=2, objective="mdm", **start)) == 0
    facts = read_training(second)
    assert (facts["objective"], facts["steps"]) == ("mdm", 2)
    assert facts["started_from"] == read_training(first)


def test_full_disk_leaves_the_previous_state(tmp_path: Path) -> None:
    path = tmp_path / STATE
    write_state(path, {"step": 1, "weights": {"w": torch.zeros(10)}})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # a write beyond this fails as on a full disk
    try:
        with pytest.raises(StateError, match=r"could not be written: .*intact"):
            write_state(path, {"step": 2, "weights": {"w": torch.zeros(100_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_state(path)["step"] == 1
    assert os.listdir(tmp_path) == [STATE]


def test_states_that_do_not_fit_are_refused(task: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(StateError, match="no training state"):
        train(settings(task, out), resume=True)
    assert train(settings(task, out, max_steps=1)) == 0
    with pytest.raises(ValueError, match="holds a run already"):
        train(settings(task, out))
    with pytest.raises(StateError, match="started with batch_size 8, not 9"):
        train(settings(task, out, batch_size=9), resume=True)
    data = (out / STATE).read_bytes()
    (out / STATE).write_bytes(data[: len(data) // 2])
    with pytest.raises(StateError, match="damaged"):
        train(settings(task, out), resume=True)


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp"])
def test_two_processes_give_the_curve_of_one(task: Path, tmp_path: Path, sharded: bool) -> None:
    """Three samples a step, in forwards of one: the second process has nothing for its second forward."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(settings(task, one, max_steps=8, batch_size=3, micro_batch=1)) == 0
    arguments = [
        *options(task, two, max_steps=8),
        "--batch-size",
        3,
        "--micro-batch",
        1,
        *(["--fsdp"] if sharded else []),
    ]
    subprocess.run(command(*arguments, processes=2, port=29541 + sharded), check=True, capture_output=True, timeout=120)
    logs = [read_log(path / "log.jsonl") for path in (one, two)]
    for name in ("next_token", "masked", "gradient_norm", "tokens"):
        values = [[record[name] for record in log] for log in logs]
        assert values[0] == pytest.approx(values[1], rel=1e-4), name
    weights = [read_state(path / STATE)["average"] for path in (one, two)]
    for name, value in weights[0].items():
        # AdamW divides by the root of squared gradients: where those are near zero, roundings of sums show.
        assert (value - weights[1][name]).abs().mean() < 1e-5, name

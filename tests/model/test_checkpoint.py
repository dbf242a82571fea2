"""Checkpoints: round trip, shards, tied embeddings, and every way to be damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import refusion
from golden import CHECKPOINT
from refusion.attention import DenseAttention

TENSOR = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint"))


def change_config(directory: Path, **changes: object) -> None:
    file = directory / "config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in raw.items() if v != "absent"}))


def logits(model: refusion.Qwen3) -> torch.Tensor:
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        return model(ids, DenseAttention(model.config, torch.arange(40)[None]))


def test_round_trip(model: refusion.Qwen3, tmp_path: Path) -> None:
    refusion.save(model, tmp_path / "saved")
    again = refusion.load(tmp_path / "saved")
    assert again.config == model.config
    assert torch.equal(logits(again), logits(model))
    stored, original = load_file(tmp_path / "saved" / "model.safetensors"), load_file(CHECKPOINT / "model.safetensors")
    assert stored.keys() == original.keys()
    assert all(torch.equal(stored[name], original[name]) for name in stored)
    assert not list((tmp_path / "saved").glob(".*"))


def test_shards(directory: Path, model: refusion.Qwen3) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, directory / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(logits(refusion.load(directory)), logits(model))
    (directory / "b.safetensors").unlink()
    with pytest.raises(refusion.CheckpointError, match=r"b\.safetensors: missing"):
        refusion.load(directory)


def test_dtype_and_tied_embeddings(directory: Path) -> None:
    assert refusion.load(directory, dtype="bfloat16").dtype == torch.bfloat16
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors")
    change_config(directory, tie_word_embeddings=True)
    tied = refusion.load(directory)
    assert tied.head is None
    assert tied.head_weight is tied.embedding


def test_attention_bias(directory: Path, tmp_path: Path) -> None:
    config = refusion.ModelConfig.from_hugging_face(
        json.loads((directory / "config.json").read_text()) | {"attention_bias": True}
    )
    model = refusion.Qwen3(config).initialise()
    torch.nn.init.normal_(model.layers[0].qkv_bias)
    refusion.save(model, tmp_path / "biased")
    assert torch.equal(logits(refusion.load(tmp_path / "biased")), logits(model))


@pytest.mark.parametrize("bytes_kept", [0, 4, 100, 5000, -1])
def test_truncated(directory: Path, bytes_kept: int) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:bytes_kept])
    with pytest.raises(refusion.CheckpointError, match=r"model\.safetensors: damaged"):
        refusion.load(directory)


def test_missing_tensor(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors[TENSOR]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(refusion.CheckpointError, match=f"tensor {TENSOR} is missing"):
        refusion.load(directory)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(64, 127), r"has shape \[64, 127\], expected \[64, 128\]"),
        (torch.zeros(64, 128, dtype=torch.int8), "has type I8, expected a floating-point type"),
    ],
)
def test_misshapen_tensor(directory: Path, value: torch.Tensor, message: str) -> None:
    save_file(load_file(directory / "model.safetensors") | {TENSOR: value}, directory / "model.safetensors")
    with pytest.raises(refusion.CheckpointError, match=f"tensor {TENSOR} {message}"):
        refusion.load(directory)


def test_unexpected_tensor(directory: Path) -> None:
    file = directory / "model.safetensors"
    save_file(load_file(file) | {"model.layers.2.mlp.down_proj.weight": torch.zeros(3)}, file)
    with pytest.raises(refusion.CheckpointError, match=r"unexpected tensor model\.layers\.2"):
        refusion.load(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not supported"),
        ({"mask_token_id": "absent"}, "no mask_token_id"),
        ({"mask_token_id": 259}, "lies outside the vocabulary of 259"),
        ({"hidden_size": "absent"}, "missing hidden_size"),
        ({"hidden_size": -3}, "hidden_size must be a positive integer, got -3"),
        ({"num_key_value_heads": 3}, "is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 20}, "head_dim must be a multiple of 8"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"use_sliding_window": True}, "sliding-window attention is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling of type 'llama3' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "factor must be a number of at least 1"),
    ],
)
def test_unusable_config(directory: Path, changes: dict, message: str) -> None:
    change_config(directory, **changes)
    with pytest.raises(refusion.CheckpointError, match=message):
        refusion.load(directory)


def test_missing_directory_and_files(directory: Path) -> None:
    with pytest.raises(refusion.CheckpointError, match="no such checkpoint directory"):
        refusion.load(directory / "nowhere")
    (directory / "config.json").write_text("{")
    with pytest.raises(refusion.CheckpointError, match="not readable as JSON"):
        refusion.load(directory)
    (directory / "config.json").unlink()
    with pytest.raises(refusion.CheckpointError, match=r"config\.json: missing"):
        refusion.load(directory)
    with pytest.raises(ValueError, match="dtype must be one of"):
        refusion.load(CHECKPOINT, dtype="int4")

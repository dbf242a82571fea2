"""Reading and writing checkpoints in the Hugging Face layout: config.json and safetensors, sharded or not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .model import ModelConfig, Qwen3

WEIGHTS = "model.safetensors"
TRAINING = "training.json"
INDEX = "model.safetensors.index.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged or not of a supported kind; the message names the file or tensor."""


def load(path: str | Path, *, device: str | torch.device = "cpu", dtype: str | torch.dtype | None = None) -> Qwen3:
    """Loads a model from a Hugging Face directory.

    Args:
        path: directory with `config.json` and `model.safetensors` (or shards with `model.safetensors.index.json`).
        device: where the weights go: 'cpu', 'cuda', 'cuda:1' or a torch device.
        dtype: 'float32', 'bfloat16', 'float16' or a torch dtype; None keeps the type of the stored embedding.

    Every tensor's presence, shape and type are checked before any is read; files are memory-mapped.
    Raises `CheckpointError` with the name of the file or tensor.
    """
    directory = Path(path)
    config = read_config(directory)
    wanted, device = _dtype(dtype), _device(device)
    with ExitStack() as stack:
        stored = _open(directory, stack)
        parts = _parts(config)
        _validate(parts, stored, config)
        if wanted is None:
            wanted = stored["model.embed_tokens.weight"].get_tensor("model.embed_tokens.weight").dtype
        with torch.device("meta"):
            model = Qwen3(config)
        for name, sources in parts.items():
            try:
                pieces = [stored[source].get_tensor(source) for source, _ in sources]
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{directory}: cannot read {sources[0][0]}: {error}") from None
            value = torch.cat(pieces) if len(pieces) > 1 else pieces[0].clone()  # not a view of the mapped file
            _assign(model, name, value.to(device=device, dtype=wanted))
    return model.eval()


def save(model: Qwen3, path: str | Path, *, dtype: str | torch.dtype | None = None) -> None:
    """Writes `config.json` and `model.safetensors`; each file appears complete or not at all.

    Args:
        model: the model to write.
        path: directory, made if it does not exist.
        dtype: of the stored weights; None keeps the model's.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    wanted = _dtype(dtype) or model.dtype
    tensors = {name: tensor.to("cpu", wanted).contiguous() for name, tensor in stored_tensors(model).items()}
    raw = model.config.to_hugging_face() | {"torch_dtype": str(wanted).removeprefix("torch.")}
    write_atomically(directory / WEIGHTS, lambda file: save_file(tensors, file, metadata={"format": "pt"}))
    write_atomically(directory / "config.json", lambda file: file.write_text(json.dumps(raw, indent=2) + "\n"))


def stored_tensors(model: Qwen3) -> dict[str, Tensor]:
    """The weights by the names that a Hugging Face checkpoint gives them, as views."""
    parameters = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name, sources in _parts(model.config).items():
        pieces = parameters[name].detach().split([shape[0] for _, shape in sources])
        tensors |= {target: piece for (target, _), piece in zip(sources, pieces, strict=True)}
    return tensors


def read_config(directory: Path) -> ModelConfig:
    """The `ModelConfig` of a checkpoint directory."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such checkpoint directory")
    raw = _read_json(directory / "config.json")
    try:
        return ModelConfig.from_hugging_face(raw)
    except ValueError as error:
        raise CheckpointError(f"{directory / 'config.json'}: {error}") from None


def read_recommended(directory: Path) -> dict[str, Any]:
    """Decode settings that a checkpoint recommends: the `refusion` entry of its `generation_config.json`, or none."""
    file = directory / "generation_config.json"
    recommended = _read_json(file).get("refusion", {}) if file.is_file() else {}
    if not isinstance(recommended, dict):
        raise CheckpointError(f"{file}: the entry 'refusion' must be an object")
    return recommended


def read_training(directory: Path) -> dict[str, Any]:
    """How a checkpoint was made, by its `training.json`: objective, steps, tokens, seed, `started_from`; or nothing."""
    file = directory / TRAINING
    return _read_json(file) if file.is_file() else {}


def write_training(directory: Path, facts: dict[str, Any]) -> None:
    """The inverse of `read_training`."""
    text = json.dumps(facts, indent=2) + "\n"
    write_atomically(directory / TRAINING, lambda file: file.write_text(text, encoding="utf-8"))


def write_atomically(path: Path, write: Any) -> None:
    """Calls `write(temporary_path)`, then moves the finished, flushed file to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _parts(config: ModelConfig) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Each parameter of `Qwen3` -> the stored tensors (name, shape) that are stacked into it."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    vocab = (config.vocab_size, hidden)
    parts: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "embedding": [("model.embed_tokens.weight", vocab)],
        "norm": [("model.norm.weight", (hidden,))],
    }
    if not config.tie_word_embeddings:
        parts["head"] = [("lm_head.weight", vocab)]
    for i in range(config.num_hidden_layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        parts |= {
            f"{ours}.input_norm": [(f"{theirs}.input_layernorm.weight", (hidden,))],
            f"{ours}.qkv": [(f"{theirs}.self_attn.{name}.weight", (n, hidden)) for name, n in rows.items()],
            f"{ours}.q_norm": [(f"{theirs}.self_attn.q_norm.weight", (head_dim,))],
            f"{ours}.k_norm": [(f"{theirs}.self_attn.k_norm.weight", (head_dim,))],
            f"{ours}.output": [(f"{theirs}.self_attn.o_proj.weight", (hidden, q))],
            f"{ours}.post_norm": [(f"{theirs}.post_attention_layernorm.weight", (hidden,))],
            f"{ours}.gate_up": [(f"{theirs}.mlp.{name}_proj.weight", (inner, hidden)) for name in ("gate", "up")],
            f"{ours}.down": [(f"{theirs}.mlp.down_proj.weight", (hidden, inner))],
        }
        if config.attention_bias:
            parts[f"{ours}.qkv_bias"] = [(f"{theirs}.self_attn.{name}.bias", (n,)) for name, n in rows.items()]
            parts[f"{ours}.output_bias"] = [(f"{theirs}.self_attn.o_proj.bias", (hidden,))]
    return parts


def _open(directory: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name -> open file, over all shards."""
    if (directory / INDEX).exists():
        files = sorted(set(_read_json(directory / INDEX).get("weight_map", {}).values()))
        if not files:
            raise CheckpointError(f"{directory / INDEX}: has no weight_map")
    else:
        files = [WEIGHTS]
    stored: dict[str, Any] = {}
    for name in files:
        file = directory / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing")
        try:
            opened = stack.enter_context(safe_open(file, "pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: damaged or not a safetensors file: {error}") from None
        stored |= dict.fromkeys(opened.keys(), opened)
    return stored


def _validate(
    parts: Mapping[str, list[tuple[str, tuple[int, ...]]]], stored: dict[str, Any], config: ModelConfig
) -> None:
    expected = {source: shape for sources in parts.values() for source, shape in sources}
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"checkpoint: tensor {name} is missing")
        view = stored[name].get_slice(name)
        if tuple(view.get_shape()) != shape:
            raise CheckpointError(f"checkpoint: tensor {name} has shape {view.get_shape()}, expected {list(shape)}")
        if not view.get_dtype().startswith(("F", "BF")):
            raise CheckpointError(
                f"checkpoint: tensor {name} has type {view.get_dtype()}, expected a floating-point type"
            )
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    unexpected = sorted(set(stored) - set(expected) - tied)
    if unexpected:
        raise CheckpointError(f"checkpoint: unexpected tensor {unexpected[0]} ({len(unexpected)} in all)")


def _assign(model: Qwen3, name: str, value: Tensor) -> None:
    module: nn.Module = model
    *path, leaf = name.split(".")
    for step in path:
        module = getattr(module, step)
    setattr(module, leaf, nn.Parameter(value, requires_grad=False))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return raw


def _device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r} is not known, expected 'cpu' or 'cuda'") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device '{found}': torch {torch.__version__} finds no usable CUDA device here; it needs a GPU, its driver "
            "and a torch built for CUDA (or use device 'cpu')"
        )
    return found


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        return DTYPES[dtype]
    return dtype

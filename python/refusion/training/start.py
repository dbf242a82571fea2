"""What a run begins with: tokenizer, model, precision."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tokenizers
import torch

from ..checkpoint import CheckpointError, load
from ..model import ModelConfig, Qwen3
from ..tokenizer import Tokenizer
from .config import TrainConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LARGE = 3_000_000  # parameters from which bfloat16 products win over the casts on a CPU (docs/training.md)


def load_tokenizer(config: TrainConfig, resume: bool) -> Tokenizer:
    """From the run's directory when it is continued, else from `init` or `tokenizer` (a directory or a file)."""
    source = config.out if resume else config.init or config.tokenizer
    assert source is not None
    if source.is_dir():
        return Tokenizer.load(source)
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(source)))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{source}: no tokenizer: {error}") from None


def load_model(config: TrainConfig, state: dict[str, Any] | None) -> Qwen3:
    """Float32 master weights: those of `init`, or drawn with the seed for `model_config`.

    For a run that is continued: a model of the right shape, whose weights come with the rest of its state.
    """
    if state is not None:
        return Qwen3(ModelConfig.from_hugging_face(state["shape"]))
    if config.init is not None:
        return load(config.init, dtype="float32").requires_grad_(True)
    path = config.model_config
    assert path is not None
    try:
        shape = ModelConfig.from_hugging_face(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return Qwen3(shape).initialise(torch.Generator().manual_seed(config.seed))


def copy_tokenizer(config: TrainConfig) -> None:
    """Puts the tokenizer beside the checkpoint, unless it is there."""
    source = config.init or config.tokenizer
    assert source is not None
    names = TOKENIZER_FILES if source.is_dir() else ("tokenizer.json",)
    for name in names:
        file = source / name if source.is_dir() else source
        if file.is_file() and not (config.out / name).exists():
            shutil.copyfile(file, config.out / name)


def choose_precision(
    wanted: str, model: Qwen3, device: torch.device
) -> tuple[str, Callable[[], AbstractContextManager[None]]]:
    """Resolves 'auto'; returns the precision's name and what the forward pass runs under."""
    if wanted == "auto":
        large = sum(p.numel() for p in model.parameters()) >= LARGE
        wanted = "bfloat16" if device.type == "cuda" or (large and _multiplies_bfloat16()) else "float32"
    if wanted == "float32":
        return wanted, nullcontext
    return wanted, lambda: torch.autocast(device.type, torch.bfloat16)


def _multiplies_bfloat16() -> bool:
    """Whether the CPU has bfloat16 products (AVX512-BF16, AMX); emulated ones are slower than float32."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)

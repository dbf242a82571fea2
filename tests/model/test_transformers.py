"""What transformers' Qwen3 makes of the same weights: written checkpoints, and the copy that the bench decodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import refusion
from golden import CHECKPOINT
from refusion.attention import DenseAttention
from refusion.benchmarks.decode import decode_with_library, library_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def ours(model: refusion.Qwen3, ids: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    return model(ids, DenseAttention(model.config, positions, None))


def agree(model: refusion.Qwen3, theirs: torch.nn.Module) -> None:
    ids = torch.randint(0, model.config.vocab_size, (2, 37), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(model, ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_written_checkpoints_are_read(tmp_path: Path, tied: bool, bias: bool) -> None:
    config = refusion.ModelConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        mask_token_id=299,
        eos_token_ids=(1,),
        tie_word_embeddings=tied,
        attention_bias=bias,
        rope_theta=5000.0,
    )
    model = refusion.Qwen3(config).initialise(torch.Generator().manual_seed(1)).requires_grad_(False)
    refusion.save(model, tmp_path)
    agree(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path))
    agree(model, library_model(model))


def test_bundled_checkpoint_is_read(model: refusion.Qwen3) -> None:
    agree(model, transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT))


def test_greedy_decoding_gives_the_same_tokens(model: refusion.Qwen3) -> None:
    config = refusion.ARConfig(max_new_tokens=40, eos_token_ids=())
    prompt = list(b"def to_json(self, path):")
    [theirs] = decode_with_library(library_model(model), [prompt], config)
    # The engine never writes the mask token; transformers knows nothing of it.
    mine = refusion.generate(model, prompt, config)
    assert mine.tokens == theirs.tokens

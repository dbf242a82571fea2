"""Sizes of the models that are measured."""

from __future__ import annotations

from refusion.model import ModelConfig

VOCABULARY = 151_671  # of the published ReFusion checkpoint: odd, so rows of logits are not 16-byte aligned


def _qwen3(layers: int, hidden: int, inner: int, heads: int, kv_heads: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        mask_token_id=VOCABULARY - 1,
        eos_token_ids=(VOCABULARY - 2,),
        rope_theta=1e6,
        tie_word_embeddings=True,
    )


PRESETS = {
    "tiny": ModelConfig(
        vocab_size=259,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        mask_token_id=258,
        eos_token_ids=(257,),
    ),
    "0.6b": _qwen3(28, 1024, 3072, 16, 8),
    "8b": _qwen3(36, 4096, 12288, 32, 8),
}

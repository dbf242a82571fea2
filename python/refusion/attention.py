"""Attention strategies of the model: `DenseAttention` for training, `CachedAttention` for decoding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import refusion_ext

from .cache import KVCache
from .chunk import Chunk
from .model import ModelConfig
from .rope import rope_tables


class DenseAttention:
    """Differentiable attention over whole sequences, without a cache.

    Args:
        config: shape of the model.
        position_ids: int64 [batch, tokens], original positions; they need not ascend.
        visible: bool [batch or 1, 1, tokens, tokens], True where a query (third axis) sees a key (fourth axis).
            None: causal by row order, whatever the positions say.
    """

    def __init__(self, config: ModelConfig, position_ids: Tensor, visible: Tensor | None = None) -> None:
        self.config = config
        self.visible = visible
        tables = rope_tables(
            position_ids, config.head_dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings
        )
        self.cosine, self.sine = (table[:, None] for table in tables)  # [batch, 1, tokens, head_dim / 2]

    def __call__(self, layer: int, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        config = self.config
        batch, tokens, _ = qkv.shape
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        split = qkv.view(batch, tokens, -1, config.head_dim).transpose(1, 2).split(heads, 1)
        q, k = self._rotate(split[0], q_norm), self._rotate(split[1], k_norm)
        causal = self.visible is None
        out = F.scaled_dot_product_attention(q, k, split[2], attn_mask=self.visible, is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2).reshape(batch, tokens, -1)

    def _rotate(self, x: Tensor, norm: Tensor) -> Tensor:
        x = F.rms_norm(x, x.shape[-1:], norm.to(x.dtype), self.config.rms_norm_eps)  # autocast: bf16 x, float32 norm
        low, high = x.chunk(2, -1)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


class CachedAttention:
    """The tokens of one chunk against the cache, on the compiled kernels. Writes the chunk's provisional rows."""

    def __init__(self, cache: KVCache, chunk: Chunk) -> None:
        self.cache = cache
        self.chunk = chunk

    def __call__(self, layer: int, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        cache, chunk = self.cache, self.chunk
        k_cache, v_cache = cache.layers[layer]
        q = refusion_ext.rope_append(
            qkv,
            q_norm,
            k_norm,
            cache.cosine,
            cache.sine,
            chunk.position_ids,
            chunk.rows,
            chunk.sequence_offsets,
            k_cache,
            v_cache,
            norm_epsilon=cache.config.rms_norm_eps,
        )
        attended = refusion_ext.attend(
            q,
            k_cache,
            v_cache,
            chunk.sequence_offsets,
            chunk.committed,
            chunk.window_begin,
            chunk.window_end,
        )
        return attended.view(len(qkv), -1)

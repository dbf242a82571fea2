"""The Qwen3 architecture of ReFusion checkpoints, on one flat list of tokens (decoding) or on a batch (training).

Attention is handed in as a strategy (`refusion.attention`): the cache and the compiled kernels when decoding,
differentiable torch when training. Everything else is the same code and the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import linear
from .rope import RopeScaling


class UnsupportedModelError(ValueError):
    """The checkpoint describes a model that this package does not run."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model; field names follow Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    mask_token_id: int
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        for name in (*sizes, "num_key_value_heads", "head_dim", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UnsupportedModelError(f"config: {name} must be a positive integer, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise UnsupportedModelError(
                f"config: num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 8 or self.head_dim > 256:
            raise UnsupportedModelError(f"config: head_dim must be a multiple of 8 up to 256, got {self.head_dim}")
        for name, ids in (("mask_token_id", (self.mask_token_id,)), ("eos_token_id", self.eos_token_ids)):
            if any(not isinstance(i, int) or not 0 <= i < self.vocab_size for i in ids):
                raise UnsupportedModelError(f"config: {name} {ids} lies outside the vocabulary of {self.vocab_size}")

    @property
    def qkv_width(self) -> int:
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @classmethod
    def from_hugging_face(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads the content of a `config.json`.

        Raises `UnsupportedModelError` for another architecture, a missing field, no mask token or unknown RoPE scaling.
        """
        if raw.get("model_type") != "qwen3":
            raise UnsupportedModelError(
                f"config: model_type {raw.get('model_type')!r} is not supported, ReFusion checkpoints have 'qwen3'"
            )
        if raw.get("hidden_act", "silu") != "silu":
            raise UnsupportedModelError(f"config: hidden_act must be 'silu', got {raw['hidden_act']!r}")
        if raw.get("use_sliding_window"):
            raise UnsupportedModelError("config: sliding-window attention is not supported")
        if raw.get("mask_token_id") is None:
            raise UnsupportedModelError("config: no mask_token_id, so this is not a masked diffusion checkpoint")
        required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        missing = [name for name in required if name not in raw]
        if missing:
            raise UnsupportedModelError(f"config: missing {', '.join(missing)}")
        heads = raw["num_attention_heads"]
        rope = raw.get("rope_parameters") or {}  # transformers 5 keeps theta and scaling together
        try:
            scaling = RopeScaling.from_hugging_face(raw.get("rope_scaling") or rope)
        except ValueError as error:
            raise UnsupportedModelError(str(error)) from None
        eos = raw.get("eos_token_id")
        optional = ("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "attention_bias")
        return cls(
            **{name: raw[name] for name in required},
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            mask_token_id=raw["mask_token_id"],
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
            pad_token_id=raw.get("pad_token_id"),
            bos_token_id=raw.get("bos_token_id"),
            rope_theta=rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
            rope_scaling=scaling,
            **{name: raw[name] for name in optional if raw.get(name) is not None},
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The content of a `config.json` that this class and transformers' Qwen3 both read."""
        eos = self.eos_token_ids
        same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        also = ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta")
        rest = ("tie_word_embeddings", "attention_bias", "mask_token_id", "pad_token_id", "bos_token_id")
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            **{name: getattr(self, name) for name in (*same, *also, *rest)},
            "rope_scaling": self.rope_scaling.to_hugging_face() if self.rope_scaling else None,
            "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
            "use_sliding_window": False,
        }


class Attention(Protocol):
    """What a layer calls: packed q, k, v heads in, attended values out."""

    def __call__(self, layer: int, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """qkv [..., qkv_width] -> [..., num_attention_heads * head_dim]."""
        ...


class Layer(nn.Module):
    """One transformer block; q, k, v and gate, up are one matrix each."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        attended = config.num_attention_heads * config.head_dim
        self.eps = config.rms_norm_eps
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.empty(config.qkv_width, hidden))
        self.q_norm = nn.Parameter(torch.ones(config.head_dim))
        self.k_norm = nn.Parameter(torch.ones(config.head_dim))
        self.output = nn.Parameter(torch.empty(hidden, attended))
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Parameter(torch.empty(2 * inner, hidden))
        self.down = nn.Parameter(torch.empty(hidden, inner))
        bias = config.attention_bias
        self.qkv_bias = nn.Parameter(torch.zeros(config.qkv_width)) if bias else None
        self.output_bias = nn.Parameter(torch.zeros(hidden)) if bias else None

    def forward(self, x: Tensor, attention: Attention, index: int) -> Tensor:
        qkv = linear(x, self.qkv, self.qkv_bias, norm=self.input_norm, norm_epsilon=self.eps)
        attended = attention(index, qkv, self.q_norm, self.k_norm)
        x = linear(attended, self.output, self.output_bias, residual=x)
        gate_up = linear(x, self.gate_up, norm=self.post_norm, norm_epsilon=self.eps)
        return linear(gate_up, self.down, gated=True, residual=x)


class Qwen3(nn.Module):
    """Token ids to logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head = None if config.tie_word_embeddings else nn.Parameter(torch.empty_like(self.embedding))

    @property
    def head_weight(self) -> Tensor:
        """[vocab_size, hidden_size]."""
        return self.embedding if self.head is None else self.head

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def initialise(self, generator: torch.Generator | None = None, scale: float = 1.0) -> Qwen3:
        """Draws matrices from a normal distribution; norms stay at one.

        The deviation is scale / sqrt(columns), so that every product keeps its size, and 0.7 of that in embedding and
        head. Small models learn much faster from it than from 0.02 everywhere (docs/training.md).
        """
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    deviation = scale * parameter.shape[1] ** -0.5
                    parameter.normal_(
                        0.0, 0.7 * deviation if name in ("embedding", "head") else deviation, generator=generator
                    )
        return self

    def hidden(self, input_ids: Tensor, attention: Attention) -> Tensor:
        """input_ids int64 [...] -> what the last layer leaves, [..., hidden_size]."""
        x = F.embedding(input_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            x = layer(x, attention, index)
        return x

    def normed(self, hidden: Tensor) -> Tensor:
        """hidden [..., hidden_size] -> what the LM head multiplies, of the same shape."""
        return F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., hidden_size] -> [..., vocab_size]."""
        return linear(hidden, self.head_weight, norm=self.norm, norm_epsilon=self.config.rms_norm_eps)

    def forward(self, input_ids: Tensor, attention: Attention) -> Tensor:
        return self.logits(self.hidden(input_ids, attention))

"""Settings of a decode. Field names follow Hugging Face and the ReFusion paper (arXiv 2512.13586)."""

from __future__ import annotations

from dataclasses import dataclass

SEMANTICS = ("strict", "reference")
SLOT_SCORES = ("first", "mean", "minimum", "entropy", "margin")
LOOKAHEAD = ("auto", "on", "off")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """What every decoder shares.

    Attributes:
        max_new_tokens: length of the answer in tokens, at most.
        min_new_tokens: no EOS is written before this many tokens.
        temperature: 0 takes the most probable token, above 0 samples. Confidences are always those of temperature 1.
        seed: of the sampling; the same seed gives the same tokens in any batch.
        eos_token_ids: ids that end an answer; None takes the checkpoint's, () never ends early.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    seed: int = 0
    eos_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _integer("max_new_tokens", self.max_new_tokens, 1)
        _integer("min_new_tokens", self.min_new_tokens, 0)
        _integer("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, got {self.temperature!r}")
        if self.eos_token_ids is not None:
            object.__setattr__(self, "eos_token_ids", tuple(self.eos_token_ids))


@dataclass(frozen=True, kw_only=True)
class DecodeConfig(SamplingConfig):
    """Settings of ReFusion decoding.

    Attributes:
        slot_size: k, tokens a slot.
        block_size: tokens of an outer block; blocks are written left to right. None: the whole answer is one block.
        slot_threshold: a slot is written when its confidence is above this, or when it is the best one.
        token_threshold: a drafted token stays when its probability given its predecessor is above this.
        slot_score: confidence of a slot: the probability of its first token (the paper's), the mean or minimum over
            its tokens, exp(-entropy) or the top-2 margin of the first.
        semantics: 'strict', or 'reference' for the public script's behaviour, its slips included (greedy only).
        lookahead: plan the next slots in the forward that verifies the present ones: same tokens, fewer forwards,
            longer chunks. 'auto' does it where it pays.
    """

    slot_size: int = 8
    block_size: int | None = None
    slot_threshold: float = 0.9
    token_threshold: float = 0.9
    slot_score: str = "first"
    semantics: str = "strict"
    lookahead: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        _integer("slot_size", self.slot_size, 1)
        _choice("semantics", self.semantics, SEMANTICS)
        _choice("slot_score", self.slot_score, SLOT_SCORES)
        _choice("lookahead", self.lookahead, LOOKAHEAD)
        for name in ("slot_threshold", "token_threshold"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or value != value:
                raise ValueError(f"{name} must be a number, got {value!r}")
        if self.block_size is not None:
            _integer("block_size", self.block_size, self.slot_size)
        if self.semantics == "reference":
            self._check_reference()

    def _check_reference(self) -> None:
        if self.temperature > 0 or self.min_new_tokens > 0 or self.slot_score != "first":
            raise ValueError("semantics 'reference' decodes greedily with slot_score 'first' and no min_new_tokens")
        if self.block_size is not None and (self.block_size % self.slot_size or self.answer_length % self.block_size):
            raise ValueError(
                f"semantics 'reference' needs a block_size that is a multiple of slot_size {self.slot_size} and "
                f"divides the padded length {self.answer_length}, got {self.block_size}"
            )

    @property
    def answer_length(self) -> int:
        """Positions that are decoded: the reference rounds max_new_tokens up to whole slots."""
        if self.semantics == "reference":
            return -(-self.max_new_tokens // self.slot_size) * self.slot_size
        return self.max_new_tokens

    @property
    def block_length(self) -> int:
        return min(self.block_size or self.answer_length, self.answer_length)


@dataclass(frozen=True, kw_only=True)
class ARConfig(SamplingConfig):
    """Settings of autoregressive decoding: only those of every decoder."""


@dataclass(frozen=True, kw_only=True)
class MDMConfig(SamplingConfig):
    """Settings of masked diffusion decoding (LLaDA).

    Attributes:
        block_size: tokens of a block; blocks are written left to right (semi-autoregressive). None: one block.
        steps: forwards for the whole answer; None: one token a forward.
        threshold: instead of `steps`: every position whose probability is above this is written at once, at least one.
    """

    block_size: int | None = None
    steps: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size is not None:
            _integer("block_size", self.block_size, 1)
        if self.steps is not None:
            _integer("steps", self.steps, 1)
        if self.steps is not None and self.threshold is not None:
            raise ValueError("steps and threshold exclude each other")
        if self.threshold is not None and self.threshold != self.threshold:
            raise ValueError(f"threshold must be a number, got {self.threshold!r}")


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")

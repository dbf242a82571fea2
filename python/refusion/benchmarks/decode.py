"""The decode suite: whole decodes with one model's weights, interleaved.

Two kinds. With a checkpoint the answers are real, so acceptance is what the model earns. With random weights at real
shapes the answers are noise, so acceptance is drawn: every draft is kept with a given probability, which shows what the
schedule costs and saves at that rate whatever the model.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from refusion.checkpoint import stored_tensors
from refusion.decoding import ARConfig, DecodeConfig, MDMConfig, Result
from refusion.decoding.api import prepare
from refusion.decoding.config import SamplingConfig
from refusion.decoding.drafts import Draft, Plan
from refusion.decoding.result import Stats
from refusion.decoding.slots import SlotDecoder
from refusion.model import ModelConfig, Qwen3


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    config: SamplingConfig
    acceptance: float | None = None
    """Share of drafts that are kept, drawn; None: the model decides."""
    library: bool = False
    """Decoded by the transformers library instead."""


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    name: str
    seconds: float
    """Median over rounds, of all prompts together."""
    tokens: int
    """Returned, prompts not counted, up to and including EOS."""
    forwards: int

    def line(self, baseline: DecodeTiming) -> str:
        rate, other = self.tokens / self.seconds, baseline.tokens / baseline.seconds
        return (
            f"| {self.name} | {self.tokens} | {self.forwards} | {self.tokens / self.forwards:.2f} "
            f"| {self.seconds:.3f} | {rate:.0f} | {rate / other:.2f} |"
        )


HEADER = (
    "| decoder | tokens | forwards | tokens per forward | seconds | tokens per second | against the first |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)


class DrawnAcceptance(SlotDecoder):
    """Chooses `slots` slots a round and keeps each draft with probability `rate`, whatever the model says."""

    rate = 1.0
    slots = 4

    def _select(self, plan: Plan) -> set[int]:
        return set(range(min(self.slots, len(plan.slots))))

    def _accept(self, drafts: list[Draft], probability: np.ndarray) -> tuple[int, list[int]]:
        # A multiplicative hash of round, slot, turn and token: cheap, since it counts as the decoder's time.
        first = drafts[0]
        key = ((self.round * 4096 + first.slot.start) * 64 + first.accepted) * 4096
        uniform = (
            np.arange(key, key + len(probability), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        ) >> np.uint64(40)
        drawn = (uniform < self.rate * (1 << 24)).astype(np.float32)
        return super()._accept(drafts, drawn)


def real_settings(max_new_tokens: int) -> list[Setting]:
    """ReFusion, autoregressive and masked diffusion decoding of one checkpoint."""
    length: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_token_ids": ()}
    slots: dict[str, Any] = {**length, "block_size": 32, "slot_threshold": 0.6, "token_threshold": 0.3}
    return [
        Setting("autoregressive, cached", ARConfig(**length)),
        *_library_settings(length),
        Setting("masked diffusion, one token a forward", MDMConfig(**length)),
        Setting("masked diffusion, threshold 0.9", MDMConfig(threshold=0.9, **length)),
        Setting("ReFusion, look-ahead off", DecodeConfig(lookahead="off", **slots)),
        Setting("ReFusion, look-ahead on", DecodeConfig(lookahead="on", **slots)),
        Setting("ReFusion, look-ahead auto", DecodeConfig(lookahead="auto", **slots)),
    ]


def drawn_settings(max_new_tokens: int, rate: float) -> list[Setting]:
    """The same at a drawn acceptance; masked diffusion writes as many tokens a forward as the slots would."""
    length: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_token_ids": ()}
    slots: dict[str, Any] = {**length, "slot_size": 8, "block_size": 64, "token_threshold": 0.5}
    return [
        Setting("autoregressive, cached", ARConfig(**length)),
        *_library_settings(length),
        Setting("masked diffusion, 4 tokens a forward", MDMConfig(steps=-(-max_new_tokens // 4), **length)),
        *(
            Setting(f"ReFusion, look-ahead {mode}, acceptance {rate:.0%}", DecodeConfig(lookahead=mode, **slots), rate)
            for mode in ("off", "on", "auto")
        ),
    ]


def _library_settings(length: dict[str, Any]) -> list[Setting]:
    """transformers' `generate`, where it is installed (`pip install 'refusion-ext[hf]'`)."""
    if importlib.util.find_spec("transformers") is None:
        return []
    return [Setting("autoregressive, transformers", ARConfig(**length), library=True)]


def library_model(model: Qwen3) -> Any:
    """The same weights in transformers' Qwen3."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = Qwen3Config(**model.config.to_hugging_face())
    with torch.device("meta"):
        theirs: Any = Qwen3ForCausalLM(shape)
    weights = stored_tensors(model)
    if model.head is None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    theirs.load_state_dict(weights, strict=True, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(shape)  # its table is no weight
    return theirs.eval().requires_grad_(False)


def random_model(config: ModelConfig, dtype: torch.dtype) -> Qwen3:
    """Weights at the model's shapes that keep activations in range; the answers are noise."""
    with torch.device("meta"):
        model = Qwen3(config)
    model = model.to_empty(device="cpu").to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.empty(parameter.shape, dtype=dtype).uniform_(-0.03, 0.03))
    return model.requires_grad_(False)


def run(
    model: Qwen3, prompts: Sequence[list[int]], settings: Sequence[Setting], rounds: int, show: Callable[[str], None]
) -> list[DecodeTiming]:
    """Decodes all prompts with every setting, one setting after the other, `rounds` times."""
    seconds: dict[str, list[float]] = {setting.name: [] for setting in settings}
    results: dict[str, list[Result]] = {}
    theirs = library_model(model) if any(setting.library for setting in settings) else None
    for turn in range(rounds + 1):  # the first one warms up
        for setting in settings:
            show(f"{setting.name}, round {turn}")
            began = time.perf_counter()
            if setting.library:
                results[setting.name] = decode_with_library(theirs, prompts, setting.config)
            else:
                results[setting.name] = decode_all(model, prompts, setting)
            if turn:
                seconds[setting.name].append(time.perf_counter() - began)
    return [
        DecodeTiming(
            name,
            statistics.median(seconds[name]),
            sum(len(r.tokens) for r in found),
            sum(r.stats.forwards for r in found),
        )
        for name, found in results.items()
    ]


def decode_all(model: Qwen3, prompts: Sequence[list[int]], setting: Setting) -> list[Result]:
    """All prompts, one at a time."""
    results = []
    for prompt in prompts:
        engine, decoders = prepare(model, [prompt], setting.config)
        if setting.acceptance is not None:
            assert isinstance(setting.config, DecodeConfig)
            decoder = DrawnAcceptance(prompt, setting.config, model.config.mask_token_id, frozenset(), engine.cost)
            decoder.rate = setting.acceptance
            decoders = [(0, 0, decoder)]
        results += [item[1] for item in engine.run(decoders) if isinstance(item, tuple)]
    return results


def decode_with_library(theirs: Any, prompts: Sequence[list[int]], config: SamplingConfig) -> list[Result]:
    """All prompts, one at a time, greedily; a forward a token, the prompt's included."""
    results = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        length = config.max_new_tokens
        with torch.inference_mode():
            out = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        stats = Stats(tokens=length, prompt_tokens=len(prompt), phases={"decode": length})
        results.append(Result(out[0, len(prompt) :].tolist(), [], stats, False))
    return results

"""`generate` and `stream`: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from ..model import Qwen3
from .autoregressive import ARDecoder
from .config import ARConfig, DecodeConfig, MDMConfig, SamplingConfig
from .engine import Engine
from .masked import MaskedDecoder
from .result import Event, Result
from .slots import SlotDecoder
from .work import Cost, Decoder

CONFIGS: dict[str, type[SamplingConfig]] = {"refusion": DecodeConfig, "ar": ARConfig, "mdm": MDMConfig}
Tokens = Sequence[int]


@overload
def generate(
    model: Qwen3,
    prompt_ids: Sequence[Tokens],
    config: SamplingConfig | None = ...,
    *,
    decoder: str | None = ...,
    seeds: Sequence[int] | None = ...,
    batch_size: int = ...,
) -> list[Result]: ...


@overload
def generate(
    model: Qwen3,
    prompt_ids: Tokens,
    config: SamplingConfig | None = ...,
    *,
    decoder: str | None = ...,
    seeds: Sequence[int] | None = ...,
    batch_size: int = ...,
) -> Result: ...


def generate(
    model: Qwen3,
    prompt_ids: Tokens | Sequence[Tokens],
    config: SamplingConfig | None = None,
    *,
    decoder: str | None = None,
    seeds: Sequence[int] | None = None,
    batch_size: int = 32,
) -> Result | list[Result]:
    """Decodes one prompt or a ragged batch.

    Args:
        model: from `refusion.load`.
        prompt_ids: token ids of one prompt, or a list of them for a batch.
        config: `DecodeConfig`, `ARConfig` or `MDMConfig`; None takes the decoder's defaults.
        decoder: 'refusion', 'ar' or 'mdm'; None: the one that `config` belongs to, ReFusion without a config.
        seeds: one sampling seed a prompt; None uses `config.seed` for each.
        batch_size: sequences decoded at the same time; a finished one makes room for the next. Bounds the cache.

    Returns:
        A `Result`, or a list of them in the order of the prompts.

    Raises:
        ValueError: an id outside the vocabulary, a prompt too long for the model, unusable settings.
    """
    prompts, single = _prompts(prompt_ids)
    results: dict[int, Result] = {}
    engine, decoders = prepare(model, prompts, _config(config, decoder), seeds=seeds, batch_size=batch_size)
    for item in engine.run(decoders):
        if not isinstance(item, Event):
            index, result = item
            results[index] = result
    ordered = [results[i] for i in range(len(prompts))]
    return ordered[0] if single else ordered


def stream(
    model: Qwen3,
    prompt_ids: Tokens | Sequence[Tokens],
    config: SamplingConfig | None = None,
    *,
    decoder: str | None = None,
    seeds: Sequence[int] | None = None,
    batch_size: int = 32,
) -> Iterator[Event | Result]:
    """`generate` that yields an `Event` for every commit as it happens, and each sequence's `Result` at its end."""
    prompts, _ = _prompts(prompt_ids)
    engine, decoders = prepare(model, prompts, _config(config, decoder), seeds=seeds, batch_size=batch_size)
    for item in engine.run(decoders):
        yield item if isinstance(item, Event) else item[1]


def _prompts(prompt_ids: Tokens | Sequence[Tokens]) -> tuple[list[list[int]], bool]:
    if hasattr(prompt_ids, "tolist"):
        prompt_ids = prompt_ids.tolist()
    if len(prompt_ids) and not isinstance(prompt_ids[0], int):
        return [[int(i) for i in prompt] for prompt in prompt_ids], False  # type: ignore[union-attr]
    return [[int(i) for i in prompt_ids]], True  # type: ignore[arg-type]


def _config(config: SamplingConfig | None, decoder: str | None) -> SamplingConfig:
    if decoder is not None and decoder not in CONFIGS:
        raise ValueError(f"decoder must be one of {', '.join(map(repr, CONFIGS))}, got {decoder!r}")
    if config is None:
        return CONFIGS[decoder or "refusion"]()
    if type(config) not in CONFIGS.values():
        raise TypeError(f"config must be a DecodeConfig, ARConfig or MDMConfig, got {type(config).__name__}")
    if decoder is not None and type(config) is not CONFIGS[decoder]:
        raise TypeError(f"decoder {decoder!r} takes a {CONFIGS[decoder].__name__}, got {type(config).__name__}")
    return config


def prepare(
    model: Qwen3,
    prompts: list[list[int]],
    config: SamplingConfig | None = None,
    *,
    seeds: Sequence[int] | None = None,
    batch_size: int = 32,
    record: bool = False,
) -> tuple[Engine, list[tuple[int, int, Decoder]]]:
    """An engine and the decoders to run on it, all arguments checked."""
    config = config or DecodeConfig()
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if seeds is not None and len(seeds) != len(prompts):
        raise ValueError(f"seeds: expected {len(prompts)}, one a prompt, got {len(seeds)}")
    # On a GPU forwards are not timed; launches and reading the weights cost as much as some hundred tokens do.
    cost = Cost() if model.device.type == "cpu" else Cost(unseen=512.0)
    decoders: list[tuple[int, int, Decoder]] = []
    for index, prompt in enumerate(prompts):
        _check(model, index, prompt, config)
        seed = config.seed if seeds is None else seeds[index]
        decoders.append((index, seed, _decoder(model, prompt, config, cost)))
    mask_allowed = isinstance(config, DecodeConfig) and config.semantics == "reference"
    engine = Engine(
        model,
        sequences=min(batch_size, max(len(decoders), 1)),
        capacity=max((decoder.capacity for _, _, decoder in decoders), default=1),
        temperature=config.temperature,
        suppressed=() if mask_allowed else (model.config.mask_token_id,),
        eos_token_ids=_eos(model, config),
        min_new_tokens=config.min_new_tokens,
        cost=cost,
        record=record,
    )
    return engine, decoders


def _decoder(model: Qwen3, prompt: list[int], config: SamplingConfig, cost: Cost) -> Decoder:
    eos, mask = _eos(model, config), model.config.mask_token_id
    if isinstance(config, DecodeConfig):
        # Elsewhere than on the CPU a second read back costs more than the rows that it saves.
        return SlotDecoder(prompt, config, mask, eos, cost, read_once=model.device.type != "cpu")
    if isinstance(config, MDMConfig):
        return MaskedDecoder(prompt, config, mask, eos)
    assert isinstance(config, ARConfig)
    start = prompt or ([] if model.config.bos_token_id is None else [model.config.bos_token_id])
    if not start:
        raise ValueError("autoregressive decoding needs a prompt: it is empty and the model has no bos_token_id")
    return ARDecoder(start, config, eos)


def _eos(model: Qwen3, config: SamplingConfig) -> frozenset[int]:
    return frozenset(model.config.eos_token_ids if config.eos_token_ids is None else config.eos_token_ids)


def _check(model: Qwen3, index: int, prompt: list[int], config: SamplingConfig) -> None:
    vocab, limit = model.config.vocab_size, model.config.max_position_embeddings
    outside = next((i for i in prompt if not 0 <= i < vocab), None)
    if outside is not None:
        raise ValueError(f"prompt {index}: id {outside} lies outside the vocabulary of {vocab}")
    answer = config.answer_length if isinstance(config, DecodeConfig) else config.max_new_tokens
    if len(prompt) + answer > limit:
        raise ValueError(
            f"prompt {index}: {len(prompt)} tokens and an answer of {answer} exceed the model's "
            f"max_position_embeddings of {limit}"
        )

"""What decoding does for devices that the host should not wait for, tried on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import refusion
from golden import CHECKPOINT
from refusion.chunk import upload
from refusion.decoding import api
from refusion.decoding.engine import Engine, pack, unpack
from refusion.decoding.slots import SlotDecoder
from refusion_ext import TokenScores

PROMPT = list(b"def compare(self, a, b):\n")
SETTINGS = [
    refusion.DecodeConfig(max_new_tokens=64, lookahead="off"),
    refusion.DecodeConfig(max_new_tokens=60, slot_size=4, block_size=16, slot_threshold=0.5, token_threshold=0.3),
    refusion.DecodeConfig(max_new_tokens=48, lookahead="on", token_threshold=0.2, slot_score="entropy"),
    refusion.DecodeConfig(max_new_tokens=32, temperature=0.7, slot_score="margin", slot_threshold=0.1),
    refusion.DecodeConfig(max_new_tokens=32, slot_score="mean"),
]


@pytest.mark.parametrize("config", SETTINGS, ids=str)
def test_every_forward_is_read_back_once(
    model: refusion.Qwen3, config: refusion.DecodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = refusion.generate(model, PROMPT, config)
    reads = 0
    score = Engine._score

    def counted(self: Engine, *arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return score(self, *arguments)

    monkeypatch.setattr(Engine, "_score", counted)
    monkeypatch.setattr(api, "SlotDecoder", lambda *a, **k: SlotDecoder(*a, **{**k, "read_once": True}))
    got = refusion.generate(model, PROMPT, config)
    assert got.tokens == expected.tokens
    assert reads == got.stats.forwards


def test_scores_survive_the_packing() -> None:
    tokens = torch.tensor([-1, 7, 2**40])
    floats = [torch.tensor([0.5, -torch.inf, 1e-38]) + i for i in range(4)]
    found = unpack(pack(TokenScores(tokens, *floats)).numpy())
    kept = (floats[0], floats[2], floats[3])  # without the log-sum-exp
    assert found[0].tolist() == tokens.tolist()
    for got, sent in zip(found[1:], kept, strict=True):
        assert got.tolist() == sent.tolist()


def test_arrays_stay_where_they_are_on_the_cpu() -> None:
    array = torch.arange(3)
    assert upload(array, torch.device("cpu")) is array


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_a_named_error() -> None:
    with pytest.raises(ValueError, match=r"device 'cuda': torch .* finds no usable CUDA device here"):
        refusion.load(CHECKPOINT, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("config", SETTINGS[:3], ids=str)
def test_cuda_decodes_the_same_tokens(model: refusion.Qwen3, config: refusion.DecodeConfig) -> None:
    there = refusion.load(CHECKPOINT, device="cuda")
    prompts = [PROMPT, PROMPT[:5]]
    expected = [result.tokens for result in refusion.generate(model, prompts, config)]
    assert [result.tokens for result in refusion.generate(there, prompts, config)] == expected
    assert refusion.generate(there, PROMPT, config).tokens == expected[0]

"""What calling costs beyond the work itself: one eager op, and one forward of a small model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

import refusion_ext
from refusion.decoding import DecodeConfig

from .decode import Setting, decode_all, random_model
from .shapes import PRESETS
from .timing import Call, interleave


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds, medians and fastest of all rounds."""

    attend_call: float
    """An eager `attend` of 8 torch tensors that has no token to work on."""
    attend_call_fastest: float
    forward: float
    """One forward of the shipped model's shapes within a decode, 1 thread, everything around it included."""
    forward_fastest: float
    forward_without_work: float
    """The same schedule on a model 8 numbers wide: what Python, the engine and the calls of ops cost."""
    forward_without_work_fastest: float
    tokens_per_forward: float
    """Tokens that go through the model in one forward of that schedule, on average."""

    def lines(self) -> list[str]:
        rows = (
            ("eager attend, 8 torch tensors, no token", self.attend_call, self.attend_call_fastest),
            (f"forward of {self.tokens_per_forward:.0f} tokens, 1 thread", self.forward, self.forward_fastest),
            ("the same schedule, width 8", self.forward_without_work, self.forward_without_work_fastest),
        )
        shares = (self.forward_without_work / self.forward, self.forward_without_work_fastest / self.forward_fastest)
        return [
            "| call | median µs | fastest µs |",
            "|---|---:|---:|",
            *(f"| {name} | {median * 1e6:.2f} | {fastest * 1e6:.2f} |" for name, median, fastest in rows),
            f"| share of overhead in the forward | {shares[0]:.0%} | {shares[1]:.0%} |",
        ]


def measure(seconds: float) -> Overhead:
    """Takes about four times `seconds`."""
    attend = interleave({"attend": _empty_attend()}, seconds)["attend"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tiny = PRESETS["tiny"]
        narrow = dataclasses.replace(
            tiny, hidden_size=8, intermediate_size=8, num_attention_heads=1, num_key_value_heads=1, head_dim=8
        )
        slots = DecodeConfig(max_new_tokens=128, block_size=64, token_threshold=0.5, lookahead="off", eos_token_ids=())
        setting = Setting("drawn", slots, acceptance=0.9)
        models = {name: random_model(config, torch.float32) for name, config in (("work", tiny), ("none", narrow))}
        prompt = [list(range(32))]
        stats = decode_all(models["work"], prompt, setting)[0].stats
        calls = {name: (lambda model=model: decode_all(model, prompt, setting)) for name, model in models.items()}
        timings = interleave(calls, 3 * seconds)
    finally:
        torch.set_num_threads(threads)
    count = stats.forwards
    return Overhead(
        attend.median,
        attend.fastest,
        timings["work"].median / count,
        timings["work"].fastest / count,
        timings["none"].median / count,
        timings["none"].fastest / count,
        stats.computed_tokens / count,
    )


def _empty_attend() -> Call:
    q = torch.empty(0, 2, 64)
    k, v = torch.zeros(2, 1, 1, 8, 64)
    offsets, committed, none = (
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.empty(0).int(),
    )
    out = torch.empty_like(q)
    return lambda: refusion_ext.attend(q, k, v, offsets, committed, none, none, out=out)

"""Microbenchmarks of the CUDA kernels against torch, each result checked in the same run. Part of gpu_check.py.

Caches are cold, as they are in a model: calls go round over as many layers as exceed the L2 cache of any device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import refusion_ext

Call = Callable[[int], object]  # of a layer
COLD_BYTES = 512 << 20


@dataclass(frozen=True)
class Measured:
    name: str
    seconds: float
    torch_seconds: float | None
    bytes: int
    flops: int
    floor: float
    """Seconds at the measured copy bandwidth or matrix rate, whichever takes longer."""
    goal: float | None
    """Share of the floor's rate that is asked for."""
    error: float

    @property
    def share(self) -> float:
        return self.floor / self.seconds

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.share >= self.goal

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share_of_floor": self.share, "met": self.met}


@dataclass(frozen=True)
class Place:
    """Where it is measured, and with what sizes."""

    device: str
    emulated: bool
    copy_rate: float = 1.0
    matrix_rate: float = 1.0

    def seconds(self, call: Call, layers: int) -> float:
        """Median seconds of a call; layers take turns."""
        for layer in range(layers):
            call(layer)
        samples = []
        for _ in range(1 if self.emulated else 15):
            if self.emulated:
                began = time.perf_counter()
                call(0)
                samples.append(time.perf_counter() - began)
                continue
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            rounds = max(1, 24 // layers)
            begin.record()
            for turn in range(rounds * layers):
                call(turn % layers)
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) / 1e3 / (rounds * layers))
        return statistics.median(samples)

    def layers(self, size: int) -> int:
        """How many arrays of so many bytes are cold when their turn comes again."""
        return 1 if self.emulated else min(64, -(-COLD_BYTES // size))

    def measured(self, name: str, ours: Call, theirs: Call | None, layers: int, **facts: Any) -> Measured:
        flops, goals = facts.get("flops", 0), None if self.emulated else facts.get("goals")
        by_copy, by_matrix = facts["bytes"] / self.copy_rate, flops / self.matrix_rate
        goal = goals[0 if by_copy / goals[0] >= by_matrix / goals[1] else 1] if goals else None
        floor = max(by_copy, by_matrix) if not goals else (by_copy if goal == goals[0] else by_matrix)
        theirs_seconds = self.seconds(theirs, layers) if theirs else None
        return Measured(
            name, self.seconds(ours, layers), theirs_seconds, facts["bytes"], flops, floor, goal, facts["error"]
        )


def rates(place: Place) -> dict[str, float]:
    """Copy bandwidth (read plus written) in bytes per second, bf16 matrix rate in FLOP per second."""
    size, side = (1 << 20, 256) if place.emulated else (1 << 30, 8192)
    source = torch.ones(size, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=place.device).bfloat16() for _ in range(2))
    return {
        "copy": 2 * size / place.seconds(lambda _: target.copy_(source), 1),
        "matrix": 2 * side**3 / place.seconds(lambda _: a @ b, 1),
    }


def attend(place: Place, queries: int, prefix: int) -> Measured:
    """`queries` tokens, causal among themselves, behind a prefix: 32 query heads on 8 key-value heads of 128."""
    heads, kv_heads, dim = (4, 2, 64) if place.emulated else (32, 8, 128)
    rows = prefix + queries
    size = 2 * kv_heads * rows * dim * 2
    layers = place.layers(size)
    q = torch.randn(queries, heads, dim, device=place.device).bfloat16()
    caches = [torch.randn(2, 1, kv_heads, rows, dim, device=place.device).bfloat16() for _ in range(layers)]
    offsets, committed = (_int32(place, x) for x in ([0, queries], [prefix]))
    begin = torch.zeros(queries, dtype=torch.int32, device=place.device)
    end = torch.arange(1, queries + 1, dtype=torch.int32, device=place.device)
    out = torch.empty_like(q)
    mask = torch.ones(queries, rows, dtype=torch.bool, device=place.device).tril(prefix)
    heads_first = q.transpose(0, 1)[None]

    def ours(layer: int) -> Tensor:
        k, v = caches[layer]
        return refusion_ext.attend(q, k, v, offsets, committed, begin, end, out=out)

    def masked(layer: int) -> Tensor:
        k, v = caches[layer]
        return F.scaled_dot_product_attention(heads_first, k, v, attn_mask=mask, enable_gqa=True)

    def unmasked(layer: int) -> Tensor:  # sees more than it may, but takes torch's fastest kernel
        k, v = caches[layer]
        return F.scaled_dot_product_attention(heads_first, k, v, enable_gqa=True)

    k, v = (x.float() for x in caches[0])
    exact = F.scaled_dot_product_attention(heads_first.float(), k, v, attn_mask=mask, enable_gqa=True)[0].transpose(
        0, 1
    )
    error = _relative(ours(0), masked(0)[0].transpose(0, 1), exact)
    fastest = min((masked, unmasked), key=lambda call: place.seconds(call, layers))
    flops = 4 * heads * dim * queries * rows
    name = f"attend {queries} x {prefix}"
    return place.measured(name, ours, fastest, layers, bytes=size, flops=flops, goals=(0.8, 0.6), error=error)


def score_tokens(place: Place) -> Measured:
    rows, vocab = (3, 1001) if place.emulated else (512, 151_671)
    logits = [
        torch.randn(rows, vocab, device=place.device).bfloat16() * 3 for _ in range(place.layers(2 * rows * vocab))
    ]
    out = refusion_ext.score_tokens(logits[0])

    def theirs(layer: int) -> Any:
        return logits[layer].softmax(-1, dtype=torch.float32).max(-1)

    exact = logits[0].double().softmax(-1).max(-1)
    if not torch.equal(logits[0].float().gather(1, out.token[:, None]), logits[0].float().amax(1, keepdim=True)):
        raise RuntimeError("score_tokens chose a token that is not the most probable one")
    error = _relative(out.probability, theirs(0)[0], exact.values)
    size = 2 * rows * vocab
    name = f"score_tokens [{rows}, {vocab}]"
    ours = lambda layer: refusion_ext.score_tokens(logits[layer], out=out)  # noqa: E731
    return place.measured(name, ours, theirs, len(logits), bytes=size, goals=(0.85, 1.0), error=error)


def compact_rows(place: Place) -> Measured:
    """Every second of the rows moves down, in all layers."""
    layers, kv_heads, capacity, dim = (2, 1, 32, 64) if place.emulated else (36, 8, 8192, 128)
    cache = torch.randn(layers, 2, 1, kv_heads, capacity, dim, device=place.device).bfloat16()
    kept = torch.arange(1, capacity, 2, dtype=torch.int32, device=place.device)
    offsets, destination = _int32(place, [0, len(kept)]), _int32(place, [0])
    expected = cache.index_select(-2, kept)
    refusion_ext.compact_rows(cache, kept, offsets, destination)
    if not torch.equal(cache[..., : len(kept), :], expected):
        raise RuntimeError("compact_rows moved other rows")

    def theirs(_: int) -> None:
        cache[..., : len(kept), :] = cache.index_select(-2, kept)

    size = 2 * expected.numel() * 2
    ours = lambda _: refusion_ext.compact_rows(cache, kept, offsets, destination)  # noqa: E731
    name = f"compact_rows {len(kept)} of {capacity}"
    return place.measured(name, ours, theirs, 1, bytes=size, goals=(0.8, 1.0), error=0.0)


def score_hidden(place: Place) -> Measured:
    rows, vocab, width = (2, 333, 64) if place.emulated else (64, 151_671, 4096)
    hidden = torch.randn(rows, width, device=place.device).bfloat16()
    weight = (torch.randn(vocab, width, device=place.device) * 0.05).bfloat16()
    out = refusion_ext.score_hidden(hidden, weight)

    def theirs(_: int) -> Any:
        return F.linear(hidden, weight).softmax(-1, dtype=torch.float32).max(-1)

    exact = F.linear(hidden.double(), weight.double()).softmax(-1).max(-1).values
    size, flops = 2 * weight.numel(), 2 * rows * weight.numel()
    ours = lambda _: refusion_ext.score_hidden(hidden, weight, out=out)  # noqa: E731
    error = _relative(out.probability, theirs(0)[0], exact)
    return place.measured(
        f"score_hidden {rows} x {width} x {vocab}", ours, theirs, 1, bytes=size, flops=flops, error=error
    )


def _int32(place: Place, values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=place.device)


def _relative(ours: Tensor, theirs: Tensor, exact: Tensor) -> float:
    """Our error in units of that of torch in the same precision; at most 2 is right."""
    unit = max((theirs.double() - exact).abs().max().item(), torch.finfo(torch.float32).eps)
    error = (ours.double() - exact).abs().max().item() / unit
    if not error <= 2:
        raise RuntimeError(f"the error is {error:.2f} times that of torch")
    return error


@contextmanager
def kernels(emulated: bool) -> Iterator[None]:
    """The eager functions on the emulated kernels, while it lasts."""
    kept = refusion_ext.ops._C
    if emulated:
        import backends

        refusion_ext.ops._C = backends.compiled_module("emulated")
    try:
        yield
    finally:
        refusion_ext.ops._C = kept


def run(emulated: bool) -> tuple[dict[str, float], list[Measured]]:
    """Rates of the machine, then every case. Raises where a result is wrong."""
    torch.manual_seed(0)
    place = Place("cpu" if emulated else "cuda", emulated)
    found = rates(place)
    place = Place(place.device, emulated, found["copy"], found["matrix"])
    shapes = [(3, 40)] if emulated else [(q, p) for p in (4096, 8192, 16384, 32768) for q in (16, 32, 64)]
    with torch.inference_mode(), kernels(emulated):
        results = [attend(place, *shape) for shape in shapes]
        results += [score_tokens(place), compact_rows(place), score_hidden(place)]
    return found, results


def table(found: dict[str, float], results: list[Measured]) -> list[str]:
    """Markdown lines."""
    if not results:
        return []
    lines = [f"copy {found['copy'] / 1e9:.0f} GB/s (read + written), bf16 product {found['matrix'] / 1e12:.1f} TFLOP/s"]
    lines += ["", "| case | µs | torch µs | ratio | GB/s | TFLOP/s | of floor | goal | error |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for m in results:
        theirs = f"{m.torch_seconds * 1e6:.1f} | {m.torch_seconds / m.seconds:.2f}" if m.torch_seconds else " | "
        goal = f"{m.goal:.0%} {'met' if m.met else 'missed'}" if m.goal else ""
        lines.append(
            f"| {m.name} | {m.seconds * 1e6:.1f} | {theirs} | {m.bytes / m.seconds / 1e9:.0f} "
            f"| {m.flops / m.seconds / 1e12:.1f} | {m.share:.0%} | {goal} | {m.error:.2f} |"
        )
    return lines

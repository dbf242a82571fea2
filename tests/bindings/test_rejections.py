"""Every wrong call is refused with a message that names op, argument, expected and got, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from calls import CAPACITY, HEAD_DIM, OPS, PACKED, ROWS, TOKENS, VOCAB, arrays, cache, call, int32, replaced, valid
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

Change = Callable[[dict[str, Any]], Any]

WRITTEN = {
    "rope_append": ("k_cache", "v_cache", "out"),
    "attend": ("out",),
    "compact_rows": ("cache",),
}
EVERY_ARRAY = [(op, name) for op in OPS for name in arrays(valid(op))]
EVERY_RESULT = [(op, n) for op, n in EVERY_ARRAY if n.startswith("out") or n in WRITTEN.get(op, ())]
EVERY_FLOAT = [(op, n) for op, n in EVERY_ARRAY if arrays(valid(op))[n].is_floating_point()]


def expect(op: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    held = {n: x for n, x in arrays(arguments).items() if isinstance(x, Tensor) and x.device.type == "cpu"}
    before = {n: x.detach().clone() for n, x in held.items() if type(x) is Tensor}
    with pytest.raises(error, match=re.escape(f"{op}: ") + message):
        call(op, arguments)
    for name, value in before.items():
        assert torch.equal(held[name].detach(), value), f"{name} was written"


@pytest.mark.parametrize("op", OPS)
def test_the_calls_work_before_they_are_made_wrong(op: str) -> None:
    call(op, valid(op))


# Kinds of fault that every array can have


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_no_array(op: str, name: str) -> None:
    expect(op, replaced(valid(op), name, [1, 2]), TypeError, f"{name} must be an array that speaks DLPack, got list")


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int16, torch.bool], ids=str)
def test_wrong_dtype(op: str, name: str, dtype: torch.dtype) -> None:
    wrong = arrays(valid(op))[name].to(dtype)
    spelled = str(dtype).removeprefix("torch.")
    expect(op, replaced(valid(op), name, wrong), TypeError, f"{name} must be .*(float32|int32|int64).*, got {spelled}")


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_wrong_rank(op: str, name: str) -> None:
    wrong = arrays(valid(op))[name][None]
    if name == "suppressed":
        wrong = wrong[None]
    expect(
        op, replaced(valid(op), name, wrong), ValueError, rf"{name} must have \d dimensions \[.*\], got {wrong.ndim}: "
    )


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_more_dimensions_than_any_op_takes(op: str, name: str) -> None:
    wrong = arrays(valid(op))[name].reshape(-1)[:1].reshape(*[1] * 9)
    expect(
        op,
        replaced(valid(op), name, wrong),
        ValueError,
        rf"{name} must have \d dimensions \[.*\], got 9: \[1, 1, .*\.\.\.\]",
    )


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_meta_tensor(op: str, name: str) -> None:
    wrong = arrays(valid(op))[name].to("meta")
    expect(op, replaced(valid(op), name, wrong), TypeError, f"{name} cannot be read through DLPack: .*meta")


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_fake_tensor(op: str, name: str) -> None:
    with FakeTensorMode() as mode:
        wrong = mode.from_tensor(arrays(valid(op))[name])
    expect(op, replaced(valid(op), name, wrong), TypeError, f"{name} (has no data: a fake tensor|cannot be read)")


@pytest.mark.parametrize(("op", "name"), EVERY_FLOAT)
def test_requires_grad(op: str, name: str) -> None:
    right = valid(op)
    arguments = replaced(right, name, arrays(right)[name].requires_grad_())
    expect(op, arguments, TypeError, f"{name} requires grad")
    with torch.no_grad():
        call(op, arguments)


@pytest.mark.parametrize(("op", "name"), EVERY_FLOAT)
def test_negated_view(op: str, name: str) -> None:
    wrong = torch._neg_view(arrays(valid(op))[name])
    expect(op, replaced(valid(op), name, wrong), TypeError, rf"{name} is a negated view: call resolve_neg\(\)")


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_step_in_the_last_dimension(op: str, name: str) -> None:
    right = arrays(valid(op))[name]
    if right.shape[-1] < 2:
        pytest.skip("one element has no step")
    wrong = right.repeat_interleave(2, -1)[..., ::2]
    expect(op, replaced(valid(op), name, wrong), ValueError, f"{name} must be contiguous.*, got stride 2")


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_address_between_elements(op: str, name: str) -> None:
    right = arrays(valid(op))[name].numpy()
    wrong = np.zeros(right.nbytes + 1, np.uint8)[1:].view(right.dtype).reshape(right.shape)
    wrong[...] = right
    expect(
        op,
        replaced(valid(op), name, wrong),
        ValueError,
        f"{name} must be aligned to its elements of {right.itemsize} bytes",
    )


@pytest.mark.parametrize(("op", "name"), EVERY_ARRAY)
def test_wrong_length(op: str, name: str) -> None:
    """Each axis one longer. Axes that may have any length are listed here."""
    free = {
        ("score_tokens", "logits"): (1,),
        ("score_tokens", "suppressed"): (0,),
        ("score_hidden", "suppressed"): (0,),
        ("accept_tokens", "eos_token_ids"): (0,),
    }
    right = arrays(valid(op))[name]
    for axis in range(right.ndim):
        if axis in free.get((op, name), ()):
            continue
        if (op, name, axis) in {
            ("score_hidden", "weight", 0),
            ("compact_rows", "cache", 0),
            ("compact_rows", "cache", 3),
        }:
            continue  # vocabulary, layers, heads
        if op == "compact_rows" and (name, axis) in {("cache", 4), ("cache", 5)}:
            continue  # capacity, head_dim
        wrong = torch.cat((right, right.narrow(axis, 0, 1)), axis)
        expect(op, replaced(valid(op), name, wrong), ValueError, ".*(has|must).*")


@pytest.mark.parametrize(("op", "name"), EVERY_RESULT)
def test_read_only(op: str, name: str) -> None:
    wrong = arrays(valid(op))[name].numpy()
    wrong.flags.writeable = False
    expect(op, replaced(valid(op), name, wrong), TypeError, f"{name} is written in place, but is read-only")


@pytest.mark.parametrize(("op", "name"), EVERY_RESULT)
def test_results_that_share_memory_with_themselves(op: str, name: str) -> None:
    right = arrays(valid(op))[name]
    wrong = right[:1].expand(right.shape)
    expect(op, replaced(valid(op), name, wrong), ValueError, f"{name} (must be contiguous|.*its elements share memory)")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_mixed_devices(op: str) -> None:
    for name, value in list(arrays(valid(op)).items())[1:]:
        expect(op, replaced(valid(op), name, value.cuda()), ValueError, f"{name} is on cuda:0, .* is on cpu")


class ElsewhereDLPack:
    """An array that claims to lie on a CUDA device; nothing may touch its memory."""

    def __init__(self, array: Tensor) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, **_: Any) -> Any:
        return moved_capsule(self.array.__dlpack__())


def moved_capsule(capsule: Any) -> Any:
    """Overwrites the device in the capsule's DLTensor, which stands behind its data pointer."""
    import ctypes

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = get(capsule, b"dltensor")
    ctypes.c_int32.from_address(address + 8).value = 2
    return capsule


@pytest.mark.parametrize("op", OPS)
def test_arrays_on_two_devices(op: str) -> None:
    names = list(arrays(valid(op)))
    for name in names[1:]:
        wrong = ElsewhereDLPack(arrays(valid(op))[name])
        expect(op, replaced(valid(op), name, wrong), ValueError, f"{name} is on cuda:0, .* is on cpu")


# Faults of single arguments


def both(**changes: Any) -> Change:
    return lambda arguments: arguments.update(changes)


def at(name: str, index: int, value: int) -> Change:
    def change(arguments: dict[str, Any]) -> None:
        arguments[name][index] = value

    return change


def out_on(name: str, of: str) -> Change:
    """A result that lies on the memory of another array."""

    def change(arguments: dict[str, Any]) -> None:
        target = arrays(arguments)[of].view(-1).view(torch.uint8)
        like = arrays(arguments)[name]
        shared = target[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)
        arguments.update(replaced(arguments, name, shared))

    return change


V, T = ValueError, TypeError
FAULTS: dict[str, list[tuple[Change, type[Exception], str]]] = {
    "attend": [
        (both(q=torch.randn(TOKENS, 4, 24)), V, f"k_cache has head_dim {HEAD_DIM}, q has 24"),
        (both(q=torch.randn(TOKENS, 3, HEAD_DIM)), V, "q has q_heads 3, expected a multiple of kv_heads, .* has 2"),
        (both(v_cache=torch.randn(2, 2, 15, HEAD_DIM)), V, "v_cache has capacity 15, k_cache has 16"),
        (both(sequence_offsets=int32(0, TOKENS)), V, "sequence_offsets has 1 sequences, the cache has 2"),
        (both(committed=int32(1)), V, "committed has 1 entries, expected one for each of the 2 sequences"),
        (both(window_end=int32(1)), V, "window_end has 1 entries, expected one for each of the 5 tokens"),
        (both(out=torch.zeros(TOKENS, 4, 24)), V, "out has head_dim 24, q has 16"),
        (both(k_cache=cache().bfloat16()), T, "k_cache must be float32 like q, got bfloat16"),
        (both(v_cache=cache().half()), T, "v_cache must be float32 like q, got float16"),
        (both(scale=float("inf")), V, "scale must be finite, got inf"),
        (at("sequence_offsets", 0, 1), V, "sequence_offsets must start at 0, got 1"),
        (at("sequence_offsets", 1, 6), V, "sequence_offsets must not decrease, got 6 then 5 at entry 2"),
        (at("sequence_offsets", 2, 4), V, "sequence_offsets must end at 5, the number of tokens, got 4"),
        (both(sequence_offsets=int32([])), V, "sequence_offsets must have at least one entry, got none"),
        (at("committed", 1, CAPACITY + 1), V, r"committed\[1\] is 17, k_cache has capacity 16"),
        (at("committed", 0, -1), V, r"committed\[0\] is -1, k_cache has capacity 16"),
        (at("window_begin", 2, -1), V, r"window_begin\[2\] is -1, expected at least 0"),
        (at("window_end", 4, 11), V, r"window_end\[4\] is 11 after 6 committed rows, k_cache has capacity 16"),
        (at("window_end", 0, 2**31 - 1), V, r"window_end\[0\] is 2147483647 after 4 committed rows"),
        (out_on("out", "q"), V, "out overlaps q in memory"),
        (out_on("out", "k_cache"), V, "out overlaps k_cache in memory"),
        (out_on("out", "v_cache"), V, "out overlaps v_cache in memory"),
    ],
    "rope_append": [
        (both(qkv=torch.randn(TOKENS, PACKED - HEAD_DIM)), V, r"qkv has width 112, expected \(q_heads.* 16"),
        (both(qkv=torch.randn(TOKENS, 4 * HEAD_DIM)), V, "qkv has width 64"),
        (both(qkv=torch.randn(TOKENS, PACKED + 1)), V, "qkv has width 129"),
        (both(q_norm=None), V, "q_norm and k_norm must both be given or both be None, got k_norm"),
        (both(k_norm=torch.rand(HEAD_DIM).half()), T, "k_norm must be float32 like qkv, got float16"),
        (both(sine=torch.rand(8, HEAD_DIM // 2)), V, "sine has positions 8, cosine has 9"),
        (both(cosine=torch.rand(9, HEAD_DIM)), V, "cosine has width 16, half a head of k_cache has 8"),
        (both(norm_epsilon=-1.0), V, "norm_epsilon must be finite and not negative, got -1"),
        (at("sequence_offsets", 1, -1), V, "sequence_offsets must not decrease, got 0 then -1"),
        (at("position_ids", 3, 9), V, r"position_ids\[3\] is 9, cosine has 9 rows"),
        (at("position_ids", 0, -1), V, r"position_ids\[0\] is -1, cosine has 9 rows"),
        (at("rows", 3, CAPACITY), V, r"rows\[3\] is 16, a sequence of k_cache has 16 rows"),
        (at("rows", 4, -1), V, r"rows\[4\] is -1, a sequence of k_cache has 16 rows"),
        (at("rows", 4, 15), V, "rows must be distinct within a sequence, got 15 twice in sequence 1"),
        (at("rows", 0, 2), V, "rows must be distinct within a sequence, got 2 twice in sequence 0"),
        (out_on("out", "qkv"), V, "out overlaps qkv in memory"),
        (out_on("out", "k_cache"), V, "out overlaps k_cache in memory"),
        (lambda a: a.update(v_cache=a["k_cache"]), V, "k_cache and v_cache are the same memory"),
    ],
    "score_hidden": [
        (both(weight=torch.randn(VOCAB, 9)), V, "weight has width 9, hidden has 8"),
        (both(weight=torch.randn(VOCAB, 8).half()), T, "weight must be float32 like hidden, got float16"),
        (both(sample_keys=None), V, "temperature 0.5 needs sample_keys, got None"),
        (at("given", 0, 1 << 40), V, r"given\[0\] is 1099511627776, the vocabulary has 7"),
        (out_on("out.entropy", "weight"), V, "out.entropy overlaps weight in memory"),
        (both(out=(1, 2)), T, "out must be a TokenScores, got tuple"),
    ],
    "linear": [
        (both(weight=torch.randn(VOCAB, 9)), V, "weight has width 9, x has 8"),
        (both(weight=torch.randn(VOCAB, 8).half()), T, "weight must be float32 like x, got float16"),
        (both(bias=torch.randn(8)), V, "bias has entries 8, weight has 7"),
        (both(norm=torch.rand(7)), V, "norm has entries 7, x has 8"),
        (both(norm_epsilon=float("nan")), V, "norm_epsilon must be finite and not negative, got -?nan"),
        (both(gated=True), V, "norm and gated exclude each other"),
        (both(gated=True, norm=None), V, "weight has width 8, half of x has 4"),
        (both(gated=True, norm=None, x=torch.randn(ROWS, 7)), V, "x is two halves if gated, its width is 7"),
        (both(residual=torch.zeros(ROWS, 8)), V, "residual has outputs 8, weight has 7"),
        (out_on("out", "x"), V, "out overlaps x in memory"),
        (out_on("out", "weight"), V, "out overlaps weight in memory"),
        (lambda a: a.update(residual=a["out"].flip(0)[1:].clone()), V, "residual has rows 2, x has 3"),
    ],
    "score_tokens": [
        (both(suppressed=torch.zeros(2, 1).int()), V, "suppressed has rows 2, the input has 3"),
        (both(sample_keys=torch.zeros(ROWS, 3).long()), V, "sample_keys has columns 3, a key .* has 4"),
        (both(temperature=-0.1), V, "temperature must be finite and not negative, got -0.1"),
        (both(temperature=float("nan")), V, "temperature must be finite and not negative, got -?nan"),
        (both(temperature=float("inf")), V, "temperature must be finite and not negative, got inf"),
        (at("given", 1, VOCAB), V, r"given\[1\] is 7, the vocabulary has 7 entries"),
        (out_on("out.probability", "logits"), V, "out.probability overlaps logits in memory"),
        (out_on("out.token", "given"), V, "out.token overlaps given in memory"),
        (out_on("out.margin", "out.entropy"), V, "out.margin overlaps out.entropy in memory"),
        (both(out=torch.zeros(ROWS)), T, "out must be a TokenScores, got Tensor"),
    ],
    "compact_rows": [
        (both(cache=torch.zeros(2, 3, 2, 2, CAPACITY, 8)), V, "cache has planes 3, a layer .* has 2"),
        (both(source_offsets=int32(0, 3)), V, "source_offsets has 1 sequences, cache has 2"),
        (at("source_offsets", 2, 2), V, "source_offsets must end at 3, the number of sources, got 2"),
        (at("sources", 1, 3), V, "sources must increase within a sequence, got 3 then 3 at entry 1"),
        (at("sources", 0, 6), V, "sources must increase within a sequence, got 6 then 5 at entry 1"),
        (at("sources", 0, 0), V, r"sources\[0\] is 0, which lies below its destination 1"),
        (at("destination", 0, 4), V, r"sources\[0\] is 3, which lies below its destination 4"),
        (at("sources", 2, CAPACITY), V, r"sources\[2\] is 16, cache has capacity 16"),
        (at("destination", 1, -1), V, r"destination\[1\] is -1, expected at least 0"),
    ],
    "select_slots": [
        (both(threshold=float("nan")), V, "threshold must be a number, got nan"),
        (both(rule="median"), V, "rule must be one of first, mean, minimum, got 'median'"),
        (at("slot_offsets", 3, 6), V, "slot_offsets must end at 5, the number of scores, got 6"),
        (at("sequence_offsets", 2, 4), V, "sequence_offsets must end at 3, the number of slots, got 4"),
        (out_on("out.confidence", "scores"), V, "out.confidence overlaps scores in memory"),
        (out_on("out.counts", "out.chosen"), V, "(out.counts overlaps out.chosen|out.chosen overlaps)"),
        (both(out=[]), T, "out must be a SlotSelection, got list"),
    ],
    "accept_tokens": [
        (both(threshold=float("nan")), V, "threshold must be a number, got nan"),
        (at("slot_offsets", 1, 5), V, "slot_offsets must not decrease, got 5 then 4"),
        (at("sequence_offsets", 0, -1), V, "sequence_offsets must start at 0, got -1"),
        (out_on("out.accepted", "accepted_before"), V, "out.accepted overlaps accepted_before in memory"),
        (both(out=[]), T, "out must be a Acceptance, got list"),
    ],
}  # fmt: skip


CASES = [pytest.param(op, *fault, id=f"{op}-{fault[2]}") for op, faults in FAULTS.items() for fault in faults]


@pytest.mark.parametrize(("op", "change", "error", "message"), CASES)
def test_fault(op: str, change: Change, error: type[Exception], message: str) -> None:
    arguments = valid(op)
    change(arguments)
    expect(op, arguments, error, message)


@pytest.mark.parametrize("head_dim", [4, 12, 264])
def test_head_dim(head_dim: int) -> None:
    caches = {name: torch.zeros(2, 2, CAPACITY, head_dim) for name in ("k_cache", "v_cache")}
    q = torch.zeros(TOKENS, 4, head_dim)
    expected = f"head_dim must be a multiple of 8 up to 256, q has {head_dim}"
    expect("attend", {**valid("attend"), **caches, "q": q, "out": torch.zeros_like(q)}, ValueError, expected)
    changes = {**caches, "qkv": torch.zeros(TOKENS, 8 * head_dim), "q_norm": None, "k_norm": None}
    expect("rope_append", {**valid("rope_append"), **changes}, ValueError, expected.replace("q has", "k_cache has"))


def test_without_out_the_checks_are_the_same() -> None:
    for op in OPS:
        for name, value in arrays(valid(op)).items():
            if not name.startswith("out"):
                arguments = {n: x for n, x in valid(op).items() if n != "out"}
                expect(
                    op, {**arguments, name: "text"}, TypeError, f"{name} must be an array that speaks DLPack, got str"
                )
                expect(op, {**arguments, name: value.double()}, TypeError, f"{name} must be")
                expect(op, {**arguments, name: value[None, None]}, ValueError, f"{name} must have")


def test_values_of_unused_entries_do_not_matter() -> None:
    arguments = valid("attend")
    for begin, end in ((2**31 - 1, -(2**31)), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31))):
        arguments["window_begin"][1], arguments["window_end"][1] = begin, end
        call("attend", arguments)
    arguments = valid("compact_rows")
    arguments.update(sources=int32(15), source_offsets=int32(0, 0, 1), destination=int32(-5, 0))
    call("compact_rows", arguments)

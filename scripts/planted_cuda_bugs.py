"""One bug of each kind that the emulation was built to find, as a change of the project's own kernels."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    kind: str
    file: str  # of csrc/cuda
    changes: tuple[tuple[str, str], ...]  # what is there once, what replaces it
    tests: str  # of the op, for pytest -k
    every: int = 5  # of many cases of a test, one in so many is tried


BUGS = (
    Bug(
        "no barrier between the warps of a reduction",
        "score_tokens.cu",
        (("  __syncthreads();\n  if (warp_id() == 0) {", "  if (warp_id() == 0) {"),),
        "lowest_id or real_vocabulary",
    ),
    Bug(
        "no barrier before a tile is overwritten",
        "attend_simple.cuh",
        (("    __syncthreads();  // the last tile is done with\n", ""),),
        "test_matrix or many_rows",
    ),
    Bug(
        "no barrier between reading and writing in place",
        "compact_rows.cu",
        (("    __syncthreads();\n", ""),),
        "large_enough or any_strides",
    ),
    Bug(
        "no barrier, shared memory without SHARED_ARRAY",
        "select_slots.cu",
        (
            ("SHARED_ARRAY(int, above_in_warp, [kWarps]);", "__shared__ int above_in_warp[kWarps];"),
            (
                "above_in_warp[warp_id()] = __popc(lanes);\n    __syncthreads();",
                "above_in_warp[warp_id()] = __popc(lanes);",
            ),
        ),
        "selection",
    ),
    Bug(
        "the last block of a row reads the others without a fence",
        "score_tokens.cu",
        (
            (
                "        parts[blockIdx.x] = state;\n",
                "        parts[blockIdx.x] = state;\n"
                "      if (count > 1 && int(blockIdx.x % unsigned(count)) == count - 1) {\n"
                "        ScoreState all = empty_state();\n"
                "        for (int part = 0; part < count; ++part) merge_states(all, parts[row * count + part]);\n"
                "        deliver(all, choice, op.scores, row);\n"
                "      }\n",
            ),
        ),
        "lowest_id or real_vocabulary",
    ),
    Bug(
        "reads one logit behind the row",
        "score_tokens.cu",
        (("logit[i] = id + i < end ?", "logit[i] = id + i <= end ?"),),
        "real_vocabulary",
        every=1,
    ),
    Bug(
        "sees one key too many",
        "attend_work.cuh",
        (("(key >= begin && key < end);", "(key >= begin && key <= end);"),),
        "test_matrix",
    ),
    Bug(
        "moves one row too many",
        "compact_rows.cu",
        (("= int64_t(kept.length()) * units", "= int64_t(kept.length() + 1) * units"),),
        "large_enough or any_strides",
    ),
    Bug(
        "shuffle mask of half a warp",
        "rope_append.cu",
        (("__shfl_xor_sync(kAllLanes, x, lanes)", "__shfl_xor_sync(0xffffu, x, lanes)"),),
        "head_counts",
    ),
    Bug(
        "full mask in a branch that lanes take alone",
        "accept_tokens.cu",
        (
            (
                "    const unsigned broken = __ballot_sync(kAllLanes, accepted < length);",
                "    unsigned broken = 0;\n"
                "    if (slot < slots.end) broken = __ballot_sync(kAllLanes, accepted < length);",
            ),
        ),
        "acceptance",
    ),
    Bug(
        "full mask in a reduction by four lanes",
        "score_state.cuh",
        (
            (
                "    reference = fmaxf(reference, __shfl_xor_sync",
                "    if (lane_id() < 4) reference = fmaxf(reference, __shfl_xor_sync",
            ),
        ),
        "lowest_id",
    ),
    Bug(
        "rows moved in place by two blocks",
        "compact_rows.cu",
        (
            ("const int64_t plane = blockIdx.x,", "const int64_t plane = blockIdx.x / 2,"),
            (
                "for (int64_t base = 0; base < total; base += kHeld * kThreads)",
                "for (int64_t base = blockIdx.x % 2 * kHeld * kThreads; base < total; base += 2 * kHeld * kThreads)",
            ),
            ("dim3(unsigned(planes))", "dim3(unsigned(2 * planes))"),
        ),
        "large_enough",
        every=1,
    ),
    Bug(
        "early return before a barrier",
        "select_slots.cu",
        (
            (
                "    const int index = first + int(threadIdx.x);\n",
                "    const int index = first + int(threadIdx.x);\n    if (index >= count) return;\n",
            ),
        ),
        "selection",
    ),
    Bug(
        "shared memory read before it is written, and the poison swallowed",
        "select_slots.cu",
        (
            (
                "if (lane_id() == 0) best_of_warp[warp_id()] = best;",
                "if (lane_id() == 0 && warp_id() != 3) best_of_warp[warp_id()] = best;",
            ),
        ),
        "selection",
    ),
    Bug(
        "16-byte load from a row that is not aligned",
        "score_tokens.cu",
        (("const int misplaced = int(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));", "const int misplaced = 0;"),),
        "test_correctness",
    ),
    Bug(
        "no wait for cp.async",
        "score_hidden_tiles.cuh",
        (("    cp_async_wait<S::kStages - 2>();\n", ""),),
        "test_correctness",
    ),
    Bug(
        "shared array one element short",
        "score_tokens.cu",
        (("SHARED_ARRAY(uint32_t, marked, [kPart / 32]);", "SHARED_ARRAY(uint32_t, marked, [kPart / 32 - 1]);"),),
        "suppressed_ids_stay",
    ),
)

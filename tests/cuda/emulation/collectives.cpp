// What a warp operation computes once all of its lanes have come.
#include "state.h"

namespace emulation {
namespace {

template <class Each>
void for_each_lane(unsigned lanes, Each each) {
  for (; lanes; lanes &= lanes - 1) each(__builtin_ctz(lanes));
}

void shuffle_lanes(Fiber* lane, unsigned lanes, Op op) {
  for_each_lane(lanes, [&](int i) {
    Fiber& me = lane[i];
    const int width = me.width;
    if (width < 1 || width > 32 || (width & (width - 1)))
      fail("shuffle width is no power of two at " + describe(me.site));
    const int base = i & ~(width - 1), last = base + width - 1;
    int source = i;
    if (op == Op::shuffle) source = base + (me.argument & (width - 1));
    if (op == Op::shuffle_up && i - me.argument >= base) source = i - me.argument;
    if (op == Op::shuffle_down && i + me.argument <= last) source = i + me.argument;
    if (op == Op::shuffle_xor && (i ^ me.argument) <= last) source = i ^ me.argument;
    if (!(lanes >> source & 1))
      fail("shuffle reads lane " + std::to_string(source) +
           ", which takes no part (exited or not in the mask): " + describe(me) + " at " + describe(me.site));
    me.result = lane[source].value;
  });
}

void vote_lanes(Fiber* lane, unsigned lanes, Op op) {
  unsigned votes = 0;
  for_each_lane(lanes, [&](int i) { votes |= lane[i].value ? 1u << i : 0u; });
  const uint64_t result = op == Op::ballot ? votes : op == Op::any ? votes != 0 : votes == lanes;
  for_each_lane(lanes, [&](int i) { lane[i].result = result; });
}

void match_lanes(Fiber* lane, unsigned lanes) {
  for_each_lane(lanes, [&](int i) {
    uint64_t same = 0;
    for_each_lane(lanes, [&](int j) { same |= lane[i].value == lane[j].value ? 1u << j : 0u; });
    lane[i].result = same;
  });
}

void reduce_lanes(Fiber* lane, unsigned lanes, Op op) {
  uint64_t result = 0;
  bool first = true;
  for_each_lane(lanes, [&](int i) {
    const bool is_signed = lane[i].argument;
    const uint64_t x = is_signed ? uint64_t(int64_t(int32_t(lane[i].value))) : (lane[i].value & 0xffffffffu);
    const bool less = is_signed ? int64_t(x) < int64_t(result) : x < result;
    if (first)
      result = x;
    else if (op == Op::add)
      result += x;
    else if ((op == Op::minimum) == less)
      result = x;
    first = false;
  });
  for_each_lane(lanes, [&](int i) { lane[i].result = result; });
}

float element(uint32_t pair, int high, Op op) {
  const uint16_t bits = uint16_t(high ? pair >> 16 : pair);
  return op == Op::mma_half ? __half2float({bits}) : __bfloat162float({bits});
}

// Fragments of mma.m16n8k16 (PTX ISA): lane = 4 * group + turn holds rows group, group + 8 and columns 2 * turn, + 1.
void multiply(Fiber* lane, Op op) {
  float a[16][16], b[16][8];
  for (int i = 0; i < 32; ++i) {
    const auto* in = static_cast<const Mma*>(lane[i].in);
    const int group = i >> 2, turn = i & 3;
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h) a[group + 8 * (r & 1)][2 * turn + h + 8 * (r >> 1)] = element(in->a[r], h, op);
    for (int r = 0; r < 2; ++r)
      for (int h = 0; h < 2; ++h) b[2 * turn + h + 8 * r][group] = element(in->b[r], h, op);
  }
  for (int i = 0; i < 32; ++i) {
    const auto* in = static_cast<const Mma*>(lane[i].in);
    const int group = i >> 2, turn = i & 3;
    for (int r = 0; r < 4; ++r) {
      const int row = group + 8 * (r >> 1), column = 2 * turn + (r & 1);
      double sum = 0;
      for (int k = 0; k < 16; ++k) sum += double(a[row][k]) * b[k][column];
      static_cast<float*>(lane[i].out)[r] = in->c[r] + float(sum);
    }
  }
}

// Lane 8 * q + r gives the address of row r of matrix q.
void load_matrices(Fiber* lane) {
  for (int q = 0; q < 4; ++q)
    for (int i = 0; i < 32; ++i) {
      const int row = i >> 2, turn = i & 3;
      if (reinterpret_cast<uintptr_t>(lane[q * 8 + row].in) & 15)
        fail("ldmatrix row address is not aligned to 16 bytes at " + describe(lane[i].site));
      const auto read = [&](int r, int column) {
        const uint16_t* address = static_cast<const uint16_t*>(lane[q * 8 + r].in) + column;
        if (race_build) {
          current = &lane[i];
          record_access(address, 2, false, false, lane[i].pc);
        }
        return uint32_t(*address);
      };
      const bool transposed = lane[i].argument;
      static_cast<uint32_t*>(lane[i].out)[q] = transposed ? read(2 * turn, row) | read(2 * turn + 1, row) << 16
                                                          : read(row, 2 * turn) | read(row, 2 * turn + 1) << 16;
    }
}

}  // namespace

void run_collective(Warp& warp, unsigned warp_index, unsigned lanes, Op op) {
  Fiber* lane = &fibers[warp_index * 32];
  switch (op) {
    case Op::shuffle:
    case Op::shuffle_up:
    case Op::shuffle_down:
    case Op::shuffle_xor: return shuffle_lanes(lane, lanes, op);
    case Op::ballot:
    case Op::any:
    case Op::all: return vote_lanes(lane, lanes, op);
    case Op::match_any: return match_lanes(lane, lanes);
    case Op::add:
    case Op::minimum:
    case Op::maximum: return reduce_lanes(lane, lanes, op);
    case Op::sync_warp: warp.sync_time = ++now; return;
    case Op::mma_bfloat16:
    case Op::mma_half: return multiply(lane, op);
    case Op::load_matrix: return load_matrices(lane);
  }
}

}  // namespace emulation

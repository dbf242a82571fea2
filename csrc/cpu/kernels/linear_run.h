// linear with a product of one's choice (`Rows`: row_product.h).
// A product with few rows reads its matrix once; what stands around it (norm, bias, residual) costs no pass of its own.
// Working memory: the rows of a panel packed (at most kPanel * width * 8 bytes) and, for each thread, 16 KiB of sums.
#pragma once
#include <omp.h>

#include "cpu/scratch.h"
#include "lanes.h"
#include "refusion/linear.h"
#include "row_product.h"

namespace refusion::cpu::REFUSION_ISA {
namespace {

template <class T>
void pack_normed(const T* row, const T* norm, float epsilon, int64_t width, typename Product<T>::Packed* to) {
  const Floats scale = broadcast(inverse_root_mean_square(row, width, epsilon));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t lanes = lanes_at(i, width);
    store(to + i, load_lanes(row + i, lanes) * scale * load_lanes(norm + i, lanes));
  }
}

template <class T>
void pack_gated(const T* gate, const T* up, int64_t width, typename Product<T>::Packed* to) {
  const Floats one = broadcast(1.0f);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t lanes = lanes_at(i, width);
    const Floats x = load_lanes(gate + i, lanes), t = x * broadcast(-1.44269504088896f);
    const Floats silu = x / (one + exp2(at_least(at_most(t, broadcast(126.0f)), broadcast(-126.0f))));
    store(to + i, silu * load_lanes(up + i, lanes));
  }
}

template <class T>
void pack(const Linear& op, int64_t row, typename Product<T>::Packed* to) {
  using Packed = typename Product<T>::Packed;
  const T* x = static_cast<const T*>(op.x) + row * op.x_stride;
  if (!op.norm && !op.gated) return pack_row(x, op.width, to);
  const int64_t rest = PackedRows<T>::stride_of(op.width) - op.width;
  std::memset(static_cast<void*>(to + op.width), 0, size_t(rest) * sizeof(Packed));
  if (op.gated) return pack_gated(x, x + op.width, op.width, to);
  pack_normed(x, static_cast<const T*>(op.norm), op.norm_epsilon, op.width, to);
}

// Sums of some outputs of a row, with bias and residual, rounded once.
template <class T>
void deliver_row(const Linear& op, const float* sums, int64_t row, int64_t first, int64_t count) {
  const T* bias = static_cast<const T*>(op.bias);
  const T* residual = static_cast<const T*>(op.residual);
  T* out = static_cast<T*>(op.out) + row * op.outputs + first;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = lanes_at(i, count);
    Floats sum = load_lanes(sums + i, lanes);
    if (bias) sum = sum + load_lanes(bias + first + i, lanes);
    if (residual) sum = sum + load_lanes(residual + row * op.residual_stride + first + i, lanes);
    store_lanes(out + i, sum, lanes);
  }
}

constexpr int64_t kParallelPacked = 1 << 14;  // elements to norm or gate below which one thread is faster

template <class Rows>
void multiply_panel(const Linear& op, int64_t first_row, int64_t rows) {
  using T = typename Rows::Element;
  using Packed = typename Rows::Packed;
  const int64_t groups = (op.outputs + kGroup - 1) / kGroup;
  const bool parallel = groups > 1 && rows * op.outputs * op.width > kParallelProducts;
  // Always the full team: another team size would make the runtime end threads that torch needs again.
  const int64_t threads = parallel ? omp_get_max_threads() : 1;
  const int64_t stride = Rows::stride_of(op.width), sums = rows * kGroup;
  float* const memory = static_cast<float*>(
      scratch(size_t(threads * sums) * sizeof(float) + size_t(Rows::room_for(rows) * stride) * sizeof(Packed)));
  const Rows panel{reinterpret_cast<Packed*>(memory + threads * sums), rows, stride};
  const bool packed_by_all = parallel && (op.norm || op.gated) && rows * op.width > kParallelPacked;
#pragma omp parallel for num_threads(threads) if (packed_by_all)
  for (int64_t row = 0; row < rows; ++row) pack<T>(op, first_row + row, panel.row(row));
  panel.arrange();
  // A thread takes neighbours: what it asks for ahead is then mostly its own.
  const int64_t neighbours = groups > 4 * threads ? groups / (4 * threads) : 1;
#pragma omp parallel for schedule(dynamic, neighbours) if (parallel)
  for (int64_t group = 0; group < groups; ++group) {
    float* const mine = memory + omp_get_thread_num() * sums;
    const int64_t first = group * kGroup, count = op.outputs - first < kGroup ? op.outputs - first : kGroup;
    const T* weight = static_cast<const T*>(op.weight) + first * op.weight_stride;
    panel.multiply(weight, op.weight_stride, op.width, count, mine, kGroup);
    for (int64_t row = 0; row < rows; ++row) deliver_row<T>(op, mine + row * kGroup, first_row + row, first, count);
  }
}

template <class Rows>
void run_linear(const Linear& op) {
  for (int64_t row = 0; row < op.rows; row += kPanel)
    multiply_panel<Rows>(op, row, op.rows - row < kPanel ? op.rows - row : kPanel);
}

}  // namespace
}  // namespace refusion::cpu::REFUSION_ISA

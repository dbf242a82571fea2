// What the emulation itself promises: values of every operation, and that each kind of fault is found.
// Compiles with nvcc as well: main then only checks the values, on a device (scripts/gpu_check.sh).
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cuda/portable.cuh"

using refusion::cuda::kAllLanes;
constexpr int kWords = 18;  // results of a thread

__global__ void operations(int* out) {  // a block of 16 x 4 threads
  const int t = int(threadIdx.y * blockDim.x + threadIdx.x), lane = t & 31;
  int* r = out + t * kWords;
  r[0] = __shfl_sync(kAllLanes, t, 3, 8);
  r[1] = __shfl_up_sync(kAllLanes, t, 2, 16);
  r[2] = __shfl_down_sync(kAllLanes, t, 5);
  r[3] = __shfl_xor_sync(kAllLanes, t, 9);
  r[4] = int(__ballot_sync(kAllLanes, lane % 3 == 0));
  r[5] = __any_sync(kAllLanes, lane == 40);
  r[6] = __all_sync(kAllLanes, lane < 32);
  r[7] = int(__match_any_sync(kAllLanes, lane & 3));
  r[8] = __reduce_add_sync(kAllLanes, lane - 16);
  r[9] = __reduce_max_sync(kAllLanes, lane - 40);
  r[10] = int(__reduce_min_sync(kAllLanes, unsigned(lane + 7)));
  r[11] = __syncthreads_count(t % 5 == 0);
  r[12] = __syncthreads_and(t < 1000);
  r[13] = __syncthreads_or(t == 63);
  if (lane < 16)
    r[14] = __shfl_xor_sync(0xffffu, t, 1);
  else
    r[14] = __shfl_xor_sync(0xffff0000u, t, 2);  // two groups at the same time: legal
  atomicAdd(out + 64 * kWords, 1);
  atomicMax(out + 64 * kWords + 1, t);
  r[15] = __popc(unsigned(t)) + __ffs(t) + __clz(t);
  r[16] = int(exp2_approximate(float(lane % 16) - 4.0f) * 16.0f + 0.25f);
  r[17] = int(__funnelshift_r(unsigned(t), 0x12345678u, 8));
}

template <class T>
__global__ void product(const float* a, const float* b, float* out) {  // [16, 16] x [16, 8] through shared memory
  SHARED_ARRAY(T, left, [16][24]);
  SHARED_ARRAY(T, right, [16][24]);
  const int lane = int(threadIdx.x), group = lane >> 2, turn = lane & 3;
  for (int i = lane; i < 256; i += 32) left[i / 16][i % 16] = refusion::cuda::from_float<T>(a[i]);
  for (int i = lane; i < 256; i += 32)
    right[i / 16][i % 16] = refusion::cuda::from_float<T>(i % 16 < 8 ? b[i / 16 * 8 + i % 16] : 0.0f);
  __syncwarp();
  uint32_t x[4], y[4];
  ldmatrix_x4(x, &left[lane & 15][(lane >> 4) * 8]);
  ldmatrix_x4_trans(y, &right[lane & 15][(lane >> 4) * 8]);
  float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  const uint32_t columns[2] = {y[0], y[1]};
  mma_m16n8k16(d, x, columns, T());
  for (int r = 0; r < 4; ++r) out[(group + 8 * (r >> 1)) * 8 + 2 * turn + (r & 1)] = d[r];
}

template <int Fault>
__global__ void pipeline(const uint4* in, uint4* out) {  // two stages of cp.async
  SHARED_ARRAY(uint4, stage, [2][32]);
  const int t = int(threadIdx.x);
  cp_async_16(&stage[0][t], in + t);
  cp_async_commit();
  for (int i = 0; i < 4; ++i) {
    if (i < 3) cp_async_16(&stage[(i + 1) & 1][t], in + (i + 1) * 32 + t, t != 31);
    cp_async_commit();
    cp_async_wait<Fault ? 2 : 1>();
    __syncthreads();
    out[i * 32 + t] = stage[i & 1][31 - t];
    __syncthreads();
  }
}

#ifdef REFUSION_CUDA_EMULATION
template <int Order>
__global__ void exchange(int* out) {
  SHARED_ARRAY(int, word, [32]);
  word[threadIdx.x] = int(threadIdx.x);
  if (Order == 1) __syncwarp();
  if (Order == 2) (void)__shfl_sync(kAllLanes, 0, 0);  // orders no memory
  out[threadIdx.x] = word[31 - threadIdx.x];
}

__global__ void warp_buffers(int* out) {
  SHARED_ARRAY(int, word, [4]);
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
  int sum = 0;
  for (int i = 0; i < 3; ++i) {
    if (lane == i) word[warp] = i + warp;
    __syncwarp();
    sum += word[warp];
    __syncwarp();
  }
  out[threadIdx.x] = sum;
}

__global__ void carved(int* out) {
  SMEM_CARVER(shared);
  int *a = shared.take<int>(32), *b = shared.take<int>(32);
  a[threadIdx.x] = 1;
  b[threadIdx.x] = 2;
  out[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}

__global__ void unwritten(int* out) {
  SHARED_ARRAY(int, word, [32]);
  out[threadIdx.x] = word[threadIdx.x];
}

template <bool Atomic>
__global__ void histogram(int* out) {
  if (Atomic)
    atomicAdd(out + threadIdx.x % 4, 1);
  else
    out[threadIdx.x % 4] += 1;
}

__global__ void atomic_behind_an_array(int* out) {
  SHARED_ARRAY(int, word, [32]);
  atomicAdd(&word[threadIdx.x + 1], 1);
  out[threadIdx.x] = 0;
}

template <int Fault>
__global__ void diverging(int* out) {
  if (threadIdx.x < 32) {
    out[threadIdx.x] = 1;
    if (Fault) __syncthreads();
  } else if (Fault == 2) {
    __syncthreads();
  }
  if (Fault != 2) __syncthreads();
}

__global__ void leaving(int* out) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void wrong_mask(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xffffu, int(threadIdx.x), 1); }

__global__ void absent_lane(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, int(threadIdx.x), 20);
}

__global__ void partial_warp(int* out) {
  const unsigned lanes = threadIdx.x < 32 ? kAllLanes : 0xffu;
  out[threadIdx.x] = int(__ballot_sync(lanes, 1));
}

template <bool Apart>
__global__ void blocks_write(int* out) {
  if (threadIdx.x == 0) out[Apart ? blockIdx.x : 0] = int(blockIdx.x);
}

template <bool Fenced>
__global__ void last_block_sums(int* part, int* ticket, int* out) {
  if (threadIdx.x != 0) return;
  part[blockIdx.x] = int(blockIdx.x);
  if (Fenced) __threadfence();
  if (atomicAdd(ticket, 1) != int(gridDim.x) - 1) return;
  __threadfence();
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += part[i];
  *out = sum;
}

__global__ void misaligned(const uint4* in, uint4* out) {
  SHARED_ARRAY(uint4, stage, [33]);
  cp_async_16(reinterpret_cast<char*>(&stage[threadIdx.x]) + 8, in + threadIdx.x);
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = stage[threadIdx.x];
}

static int failed;

// `wanted` empty: must succeed; else a part of the message.
static void expect(const char* name, const char* wanted, const std::function<void()>& run) {
  std::string message;
  try {
    run();
  } catch (const emulation::Error& error) {
    message = error.what();
  }
  const bool good = *wanted ? message.find(wanted) != std::string::npos : message.empty();
  failed += !good;
  printf("%s %-36s %s\n", good ? "ok  " : "FAIL", name, message.substr(0, 150).c_str());
}

template <class T>
struct Memory {
  std::vector<T> host;
  explicit Memory(size_t count) : host(count) {}
  T* device() { return host.data(); }
  void fetch() {}
};
#else
static int failed;
static void expect(const char* name, const char*, const std::function<void()>& run) {
  const int before = failed;
  run();
  printf("%s %s\n", failed == before ? "ok  " : "FAIL", name);
}
template <class T>
struct Memory {
  std::vector<T> host;
  T* data;
  explicit Memory(size_t count) : host(count) {
    cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T));
    cudaMemset(data, 0, count * sizeof(T));
  }
  ~Memory() { cudaFree(data); }
  T* device() {
    cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    return data;
  }
  void fetch() { cudaMemcpy(host.data(), data, host.size() * sizeof(T), cudaMemcpyDeviceToHost); }
};
#endif

static void wrong(const std::string& what) {
#ifdef REFUSION_CUDA_EMULATION
  throw emulation::Error(what);
#else
  printf("  %s\n", what.c_str());
  ++failed;
#endif
}

static void check(const char* what, int thread, long got, long wanted) {
  if (got != wanted)
    wrong(std::string(what) + " of thread " + std::to_string(thread) + ": " + std::to_string(got) + ", not " +
          std::to_string(wanted));
}

static void check_operations() {
  Memory<int> out(64 * kWords + 2);
  launch(operations, dim3(1), dim3(16, 4), 0, nullptr, out.device());
  out.fetch();
  for (int t = 0; t < 64; ++t) {
    const int l = t & 31, base = t & ~31;
    const int wanted[kWords] = {
        base + (l & 24) + 3,
        (l & 15) < 2 ? t : t - 2,
        l + 5 > 31 ? t : t + 5,
        base + (l ^ 9),
        0x49249249,
        0,
        1,
        int(0x11111111u << (l & 3)),
        -16,
        -9,
        7,
        13,
        1,
        1,
        l < 16 ? t ^ 1 : t ^ 2,
        __builtin_popcount(unsigned(t)) + __builtin_ffs(t) + (t ? __builtin_clz(unsigned(t)) : 32),
        1 << l % 16,
        int(unsigned(t) >> 8 | 0x12345678u << 24)};
    for (int i = 0; i < kWords; ++i) check("result", t, out.host[t * kWords + i], wanted[i]);
  }
  check("sum", 0, out.host[64 * kWords], 64);
  check("maximum", 0, out.host[64 * kWords + 1], 63);
}

template <class T>
static void check_product() {
  Memory<float> a(256), b(128), out(128);
  for (int i = 0; i < 256; ++i) a.host[i] = float(i % 7 - 3);
  for (int i = 0; i < 128; ++i) b.host[i] = float(i % 5 - 2) * 0.5f;
  launch(product<T>, dim3(1), dim3(32), 0, nullptr, a.device(), b.device(), out.device());
  out.fetch();
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float sum = 1.0f + float(2 * (row / 8) + column % 2);
      for (int k = 0; k < 16; ++k) sum += a.host[row * 16 + k] * b.host[k * 8 + column];
      check("product (times 2)", row * 8 + column, long(2 * out.host[row * 8 + column]), long(2 * sum));
    }
}

template <int Fault>
static void check_pipeline() {
  Memory<uint4> in(128), out(128);
  for (unsigned i = 0; i < 128; ++i) in.host[i] = make_uint4(i, i, i, i);
  launch(pipeline<Fault>, dim3(1), dim3(32), 0, nullptr, in.device(), out.device());
  out.fetch();
  for (int i = 0; i < 128; ++i) {
    const int source = (i & ~31) + 31 - (i & 31);
    const bool zero = i >= 32 && (source & 31) == 31;  // a copy that is not valid gives zeros
    check("copy", i, out.host[i].w, zero ? 0 : source);
  }
}

int main(int count, char** arguments) {
  expect("operations", "", check_operations);
  expect("product, bfloat16", "", check_product<__nv_bfloat16>);
  expect("product, half", "", check_product<__half>);
  expect("pipeline of copies", "", check_pipeline<0>);
#ifdef REFUSION_CUDA_EMULATION
  const std::string build = count > 1 ? arguments[1] : "plain";
  const bool race = build == "race";
  const char* found = race ? "data races" : "";
  const char* unseen = race ? "unwritten" : "";
  std::vector<int> words(4096, 0), more(64, 0);
  int *p = words.data(), *q = more.data();
  const auto run = [&](auto kernel, dim3 grid, unsigned threads, size_t shared = 0) {
    return [=] { launch(kernel, grid, dim3(threads), shared, nullptr, p); };
  };
  expect("cp.async waited for too late", "cp.async", check_pipeline<1>);
  expect("cp.async to a misaligned address", "misaligned", [&] {
    std::vector<uint4> in(32), out(32);
    launch(misaligned, dim3(1), dim3(32), 0, nullptr, in.data(), out.data());
  });
  expect("exchange without an order", found, run(exchange<0>, 1, 32));
  expect("exchange, __syncwarp", "", run(exchange<1>, 1, 32));
  expect("exchange, shuffle as an order", found, run(exchange<2>, 1, 32));
  expect("buffers of a warp", "", run(warp_buffers, 1, 128));
  expect("carved shared memory", "", run(carved, 1, 32, 256));
  expect("carved beyond what was launched", "launch gave", run(carved, 1, 32, 250));
  expect("unwritten shared memory", unseen, run(unwritten, 1, 32));
  expect("histogram", found, run(histogram<false>, 2, 64));
  expect("histogram with atomics", "", run(histogram<true>, 2, 64));
  expect("barrier in one branch", "diverge", run(diverging<1>, 1, 64));
  expect("different barriers", "divergence", run(diverging<2>, 1, 64));
  expect("exit before a barrier", "barrier divergence", run(leaving, 1, 64));
  expect("mask without the caller", "does not contain", run(wrong_mask, 1, 32));
  expect("shuffle from an absent lane", "takes no part", run(absent_lane, 1, 32));
  expect("partial warp", "", [&] {
    launch(partial_warp, dim3(1), dim3(40), 0, nullptr, p);
    check("ballot", 39, p[39], 255);
  });
  expect("blocks write one word", found, run(blocks_write<false>, 3, 32));
  expect("blocks write their own words", "", run(blocks_write<true>, 3, 32));
  for (const bool fenced : {false, true}) {
    q[0] = 0;
    expect(fenced ? "last block, fenced" : "last block, not fenced", fenced ? "" : found, [&] {
      launch(fenced ? last_block_sums<true> : last_block_sums<false>, dim3(5), dim3(32), 0, nullptr, p, q, q + 1);
      check("sum", 0, q[1], 10);
    });
  }
  expect("block too large", "invalid launch", run(histogram<true>, 2, 1025));
  if (build == "asan") run(atomic_behind_an_array, 1, 32)();  // the sanitizer ends the program
#else
  (void)count, (void)arguments;
#endif
  printf(failed ? "%d failed\n" : "all passed\n", failed);
  return failed != 0;
}

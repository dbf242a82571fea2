// What kernels and tests see of the emulation's runtime.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "types.h"

namespace emulation {

// A kernel broke a rule of CUDA, or raced; the message names the rule, the thread and the source lines.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Schedule : int { ascending, descending, random, random_by_warp };

// Read from EMULATION_SCHEDULE (its name), EMULATION_SEED and EMULATION_PREEMPT at the start of the process.
struct Options {
  Schedule schedule = Schedule::ascending;
  uint64_t seed = 1;
  int preempt = 0;  // race build: another thread goes on at one of so many memory accesses; 0: never
};
extern Options options;

struct Statistics {
  uint64_t launches, blocks, accesses, races, unwritten_reads;
  size_t most_shared_memory;
};
extern Statistics statistics;

struct Thread {
  uint3 index;
  unsigned linear, lane, warp;
};
extern Thread* current;
extern uint3 block_index;
extern dim3 block_size, grid_size;

// Where a barrier or warp operation stands: two of them on one line are one.
struct Site {
  const char* file;
  int line;
};

enum class Op : int {
  shuffle,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  ballot,
  any,
  all,
  match_any,
  add,
  minimum,
  maximum,
  sync_warp,
  mma_bfloat16,
  mma_half,
  load_matrix,
};

// The operands of an mma: fragments as PTX lays them out.
struct Mma {
  const uint32_t *a, *b;
  const float* c;
};

void launch_blocks(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void*), void* context);
int sync_threads(int predicate, int kind, Site site);  // kind: 0 plain, 1 count, 2 and, 3 or
uint64_t warp_op(Op op, unsigned mask, uint64_t value, int argument, int width, const void* in, void* out, Site site);
void* shared_array(const void* key, size_t bytes);
void* carve(size_t offset, size_t bytes);
void note_access(const volatile void* address, int bytes, bool write, bool atomic);
void fence();
void copy_async(void* to, const void* from, int bytes, int valid_bytes);
void copy_async_commit();
void copy_async_wait(int groups);

}  // namespace emulation

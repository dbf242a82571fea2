// The runtime's own state: fibers, warps, the block that runs. One block runs at a time, in one OS thread.
#pragma once
#include <string>
#include <vector>

#include "runtime.h"

namespace emulation {

enum class State : uint8_t { ready, running, at_barrier, at_warp_op, done };

struct PendingCopy {
  void* to;
  const void* from;
  int bytes, valid_bytes, group;
};

// A CUDA thread.
struct Fiber : Thread {
  void* stack_pointer;
  char* stack;
  void* fake_stack;  // of the address sanitizer
  State state;
  // What it waits with.
  Site site;
  Op op;
  int barrier_kind, predicate, argument, width;
  unsigned mask;
  uint64_t value, result;
  const void* in;
  void* out;
  void* pc;
  std::vector<PendingCopy> copies;
  int copy_group;
};

struct Warp {
  unsigned present, exited, waiting;  // lanes
  uint32_t sync_time;
};

struct SharedArray {
  const void* key;
  void* data;
  size_t bytes;
};

constexpr size_t kStack = 128 << 10, kGuard = 4096;

extern std::vector<Fiber> fibers;
extern std::vector<Warp> warps;
extern std::vector<SharedArray> shared_arrays;
extern unsigned thread_count, block_number, block_count;
extern size_t dynamic_bytes;
extern bool active, race_build;
extern char* stacks;
extern size_t stack_count;
extern uint32_t now, barrier_time;  // logical time: moves on at every synchronisation

inline Fiber& self() { return *static_cast<Fiber*>(current); }
std::string describe(const Fiber& fiber);
std::string describe(Site site);
[[noreturn]] void fail(const std::string& message);
uint64_t random_bits();
void make_ready(Fiber& fiber);
void switch_away();
void yield();
void run_collective(Warp& warp, unsigned warp_index, unsigned lanes, Op op);

// Race detector.
void record_access(const void* address, int bytes, bool write, bool atomic, void* pc);
void forget_accesses(const void* address, size_t bytes);
void forget_all_accesses();
void start_block_clocks();
void forget_releases();
bool is_shared(const void* address);
std::string source_line(void* pc);

// Shared memory.
void drop_shared_arrays();

}  // namespace emulation

// Race detector: kernels are compiled with -fsanitize=thread, but its hooks lead here instead of to its runtime.
// A shadow cell per byte holds the last write and the last readers; an access races with an earlier one unless a
// barrier, __syncwarp, or between blocks (fence; atomic) -> (atomic; fence) lies between. Shuffles give no order, as in
// CUDA. One run reports a race whatever the order in which the threads happened to run.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "state.h"

namespace emulation {
namespace {

// Who accessed a byte: 0 nobody; thread + 1; or a set of readers, told by the two upper bits.
constexpr uint32_t kWarpSet = 1u << 30, kBlockSet = 2u << 30, kEverybody = 3u << 30;
constexpr uint32_t kAtomic = 1u << 31;  // of a time

struct Cell {
  uint32_t writer, write_time, reader, read_time;
  void *write_pc, *read_pc;
};

constexpr uintptr_t kPage = 4096;
std::unordered_map<uintptr_t, Cell*> shadow;
struct {
  uintptr_t page;
  Cell* cells;
} recent[1024];
constexpr uint64_t kMostReports = 8;

// Clocks of the other blocks: what this block has seen of them for sure, and what it will have seen after its next
// fence.
std::vector<uint32_t> acquired, pending;
std::unordered_map<const void*, std::vector<uint32_t>> released;  // by address of an atomic
uint32_t fence_time;

Cell* cell_of(uintptr_t address) {
  const uintptr_t page = address / kPage;
  auto& entry = recent[page & 1023];
  if (entry.page != page || !entry.cells) {
    Cell*& cells = shadow[page];
    if (!cells) cells = static_cast<Cell*>(calloc(kPage, sizeof(Cell)));
    entry = {page, cells};
  }
  return entry.cells + address % kPage;
}

unsigned warps_per_block() { return (thread_count + 31) / 32; }

// Whether an access by `who` at `time` happened before this thread's present one.
bool is_ordered(uint32_t who, uint32_t time, const Fiber& me, uint32_t my_number) {
  time &= ~kAtomic;
  if (who == my_number + 1) return true;
  const uint32_t set = who & kEverybody;
  if (set == kEverybody) return false;
  const unsigned number = (who & ~kEverybody) - 1;
  const unsigned block = set == kBlockSet  ? number
                         : set == kWarpSet ? number / warps_per_block()
                                           : number / thread_count;
  if (block != block_number) return time < acquired[block];
  if (time < barrier_time) return true;
  if (set == kBlockSet) return false;
  const unsigned warp = set == kWarpSet ? number % warps_per_block() : number % thread_count / 32;
  return warp == me.warp && time < warps[me.warp].sync_time;
}

// The set of readers with this thread added.
uint32_t join(uint32_t readers, const Fiber& me, uint32_t my_number) {
  const uint32_t set = readers & kEverybody;
  if (set == kEverybody || readers == my_number + 1) return readers;
  const unsigned number = (readers & ~kEverybody) - 1, my_warp = block_number * warps_per_block() + me.warp;
  if (set == 0) {
    if (number / thread_count != block_number) return kEverybody;
    return number % thread_count / 32 == me.warp ? kWarpSet | (my_warp + 1) : kBlockSet | (block_number + 1);
  }
  if (set == kWarpSet) {
    if (number == my_warp) return readers;
    return number / warps_per_block() == block_number ? kBlockSet | (block_number + 1) : kEverybody;
  }
  return number == block_number ? readers : kEverybody;
}

void report_race(const char* kind, uint32_t who, void* other_pc, const Fiber& me, void* pc, const void* address) {
  if (++statistics.races > kMostReports) return;
  const std::string other = who & kEverybody ? "several threads"
                                             : "block " + std::to_string((who - 1) / thread_count) + " thread #" +
                                                   std::to_string((who - 1) % thread_count);
  fprintf(stderr, "[emulation] RACE on %s memory (%s): %s at %s and %s at %s\n",
          is_shared(address) ? "shared" : "global", kind, other.c_str(), source_line(other_pc).c_str(),
          describe(me).c_str(), source_line(pc).c_str());
}

void report_unwritten(const Fiber& me, void* pc) {
  if (++statistics.unwritten_reads > kMostReports) return;
  fprintf(stderr, "[emulation] UNWRITTEN shared memory is read: %s at %s\n", describe(me).c_str(),
          source_line(pc).c_str());
}

// Blocks run one after another, so the clock of the present block is all that is needed.
void synchronise(const void* atomic) {
  auto& clocks = released[atomic];
  clocks.resize(acquired.size());
  for (size_t i = 0; i < acquired.size(); ++i) {
    pending[i] = max(pending[i], clocks[i]);
    clocks[i] = max(clocks[i], acquired[i]);
  }
  clocks[block_number] = max(clocks[block_number], fence_time);
}

void hook(const void* address, int bytes, bool write, bool atomic, void* pc) {
  record_access(address, bytes, write, atomic, pc);
  if (options.preempt && active && current && random_bits() % unsigned(options.preempt) == 0) yield();
}

}  // namespace

void record_access(const void* address, int bytes, bool write, bool atomic, void* pc) {
  if (!active || !current) return;
  const char* p = static_cast<const char*>(address);
  if (p >= stacks && p < stacks + stack_count * (kStack + kGuard)) return;  // a thread's own
  ++statistics.accesses;
  const Fiber& me = self();
  const uint32_t my_number = block_number * thread_count + me.linear, time = now | (atomic ? kAtomic : 0);
  bool reported = false;
  for (int i = 0; i < bytes; ++i) {
    Cell& cell = *cell_of(reinterpret_cast<uintptr_t>(p) + i);
    const bool both_atomic = atomic && (cell.write_time & kAtomic);
    if (cell.writer && !both_atomic && !reported && !is_ordered(cell.writer, cell.write_time, me, my_number)) {
      reported = true;
      report_race(write ? "write, write" : "write, read", cell.writer, cell.write_pc, me, pc, p);
    }
    if (!write && !cell.writer && !reported && is_shared(p + i)) {
      reported = true;
      report_unwritten(me, pc);
    }
    const bool reads_ordered = cell.reader && is_ordered(cell.reader, cell.read_time, me, my_number);
    if (write) {
      if (cell.reader && !reported && !reads_ordered && !(atomic && (cell.read_time & kAtomic))) {
        reported = true;
        report_race("read, write", cell.reader, cell.read_pc, me, pc, p);
      }
      cell.writer = my_number + 1;
      cell.write_time = time;
      cell.write_pc = pc;
      if (!atomic) cell.reader = 0;
    } else {
      cell.reader = cell.reader && !reads_ordered ? join(cell.reader, me, my_number) : my_number + 1;
      cell.read_time = time;
      cell.read_pc = pc;
    }
  }
}

void forget_accesses(const void* address, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    const uintptr_t p = reinterpret_cast<uintptr_t>(address) + i;
    const auto found = shadow.find(p / kPage);
    if (found != shadow.end()) found->second[p % kPage] = {};
  }
}

void forget_all_accesses() {
  for (auto& [page, cells] : shadow) std::memset(static_cast<void*>(cells), 0, kPage * sizeof(Cell));
}

void start_block_clocks() {
  acquired.assign(block_count, 0);
  pending = acquired;
  fence_time = 0;
}

void forget_releases() { released.clear(); }

void fence() {
  if (!race_build) return;
  fence_time = ++now;
  for (size_t i = 0; i < acquired.size(); ++i) acquired[i] = max(acquired[i], pending[i]);
}

void note_access(const volatile void* address, int bytes, bool write, bool atomic) {
  if (!race_build || !active) return;
  const void* p = const_cast<const void*>(address);
  record_access(p, bytes, write, atomic, __builtin_return_address(0));
  if (atomic) synchronise(p);
}

std::string source_line(void* pc) {
  Dl_info info;
  if (!pc || !dladdr(pc, &info)) return "?";
  char command[600];
  const size_t offset = size_t(static_cast<char*>(pc) - 1 - static_cast<char*>(info.dli_fbase));
  snprintf(command, sizeof command, "addr2line -i -s -e '%s' %#zx 2>/dev/null", info.dli_fname, offset);
  std::string line;
  if (FILE* pipe = popen(command, "r")) {
    char text[256];
    // The innermost line that is not the emulation's own.
    while (fgets(text, sizeof text, pipe))
      if (line.empty() || line.find("intrinsics.h") != std::string::npos) line = text;
    pclose(pipe);
  }
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line.empty() ? "?" : line;
}

}  // namespace emulation

// Called by code that is compiled with -fsanitize=thread.
#define HOOK(name, bytes, write, atomic) \
  void __tsan_##name(void* p) { emulation::hook(p, bytes, write, atomic, __builtin_return_address(0)); }
#define HOOKS(bytes)                               \
  HOOK(read##bytes, bytes, false, false)           \
  HOOK(write##bytes, bytes, true, false)           \
  HOOK(unaligned_read##bytes, bytes, false, false) \
  HOOK(unaligned_write##bytes, bytes, true, false) \
  HOOK(volatile_read##bytes, bytes, false, true)   \
  HOOK(volatile_write##bytes, bytes, true, true)
extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_init() { emulation::race_build = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_read_range(void* p, size_t n) { emulation::hook(p, int(n), false, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { emulation::hook(p, int(n), true, false, __builtin_return_address(0)); }
}

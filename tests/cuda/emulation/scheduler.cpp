// Fibers, the order in which they run, barriers, and the blocks of a launch. Never compiled with a sanitizer.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "state.h"

extern "C" {
// Present only in a program that is linked with the address sanitizer.
void __sanitizer_start_switch_fiber(void**, const void*, size_t) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) __attribute__((weak));
void __asan_unpoison_memory_region(void const volatile*, size_t) __attribute__((weak));
void emulation_swap(void** save, void* to);
}

// Ten times faster than swapcontext, which asks the kernel for the signal mask. x86-64, System V.
asm(R"(.text
.globl emulation_swap
.type emulation_swap,@function
emulation_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_swap,.-emulation_swap
)");

namespace emulation {
namespace {

Options read_environment() {
  Options read;
  static const std::map<std::string, Schedule> names = {{"ascending", Schedule::ascending},
                                                        {"descending", Schedule::descending},
                                                        {"random", Schedule::random},
                                                        {"random_by_warp", Schedule::random_by_warp}};
  if (const char* text = getenv("EMULATION_SCHEDULE")) {
    const auto found = names.find(text);
    if (found == names.end()) {
      fprintf(stderr, "[emulation] unknown EMULATION_SCHEDULE %s\n", text);
      abort();
    }
    read.schedule = found->second;
  }
  if (const char* text = getenv("EMULATION_SEED")) read.seed = strtoull(text, nullptr, 10);
  if (const char* text = getenv("EMULATION_PREEMPT")) read.preempt = atoi(text);
  return read;
}

}  // namespace

Options options = read_environment();
Statistics statistics;
Thread* current;
uint3 block_index;
dim3 block_size, grid_size;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
unsigned thread_count, block_number, block_count;
size_t dynamic_bytes;
bool active, race_build;
char* stacks;
size_t stack_count;
uint32_t now = 1, barrier_time;

namespace {

std::vector<unsigned> ready;
size_t ready_begin;
unsigned live, at_barrier;
Fiber* first_at_barrier;
void* main_stack_pointer;
void* main_fake_stack;
const void* main_stack;
size_t main_stack_bytes;
bool from_main;
void (*body)(void*);
void* body_context;
std::string error;
uint64_t random_state;

bool is_random() { return options.schedule >= Schedule::random; }

Fiber* next_ready() {
  const size_t count = ready.size() - ready_begin;
  if (!count) return nullptr;
  if (is_random()) {
    size_t chosen = ready_begin + random_bits() % count;
    if (options.schedule == Schedule::random_by_warp && current) {  // stay in this warp while it has work
      const size_t start = chosen - ready_begin;
      for (size_t k = 0; k < count; ++k) {
        const size_t candidate = ready_begin + (start + k) % count;
        if (fibers[ready[candidate]].warp == current->warp) {
          chosen = candidate;
          break;
        }
      }
    }
    std::swap(ready[chosen], ready[ready_begin]);
  }
  Fiber* fiber = &fibers[ready[ready_begin++]];
  if (ready_begin > 4096 && ready_begin * 2 > ready.size()) {
    ready.erase(ready.begin(), ready.begin() + ready_begin);
    ready_begin = 0;
  }
  return fiber;
}

[[noreturn]] void to_main() {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(nullptr, main_stack, main_stack_bytes);
  void* unused;
  emulation_swap(&unused, main_stack_pointer);
  abort();
}

[[noreturn]] void report_deadlock() {
  std::map<std::string, std::pair<unsigned, unsigned>> groups;  // what they do -> how many, the first
  for (const Fiber& fiber : fibers) {
    std::string what = "has exited";
    if (fiber.state == State::at_barrier) what = "waits at __syncthreads " + describe(fiber.site);
    if (fiber.state == State::at_warp_op) what = "waits at a warp operation at " + describe(fiber.site);
    auto& [count, first] = groups.try_emplace(what, 0u, fiber.linear).first->second;
    ++count;
  }
  std::string message = "deadlock or divergent synchronisation, " + std::to_string(live) + " threads cannot go on:";
  for (const auto& [what, group] : groups)
    message +=
        "\n    " + std::to_string(group.first) + " thread(s), first #" + std::to_string(group.second) + ", " + what;
  fail(message);
}

bool try_warp_op(unsigned warp_index, const Fiber& fiber) {  // once every lane of the mask that has not exited is there
  Warp& warp = warps[warp_index];
  const unsigned needed = fiber.mask & warp.present & ~warp.exited;
  if ((warp.waiting & needed) != needed) return false;
  Thread* me = current;
  run_collective(warp, warp_index, needed, fiber.op);
  current = me;
  warp.waiting &= ~needed;
  for (unsigned lanes = needed; lanes; lanes &= lanes - 1) {
    Fiber& lane = fibers[warp_index * 32 + __builtin_ctz(lanes)];
    if (&lane != me) make_ready(lane);
  }
  return true;
}

void release_barrier() {
  barrier_time = ++now;
  at_barrier = 0;
  int count = 0;
  unsigned waiting = 0;
  for (const Fiber& fiber : fibers)
    if (fiber.state == State::at_barrier) {
      ++waiting;
      count += fiber.predicate != 0;
    }
  for (size_t i = 0; i < fibers.size(); ++i) {
    Fiber& fiber = fibers[options.schedule == Schedule::descending ? fibers.size() - 1 - i : i];
    if (fiber.state != State::at_barrier) continue;
    fiber.result = fiber.barrier_kind == 1   ? unsigned(count)
                   : fiber.barrier_kind == 2 ? count == int(waiting)
                                             : count > 0;
    make_ready(fiber);
  }
}

void run_fiber() {
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(nullptr, from_main ? &main_stack : nullptr,
                                    from_main ? &main_stack_bytes : nullptr);
  from_main = false;
  body(body_context);
  Fiber& me = self();
  me.state = State::done;
  --live;
  Warp& warp = warps[me.warp];
  warp.exited |= 1u << me.lane;
  if (!me.copies.empty()) fail("thread exits with unfinished cp.async: " + describe(me));
  if (at_barrier)
    fail("barrier divergence: " + describe(me) + " exits while thread #" + std::to_string(first_at_barrier->linear) +
         " waits at __syncthreads " + describe(first_at_barrier->site));
  for (unsigned lanes = warp.waiting; lanes; lanes = warp.waiting & lanes & (lanes - 1))
    try_warp_op(me.warp, fibers[me.warp * 32 + __builtin_ctz(lanes)]);
  if (!live) to_main();
  Fiber* next = next_ready();
  if (!next) report_deadlock();
  next->state = State::running;
  current = next;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(nullptr, next->stack, kStack);
  emulation_swap(&me.stack_pointer, next->stack_pointer);
  abort();
}

void start_block(unsigned number) {
  block_number = number;
  block_index = {number % grid_size.x, number / grid_size.x % grid_size.y, number / grid_size.x / grid_size.y};
  ++statistics.blocks;
  drop_shared_arrays();
  if (race_build) start_block_clocks();
  live = thread_count;
  at_barrier = 0;
  ready.clear();
  ready_begin = 0;
  barrier_time = ++now;
  for (unsigned w = 0; w < warps.size(); ++w) {
    const unsigned lanes = std::min(32u, thread_count - 32 * w);
    warps[w] = {lanes == 32 ? ~0u : (1u << lanes) - 1, 0, 0, barrier_time};
  }
  for (unsigned k = 0; k < thread_count; ++k) {
    const unsigned i = options.schedule == Schedule::descending ? thread_count - 1 - k : k;
    Fiber& fiber = fibers[i];
    fiber.linear = i;
    fiber.lane = i & 31;
    fiber.warp = i >> 5;
    fiber.index = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
    fiber.copies.clear();
    fiber.copy_group = 0;
    fiber.fake_stack = nullptr;
    fiber.stack = stacks + i * (kStack + kGuard) + kGuard;
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fiber.stack, kStack);
    void** top = reinterpret_cast<void**>(fiber.stack + kStack) - 1;
    *--top = reinterpret_cast<void*>(run_fiber);
    fiber.stack_pointer = top - 6;  // the registers that emulation_swap pops
    make_ready(fiber);
  }
}

// A guard page was hit, or an address was misaligned: says which CUDA thread did it.
void on_fault(int number, siginfo_t* info, void* context) {
  signal(number, SIG_DFL);
  if (!active || !current) return;
  const auto rip = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  fprintf(stderr, "[emulation] signal %d at address %p: %s at %s\n", number, info->si_addr, describe(self()).c_str(),
          source_line(reinterpret_cast<void*>(rip + 1)).c_str());
}

void watch_faults() {
  static bool done;
  static char alternate[64 << 10];
  if (done || __asan_unpoison_memory_region) return;
  done = true;
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  sigaltstack(&stack, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

void reserve_stacks(size_t count) {
  if (stack_count >= count) return;
  if (stacks) munmap(stacks, stack_count * (kStack + kGuard));
  stack_count = count;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, count * (kStack + kGuard), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) throw Error("no memory for the stacks of a block");
  stacks = static_cast<char*>(memory);
  for (size_t i = 0; i < count; ++i) mprotect(stacks + i * (kStack + kGuard), kGuard, PROT_NONE);
}

std::vector<unsigned> order_of_blocks() {
  std::vector<unsigned> order(block_count);
  for (unsigned i = 0; i < block_count; ++i)
    order[i] = options.schedule == Schedule::descending ? block_count - 1 - i : i;
  if (is_random())
    for (unsigned i = block_count; i-- > 1;) std::swap(order[i], order[random_bits() % (i + 1)]);
  return order;
}

}  // namespace

uint64_t random_bits() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

std::string describe(Site site) {
  const std::string path = site.file ? site.file : "?";
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(site.line);
}

std::string describe(const Fiber& fiber) {
  char text[120];
  snprintf(text, sizeof text, "block(%u,%u,%u) thread(%u,%u,%u) warp %u lane %u", block_index.x, block_index.y,
           block_index.z, fiber.index.x, fiber.index.y, fiber.index.z, fiber.warp, fiber.lane);
  return text;
}

void fail(const std::string& message) {
  error = message;
  to_main();
}

void make_ready(Fiber& fiber) {
  fiber.state = State::ready;
  ready.push_back(fiber.linear);
}

void switch_away() {  // the current fiber waits or is ready: another one goes on
  Fiber& me = self();
  Fiber* next = next_ready();
  if (!next) report_deadlock();
  next->state = State::running;
  if (next == &me) return;
  current = next;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&me.fake_stack, next->stack, kStack);
  emulation_swap(&me.stack_pointer, next->stack_pointer);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(me.fake_stack, nullptr, nullptr);
}

void yield() {
  if (!active) return;
  make_ready(self());
  switch_away();
}

int sync_threads(int predicate, int kind, Site site) {
  Fiber& me = self();
  if (live != thread_count)
    fail("barrier divergence: " + describe(me) + " reaches __syncthreads " + describe(site) +
         " after another thread has exited");
  if (!at_barrier) {
    first_at_barrier = &me;
  } else if (first_at_barrier->site.line != site.line || std::string(first_at_barrier->site.file) != site.file) {
    fail("barrier divergence: " + describe(me) + " at __syncthreads " + describe(site) + " while thread #" +
         std::to_string(first_at_barrier->linear) + " waits at " + describe(first_at_barrier->site));
  }
  me.site = site;
  me.barrier_kind = kind;
  me.predicate = predicate;
  me.state = State::at_barrier;
  if (++at_barrier == live) release_barrier();
  switch_away();
  return int(me.result);
}

uint64_t warp_op(Op op, unsigned mask, uint64_t value, int argument, int width, const void* in, void* out, Site site) {
  Fiber& me = self();
  Warp& warp = warps[me.warp];
  if (!(mask >> me.lane & 1)) {
    char text[16];
    snprintf(text, sizeof text, "0x%08x", mask);
    fail(std::string("warp operation mask ") + text + " does not contain the calling lane: " + describe(me) + " at " +
         describe(site));
  }
  if (op >= Op::mma_bfloat16 && (warp.exited || warp.present != ~0u))
    fail("mma or ldmatrix in an incomplete warp: " + describe(me) + " at " + describe(site));
  for (unsigned lanes = warp.waiting & mask; lanes; lanes &= lanes - 1) {
    const Fiber& other = fibers[me.warp * 32 + __builtin_ctz(lanes)];
    if (other.mask != mask || other.op != op || other.site.line != site.line ||
        std::string(other.site.file) != site.file)
      fail("warp divergence: " + describe(me) + " at " + describe(site) + " while lane " + std::to_string(other.lane) +
           " waits in another warp operation at " + describe(other.site));
  }
  me.op = op;
  me.mask = mask;
  me.value = value;
  me.argument = argument;
  me.width = width;
  me.in = in;
  me.out = out;
  me.site = site;
  me.pc = __builtin_return_address(0);
  me.state = State::at_warp_op;
  warp.waiting |= 1u << me.lane;
  if (try_warp_op(me.warp, me)) {
    me.state = State::running;
    if (is_random() && (random_bits() & 1)) yield();
  } else {
    switch_away();
  }
  return me.result;
}

void launch_blocks(dim3 grid, dim3 block, size_t shared_bytes, void (*run)(void*), void* context) {
  watch_faults();
  if (active) throw Error("a launch within a launch");
  const uint64_t threads = uint64_t(block.x) * block.y * block.z, blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (!threads || threads > 1024 || block.z > 64 || !blocks || grid.y > 65535 || grid.z > 65535 ||
      shared_bytes > 227 << 10)
    throw Error("invalid launch configuration");
  reserve_stacks(threads);
  fibers.resize(threads);
  warps.resize((threads + 31) / 32);
  thread_count = unsigned(threads);
  block_count = unsigned(blocks);
  block_size = block;
  grid_size = grid;
  dynamic_bytes = shared_bytes;
  body = run;
  body_context = context;
  random_state = options.seed * 0x9e3779b97f4a7c15ull | 1;
  error.clear();
  ++statistics.launches;
  statistics.most_shared_memory = std::max(statistics.most_shared_memory, shared_bytes);
  forget_all_accesses();
  forget_releases();
  const uint64_t races = statistics.races, unwritten = statistics.unwritten_reads;
  active = true;
  for (const unsigned number : order_of_blocks()) {
    start_block(number);
    current = nullptr;
    Fiber* first = next_ready();
    first->state = State::running;
    current = first;
    if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&main_fake_stack, first->stack, kStack);
    from_main = true;
    emulation_swap(&main_stack_pointer, first->stack_pointer);
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(main_fake_stack, nullptr, nullptr);
    current = nullptr;
    if (!error.empty()) break;
  }
  active = false;
  drop_shared_arrays();
  const uint64_t new_races = statistics.races - races, new_unwritten = statistics.unwritten_reads - unwritten;
  if (new_races || new_unwritten)
    error += (error.empty() ? "" : "; also ") + std::to_string(new_races) + " data races, " +
             std::to_string(new_unwritten) + " reads of unwritten shared memory";
  if (!error.empty()) throw Error(error);
}

}  // namespace emulation

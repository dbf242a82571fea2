// Shared memory as heap blocks, and cp.async as late as a kernel allows.
#include <algorithm>
#include <cstdlib>

#include "state.h"

namespace emulation {

std::vector<SharedArray> shared_arrays;

namespace {

size_t static_bytes;
constexpr size_t kStaticLimit = 48 << 10;

void* allocate(const void* key, size_t bytes) {
  for (const SharedArray& array : shared_arrays)
    if (array.key == key) return array.data;
  void* data;
  if (posix_memalign(&data, 16, std::max<size_t>(bytes, 1))) abort();
  std::memset(data, 0xff, bytes);
  forget_accesses(data, bytes);
  shared_arrays.push_back({key, data, bytes});
  return data;
}

}  // namespace

void* shared_array(const void* key, size_t bytes) {
  const size_t before = shared_arrays.size();
  void* data = allocate(key, bytes);
  if (shared_arrays.size() > before) static_bytes += bytes;
  statistics.most_shared_memory = std::max(statistics.most_shared_memory, static_bytes + dynamic_bytes);
  if (static_bytes > kStaticLimit) fail("more than 48 KiB of static shared memory");
  return data;
}

void* carve(size_t offset, size_t bytes) {
  if (offset + bytes > dynamic_bytes)
    fail("kernel uses " + std::to_string(offset + bytes) + " bytes of dynamic shared memory, launch gave " +
         std::to_string(dynamic_bytes));
  return allocate(reinterpret_cast<const void*>(offset + 1), bytes);  // an address that no static key has
}

void drop_shared_arrays() {
  for (const SharedArray& array : shared_arrays) free(array.data);
  shared_arrays.clear();
  static_bytes = 0;
}

bool is_shared(const void* address) {
  const char* p = static_cast<const char*>(address);
  for (const SharedArray& array : shared_arrays) {
    const char* data = static_cast<const char*>(array.data);
    if (p >= data && p < data + array.bytes) return true;
  }
  return false;
}

void copy_async(void* to, const void* from, int bytes, int valid_bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & (bytes - 1))
    fail("misaligned cp.async: " + describe(self()));
  self().copies.push_back({to, from, bytes, valid_bytes, self().copy_group});
}

void copy_async_commit() { ++self().copy_group; }

void copy_async_wait(int groups) {  // a wait that is missing or too weak shows as poison or stale data
  Fiber& me = self();
  void* pc = __builtin_return_address(0);
  size_t done = 0;
  for (; done < me.copies.size() && me.copies[done].group < me.copy_group - groups; ++done) {
    const PendingCopy& copy = me.copies[done];
    if (race_build) {
      record_access(copy.from, copy.valid_bytes, false, false, pc);
      record_access(copy.to, copy.bytes, true, false, pc);
    }
    std::memcpy(copy.to, copy.from, copy.valid_bytes);
    std::memset(static_cast<char*>(copy.to) + copy.valid_bytes, 0, copy.bytes - copy.valid_bytes);
  }
  me.copies.erase(me.copies.begin(), me.copies.begin() + done);
}

}  // namespace emulation

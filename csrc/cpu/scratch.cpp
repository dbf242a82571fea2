#include "scratch.h"

#include <cstdlib>
#include <new>

namespace refusion::cpu {
namespace {

struct Buffer {
  void* data = nullptr;
  size_t size = 0;
  ~Buffer() { std::free(data); }
};

}  // namespace

void* scratch(size_t bytes) {
  thread_local Buffer buffer;
  if (bytes > buffer.size) {
    std::free(buffer.data);
    buffer.size = 0;
    buffer.data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!buffer.data) throw std::bad_alloc();
    buffer.size = bytes;
  }
  return buffer.data;
}

}  // namespace refusion::cpu

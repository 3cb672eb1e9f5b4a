// Runs a kernel's threads, threadgroup after threadgroup, each thread as a fiber of one CPU thread.
//
// A fiber runs until it must wait for others; which one goes on then is drawn from a seed. The
// compiler calls `__tsan_*` before every access of the kernel (it believes to build for its thread
// sanitizer). Here each access is looked up in the launch's memory, counted, and compared with what
// other threads did there since the last barrier that ordered it. Metal gives no order between
// threadgroups of a launch, and none by simd functions: barriers alone order memory.
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "machine.h"
#include "memory.h"
#include "turns.h"

namespace metal_cpu {

// -- what kernels call ----------------------------------------------------------------------------

void meet_threadgroup(uint32_t memory, int line) {
  meet(machine->group, "threadgroup_barrier", memory, line);
}

void meet_simdgroup(uint32_t memory, int line) {
  meet(simdgroup().meeting, "simdgroup_barrier", memory, line);
}

const unsigned char* exchange(const char* what, int line, const void* value, size_t size) {
  Simdgroup& simd = simdgroup();
  // Two sets: a lane can't come back to this one before all have left the other.
  Meeting& meeting = simd.meeting;
  unsigned char* slots = simd.slots[simd.exchanges % 2];
  if (meeting.arrived + 1 == meeting.members) ++simd.exchanges;
  if (size) memcpy(slots + lane() * SLOT, value, size);
  meet(meeting, what, 0, line);
  return slots;
}

uint32_t lane() { return machine->current % LANES; }
uint32_t lanes_present() { return simdgroup().meeting.members; }
void as_whole_simdgroup(bool on) { self().whole_simdgroup = on; }

void* threadgroup_memory(const char* name, size_t bytes, size_t granule) {
  Machine& m = *machine;
  size_t total = bytes;
  Region* found = nullptr;
  for (Region& r : m.regions) {
    if (r.memory != THREADGROUP) continue;
    if (r.name == name)
      found = &r;
    else
      total += r.size;
  }
  if (total > THREADGROUP_LIMIT)
    fail(text("threadgroup memory: %zu bytes with %s, Metal has %zu", total, name,
              THREADGROUP_LIMIT));
  if (!found) {
    char* memory = static_cast<char*>(malloc(bytes + 2 * m.gap));
    m.regions.push_back(new_region(name, memory + m.gap, bytes, granule, true, THREADGROUP));
    found = &m.regions.back();
  }
  if (found->filled_for != m.threadgroup) {
    memset(found->begin, 0xff, found->size);  // NaN in every type, and an index far out of bounds
    found->filled_for = m.threadgroup;
  }
  return found->begin;
}

// -- what Python calls ----------------------------------------------------------------------------

extern "C" {

struct Buffer {
  const char* name;
  void* data;
  uint64_t bytes, granule;
  int32_t writable;
};

struct Launch {
  const Buffer* buffers;
  uint64_t num_buffers;
  Triple grid, threadgroup;
  uint64_t seed;  // 0: threads and threadgroups in order
  int32_t races;
  uint64_t gap;      // bytes; 0 where a sanitizer puts its own between arrays
  Traffic* traffic;  // of each buffer
  char* error;
  uint64_t error_size;
  uint64_t error_at;  // in this file's image; 0: unknown
};

// 0, or 1 with `error` written.
__attribute__((visibility("default"))) int metal_cpu_launch(Launch* launch) {
  std::vector<void*> pointers;
  Machine here;
  machine = &here;
  here.races = launch->races;
  here.random = launch->seed * 0x9e3779b97f4a7c15u;
  here.gap = launch->gap;
  here.error = launch->error;
  here.error_size = launch->error_size;
  for (uint64_t i = 0; i < launch->num_buffers; ++i) {
    const Buffer& b = launch->buffers[i];
    pointers.push_back(b.data);
    here.regions.push_back(new_region(b.name, b.data, b.bytes, b.granule, b.writable, DEVICE));
  }
  here.buffers = pointers.data();
  Triple grid = launch->grid;
  Triple asked = {std::min(launch->threadgroup.x, grid.x), std::min(launch->threadgroup.y, grid.y),
                  std::min(launch->threadgroup.z, grid.z)};
  Triple groups = {(grid.x + asked.x - 1) / asked.x, (grid.y + asked.y - 1) / asked.y,
                   (grid.z + asked.z - 1) / asked.z};
  std::vector<uint32_t> order(size_t(groups.x) * groups.y * groups.z);
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  if (here.random)
    for (uint32_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[drawn(i)]);
  uint32_t count = asked.x * asked.y * asked.z;
  void* stacks = mmap(nullptr, count * STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) abort();
  start_fibers(count, static_cast<char*>(stacks));
  for (uint32_t at : order) {
    Triple group = {at % groups.x, at / groups.x % groups.y, at / groups.x / groups.y};
    run_threadgroup(grid, asked, groups, group);
    if (here.failed) break;
  }
  machine = nullptr;
  for (uint64_t i = 0; i < launch->num_buffers; ++i) launch->traffic[i] = here.regions[i].traffic;
  launch->error_at = here.error_at ? static_cast<char*>(here.error_at) - &__ehdr_start : 0;
  for (Region& r : here.regions) {
    free(r.cells);
    if (r.memory == THREADGROUP) free(r.begin - here.gap);
  }
  munmap(stacks, count * STACK);
  return here.failed;
}

// What the compiler calls before each access.
#define CALLER __builtin_return_address(0)
#define ACCESSES(bytes)                                                              \
  void __tsan_read##bytes(void* p) { access(p, bytes, bytes, false, CALLER); }       \
  void __tsan_write##bytes(void* p) { access(p, bytes, bytes, true, CALLER); }       \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, 1, false, CALLER); } \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, 1, true, CALLER); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void* __tsan_memcpy(void* to, const void* from, size_t size) {
  access(from, size, 1, false, CALLER);
  access(to, size, 1, true, CALLER);
  return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, size_t size) {
  access(from, size, 1, false, CALLER);
  access(to, size, 1, true, CALLER);
  return memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
  access(to, size, 1, true, CALLER);
  return memset(to, value, size);
}
void __tsan_init() {}

}  // extern "C"
}  // namespace metal_cpu

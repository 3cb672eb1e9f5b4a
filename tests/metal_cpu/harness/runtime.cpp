// Runs a kernel's threads, threadgroup after threadgroup, each thread as a fiber of one CPU thread.
//
// A fiber runs until it must wait for others; which one goes on then is drawn from a seed. The
// compiler calls `__tsan_*` before every access of the kernel (it believes to build for its thread
// sanitizer). Here each access is looked up in the launch's memory, counted, and compared with what
// other threads did there since the last barrier that ordered it. Metal gives no order between
// threadgroups of a launch, and none by simd functions: barriers alone order memory.
#include "runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

namespace metal_cpu {
namespace {

constexpr size_t THREADGROUP_LIMIT = 32 << 10;
constexpr size_t STACK = 256 << 10;
constexpr uint32_t SEVERAL_LANES = 1 << 16;  // | simdgroup: lanes of one simdgroup
constexpr uint32_t SEVERAL_SIMDGROUPS = 1 << 17;

// An access, or the latest of several between two barriers.
struct Access {
  uint32_t threadgroup;  // counted from 1; 0: none yet
  uint32_t by;           // a thread's index, or SEVERAL_...
  uint32_t group_epoch, simd_epoch;
};

// What is remembered of the bytes of one granule.
struct Cell {
  Access write, read;
  bool read_by_several_threadgroups;
};

struct Traffic {
  uint64_t read;     // bytes, each lane's load counted
  uint64_t fetched;  // different bytes that each threadgroup read, summed over threadgroups
  uint64_t touched;  // different bytes that were read at all
  uint64_t written;  // bytes, each lane's store counted
};

struct Region {
  std::string name;
  char* begin;
  size_t size;
  size_t granule;
  bool writable;
  Memory memory;
  Traffic traffic;
  Cell* cells;
  uint32_t filled_for;  // threadgroup arrays: the threadgroup that has begun with it
};

// Where threads wait for each other.
struct Meeting {
  uint32_t members = 0, arrived = 0;
  const char* what = nullptr;
  int line = 0;
  uint32_t epochs[3] = {};  // by Memory: how often a barrier here ordered it
  std::vector<uint32_t> waiting;
};

struct Simdgroup {
  Meeting meeting;
  alignas(16) unsigned char slots[2][LANES * SLOT];
  uint32_t exchanges = 0;
};

struct Fiber {
  jmp_buf at;
  ucontext_t start;
  char* stack;
  Thread thread;
  bool done;
  bool whole_simdgroup;
  const char* waits_at;
  int waits_line;
};

struct Machine {
  void* const* buffers;
  bool races;
  uint64_t random;  // 0: threads in order
  size_t gap;       // between threadgroup arrays, so that no overrun hits another
  Traffic* traffic;
  char* error;
  size_t error_size;
  void* error_at = nullptr;
  jmp_buf main;
  ucontext_t main_start;
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> simdgroups;
  std::vector<Region> regions;
  std::deque<uint32_t> ready;
  Meeting group;
  uint32_t threadgroup = 0;
  uint32_t finished = 0;
  uint32_t current = 0;
  bool failed = false;
};

Machine* machine = nullptr;  // of the launch that runs; one at a time

Fiber& self() { return machine->fibers[machine->current]; }
Simdgroup& simdgroup() { return machine->simdgroups[machine->current / LANES]; }

uint32_t drawn(uint32_t limit) {
  uint64_t& x = machine->random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return (x >> 33) % limit;
}

std::string text(const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  return line;
}

std::string name_of(const Fiber& f) {
  const Triple &t = f.thread.local, &g = f.thread.group;
  return text("thread (%u, %u, %u) of threadgroup (%u, %u, %u)", t.x, t.y, t.z, g.x, g.y, g.z);
}

// End the launch. Nothing is unwound: what the fibers' frames hold is theirs alone.
[[noreturn]] void fail(const std::string& message, void* at = nullptr) {
  snprintf(machine->error, machine->error_size, "%s", message.c_str());
  machine->error_at = at;
  machine->failed = true;
  _longjmp(machine->main, 1);
}

// -- taking turns ---------------------------------------------------------------------------------

[[noreturn]] void run_next() {
  Machine& m = *machine;
  if (m.ready.empty()) {
    std::string who;
    const Fiber* shown = nullptr;
    for (uint32_t i = 0; i < m.group.members; ++i) {
      const Fiber& f = m.fibers[i];
      if (f.done || (shown && f.waits_at == shown->waits_at && f.waits_line == shown->waits_line))
        continue;
      who += text("; thread %u waits at %s, line %d", i, f.waits_at, f.waits_line);
      shown = &f;
      if (who.size() > 300) break;
    }
    fail(text("divergence: not all threads come to a barrier or simd function: %u of %u have ended",
              m.finished, m.group.members) + who);
  }
  if (m.random) std::swap(m.ready.front(), m.ready[drawn(m.ready.size())]);
  m.current = m.ready.front();
  m.ready.pop_front();
  _longjmp(self().at, 1);
}

// Wait for the other members; the last to come orders `memory`, and all go on.
void meet(Meeting& meeting, const char* what, uint32_t memory, int line) {
  Machine& m = *machine;
  if (meeting.arrived == 0) {
    meeting.what = what;
    meeting.line = line;
  } else if (meeting.line != line || strcmp(meeting.what, what) != 0) {
    fail(text("divergence: %s comes to %s, line %d, while others wait at %s, line %d",
              name_of(self()).c_str(), what, line, meeting.what, meeting.line));
  }
  if (++meeting.arrived < meeting.members) {
    meeting.waiting.push_back(m.current);
    self().waits_at = what;
    self().waits_line = line;
    if (!_setjmp(self().at)) run_next();
    return;
  }
  meeting.arrived = 0;
  for (Memory kind : {DEVICE, THREADGROUP}) meeting.epochs[kind] += (memory & kind) != 0;
  m.ready.insert(m.ready.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
  if (!m.random) return;
  m.ready.push_back(m.current);
  if (!_setjmp(self().at)) run_next();
}

void fiber_main() {
  for (;;) {
    if (!_setjmp(self().at)) {
      if (machine->threadgroup == 0) setcontext(&machine->main_start);
      if (++machine->finished == machine->group.members) _longjmp(machine->main, 1);
      run_next();
    }
    run_thread(machine->buffers, self().thread);
    self().done = true;
  }
}

void start_fibers(uint32_t count, char* stacks) {
  Machine& m = *machine;
  m.fibers.resize(count);
  m.simdgroups.resize((count + LANES - 1) / LANES);
  for (uint32_t i = 0; i < count; ++i) {
    Fiber& f = m.fibers[i];
    f.stack = stacks + i * STACK;
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack;
    f.start.uc_stack.ss_size = STACK;
    makecontext(&f.start, fiber_main, 0);
    m.current = i;
    swapcontext(&m.main_start, &f.start);
  }
}

void run_threadgroup(Triple grid, Triple asked, Triple groups, Triple at) {
  Machine& m = *machine;
  Triple origin = {at.x * asked.x, at.y * asked.y, at.z * asked.z};
  Triple size = {std::min(asked.x, grid.x - origin.x), std::min(asked.y, grid.y - origin.y),
                 std::min(asked.z, grid.z - origin.z)};
  uint32_t count = size.x * size.y * size.z;
  ++m.threadgroup;
  m.finished = 0;
  m.group = Meeting{count};
  m.ready.clear();
  for (uint32_t i = 0; i < count; ++i) {
    Triple local = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    Triple position = {origin.x + local.x, origin.y + local.y, origin.z + local.z};
    Fiber& f = m.fibers[i];
    f.thread = Thread{grid, asked, size, groups, position, at, local, i};
    f.done = f.whole_simdgroup = false;
    m.ready.push_back(i);
    if (i % LANES == 0) m.simdgroups[i / LANES].meeting = Meeting{std::min(LANES, count - i)};
  }
  if (!_setjmp(m.main)) run_next();
}

// -- memory ---------------------------------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;

bool within(const char* p, size_t size, const char* begin, size_t length) {
  return p >= begin && p + size <= begin + length;
}

bool same_simdgroup(uint32_t by, uint32_t thread) {
  uint32_t simd = thread / LANES;
  return by < SEVERAL_LANES ? by / LANES == simd : by == (SEVERAL_LANES | simd);
}

// Whether an earlier access is ordered before what the current thread does now.
bool ordered(const Access& earlier, Memory memory, bool whole_simdgroup) {
  Machine& m = *machine;
  if (earlier.threadgroup == 0) return true;
  if (earlier.threadgroup != m.threadgroup) return memory == THREADGROUP;
  if (earlier.group_epoch < m.group.epochs[memory]) return true;
  if (earlier.by == m.current && !whole_simdgroup) return true;
  return same_simdgroup(earlier.by, m.current) &&
         earlier.simd_epoch < simdgroup().meeting.epochs[memory];
}

Access now(Memory memory, bool whole_simdgroup) {
  Machine& m = *machine;
  uint32_t by = whole_simdgroup ? SEVERAL_LANES | m.current / LANES : m.current;
  return {m.threadgroup, by, m.group.epochs[memory],
          simdgroup().meeting.epochs[memory]};
}

// Reads between two barriers, as one: what a later write must be ordered after.
void add_read(Cell& cell, const Access& access) {
  Access& read = cell.read;
  bool fresh = read.threadgroup != access.threadgroup || read.group_epoch != access.group_epoch;
  cell.read_by_several_threadgroups |= read.threadgroup && read.threadgroup != access.threadgroup;
  if (fresh || read.by == access.by) {
    read = access;
  } else if (!same_simdgroup(read.by, machine->current)) {
    read.by = SEVERAL_SIMDGROUPS;
  } else if (read.simd_epoch != access.simd_epoch) {
    read = access;  // a simdgroup barrier stands between: any later access comes after the old one
  } else {
    read.by = SEVERAL_LANES | machine->current / LANES;
  }
}

[[noreturn]] void race(const Region& region, size_t offset, bool write, const char* other,
                       const Access& earlier, void* at) {
  const char* what = write ? "writes" : "reads";
  std::string who = earlier.threadgroup != machine->threadgroup ? "another threadgroup"
                    : earlier.by < SEVERAL_LANES ? text("thread %u", earlier.by)
                                                 : std::string("other threads");
  fail(text("race: %s %s byte %zu of %s, which %s %s, and no barrier of that memory orders the two",
            name_of(self()).c_str(), what, offset, region.name.c_str(), who.c_str(), other), at);
}

void access(const void* address, size_t size, bool write, void* at) {
  if (!machine || machine->threadgroup == 0) return;
  const char* p = static_cast<const char*>(address);
  Fiber& f = self();
  if (within(p, size, f.stack, STACK)) return;
  Region* region = nullptr;
  for (Region& r : machine->regions)
    if (within(p, size, r.begin, r.size)) region = &r;
  if (!region) {
    if (within(p, size, &__ehdr_start, &_end - &__ehdr_start)) return;  // tables of constants
    const Region* near = nullptr;
    auto distance = [p](const Region& r) {
      return p < r.begin ? r.begin - p : std::max<ptrdiff_t>(p - (r.begin + r.size), 0);
    };
    for (const Region& r : machine->regions)
      if (!near || distance(r) < distance(*near)) near = &r;
    std::string where = near ? text(": byte %td of %s, which has %zu", p - near->begin,
                                    near->name.c_str(), near->size) : std::string();
    fail(text("out of bounds: %s %s %zu bytes", name_of(f).c_str(), write ? "writes" : "reads",
              size) + where, at);
  }
  if (write && !region->writable)
    fail(text("read-only: %s writes to input %s", name_of(f).c_str(), region->name.c_str()), at);
  (write ? region->traffic.written : region->traffic.read) += size;
  size_t begin = p - region->begin;
  Access mine = now(region->memory, f.whole_simdgroup);
  for (size_t i = begin / region->granule; i * region->granule < begin + size; ++i) {
    Cell& cell = region->cells[i];
    size_t offset = i * region->granule;
    if (machine->races && !ordered(cell.write, region->memory, f.whole_simdgroup))
      race(*region, offset, write, "wrote", cell.write, at);
    if (!write) {
      if (cell.read.threadgroup == 0) region->traffic.touched += region->granule;
      if (cell.read.threadgroup != machine->threadgroup) region->traffic.fetched += region->granule;
      add_read(cell, mine);
      continue;
    }
    bool shared = region->memory == DEVICE && cell.read_by_several_threadgroups;
    if (machine->races && (shared || !ordered(cell.read, region->memory, f.whole_simdgroup)))
      race(*region, offset, write, "read", cell.read, at);
    cell.write = mine;
  }
}

Region new_region(const char* name, void* begin, size_t size, size_t granule, bool writable,
                  Memory memory) {
  Cell* cells = static_cast<Cell*>(calloc(size / granule + 1, sizeof(Cell)));
  return {name, static_cast<char*>(begin), size, granule, writable, memory, {}, cells, 0};
}

}  // namespace

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
    if (r.name == name) found = &r;
    else total += r.size;
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
  uint64_t gap;  // bytes; 0 where a sanitizer puts its own between arrays
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
#define ACCESSES(bytes)                                                                       \
  void __tsan_read##bytes(void* p) { access(p, bytes, false, CALLER); }                       \
  void __tsan_write##bytes(void* p) { access(p, bytes, true, CALLER); }                       \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, false, CALLER); }             \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, true, CALLER); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void* __tsan_memcpy(void* to, const void* from, size_t size) {
  access(from, size, false, CALLER);
  access(to, size, true, CALLER);
  return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, size_t size) {
  access(from, size, false, CALLER);
  access(to, size, true, CALLER);
  return memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
  access(to, size, true, CALLER);
  return memset(to, value, size);
}
void __tsan_init() {}

}  // extern "C"
}  // namespace metal_cpu

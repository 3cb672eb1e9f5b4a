// A launch while it runs: its threads, where they meet, and its memory.
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <ucontext.h>

#include <deque>
#include <string>
#include <vector>

#include "runtime.h"

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
  size_t last_region = 0;
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

}  // namespace
}  // namespace metal_cpu

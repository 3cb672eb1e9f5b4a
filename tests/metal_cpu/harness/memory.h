// What each access of a kernel is held against: bounds, alignment, and the accesses of others.
#pragma once
#include <stdlib.h>

#include <algorithm>

#include "machine.h"

namespace metal_cpu {
namespace {

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
  return {m.threadgroup, by, m.group.epochs[memory], simdgroup().meeting.epochs[memory]};
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
                    : earlier.by < SEVERAL_LANES                ? text("thread %u", earlier.by)
                                                                : std::string("other threads");
  fail(text("race: %s %s byte %zu of %s, which %s %s, and no barrier of that memory orders the two",
            name_of(self()).c_str(), what, offset, region.name.c_str(), who.c_str(), other),
       at);
}

// `alignment` is what the kernel's types promise of the address.
void access(const void* address, size_t size, size_t alignment, bool write, void* at) {
  if (!machine || machine->threadgroup == 0) return;
  const char* p = static_cast<const char*>(address);
  Fiber& f = self();
  if (within(p, size, f.stack, STACK)) return;
  Region* region = machine->last_region < machine->regions.size()
                       ? &machine->regions[machine->last_region]
                       : nullptr;
  if (!region || !within(p, size, region->begin, region->size)) {
    region = nullptr;
    for (Region& r : machine->regions)
      if (within(p, size, r.begin, r.size)) region = &r;
  }
  if (region) {
    machine->last_region = region - machine->regions.data();
  } else {
    if (within(p, size, &__ehdr_start, &_end - &__ehdr_start)) return;  // tables of constants
    const Region* near = nullptr;
    auto distance = [p](const Region& r) {
      return p < r.begin ? r.begin - p : std::max<ptrdiff_t>(p - (r.begin + r.size), 0);
    };
    for (const Region& r : machine->regions)
      if (!near || distance(r) < distance(*near)) near = &r;
    std::string where = near ? text(": byte %td of %s, which has %zu", p - near->begin,
                                    near->name.c_str(), near->size)
                             : std::string();
    fail(text("out of bounds: %s %s %zu bytes", name_of(f).c_str(), write ? "writes" : "reads",
              size) +
             where,
         at);
  }
  if ((p - region->begin) % alignment)
    fail(text("misaligned: %s accesses %zu bytes from byte %td of %s", name_of(f).c_str(), size,
              p - region->begin, region->name.c_str()),
         at);
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
}  // namespace metal_cpu

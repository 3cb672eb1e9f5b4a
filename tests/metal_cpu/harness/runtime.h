// What a translated kernel and the runtime know of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace metal_cpu {

constexpr uint32_t LANES = 32;
constexpr size_t SLOT = 64;  // bytes a lane can give to the others at once

// Memory that a barrier orders, as bits.
enum Memory : uint32_t { DEVICE = 1, THREADGROUP = 2 };

struct Triple {
  uint32_t x, y, z;
};

// Where a thread stands in its launch.
struct Thread {
  Triple grid, asked_group_size, group_size, num_groups;
  Triple position, group, local;
  uint32_t index;  // in the threadgroup
};

// Written by the translator at the end of each kernel: one Metal thread.
void run_thread(void* const* buffers, const Thread& thread);

// Wait for all threads of the threadgroup, or of the simdgroup; `memory` is then ordered.
void meet_threadgroup(uint32_t memory, int line);
void meet_simdgroup(uint32_t memory, int line);

// Give `size` bytes to the simdgroup and wait for all its lanes. Returns 32 slots of SLOT bytes,
// good until the caller's next exchange but one. Orders no memory.
const unsigned char* exchange(const char* what, int line, const void* value, size_t size);

__attribute__((const)) uint32_t lane();  // the same for all of a thread's life
uint32_t lanes_present();

// Accesses from now on are of the whole simdgroup: no one may count on which lane makes them.
void as_whole_simdgroup(bool on);

// A threadgroup array, by its name. The same for all threads of a threadgroup, and full of NaN.
void* threadgroup_memory(const char* name, size_t bytes, size_t granule);

}  // namespace metal_cpu

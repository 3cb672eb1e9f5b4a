// Keys and values of new tokens, written to the pools by the warp that reads them next.
#pragma once

#include "cells.cuh"
#include "packs.cuh"
#include "rotation.cuh"

// What `append` of append.cu is given, for up to 32 tokens; `k` is null where nothing is new. Rows
// and their distances are multiples of two elements. `tiles` tells where in the tile list the slots
// are.
template <typename T>
struct NewCells {
  const T *k, *v;
  long long k_stride, v_stride;
  const int *slots, *tiles;
  const float *cos, *sin;
  T *keys, *rotated, *values;
  unsigned count;
};

// A lane's share of a row: columns 2 lane, 2 lane + 1 and those D / 2 further. Lanes from D / 4 on
// have none.
struct NewPairs {
  unsigned key[2], value[2];
  float cos[2], sin[2];
};

// Loads that stay where they are written: asked for before it is known whether they are needed.
__device__ __forceinline__ unsigned load_pair(const void* from) {
  unsigned x;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}

template <typename T, int D>
__device__ __forceinline__ NewPairs read_new(const NewCells<T>& cells, unsigned token,
                                             unsigned head, unsigned lane) {
  NewPairs row{};
  if (lane < D / 4) {
    const T* key = cells.k + token * cells.k_stride + (head * D + 2 * lane);
    const T* value = cells.v + token * cells.v_stride + (head * D + 2 * lane);
    const unsigned angle = token * (D / 2) + 2 * lane;  // angles of a step start at any word
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row.key[i] = load_pair(key + i * (D / 2));
      row.value[i] = load_pair(value + i * (D / 2));
      row.cos[i] = __uint_as_float(load_pair(cells.cos + angle + i));
      row.sin[i] = __uint_as_float(load_pair(cells.sin + angle + i));
    }
  }
  return row;
}

// Bits are those of append.cu.
template <typename T, int D>
__device__ __forceinline__ void write_new(const NewCells<T>& cells, const NewPairs& row, int slot,
                                          unsigned head, unsigned kv_heads, unsigned lane) {
  if (lane >= D / 4) return;
  const long long at = cell_row(slot, head, kv_heads, D) + 2 * lane;
  float2 first = unpack_two(row.key[0], T()), second = unpack_two(row.key[1], T());
  turn_pair(first.x, second.x, row.cos[0], row.sin[0]);
  turn_pair(first.y, second.y, row.cos[1], row.sin[1]);
  const unsigned turned[2] = {pack_two(first.x, first.y, T()), pack_two(second.x, second.y, T())};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<unsigned*>(cells.keys + at + i * (D / 2)) = row.key[i];
    *reinterpret_cast<unsigned*>(cells.rotated + at + i * (D / 2)) = turned[i];
    *reinterpret_cast<unsigned*>(cells.values + at + i * (D / 2)) = row.value[i];
  }
}

// Writes the new rows of one KV head that lie in this warp's units (numbers index, index + stride,
// ... of the tile list, `UNIT` rows each). All lanes may read them afterwards. Warps with equal
// units write equal bits.
template <typename T, int D, int UNIT>
__device__ __forceinline__ void append_own(const NewCells<T>& cells, unsigned index,
                                           unsigned stride, unsigned head, unsigned kv_heads,
                                           unsigned lane) {
  constexpr int AT_ONCE = 4;
  const bool mine = lane < cells.count;
  const int slot = mine ? cells.slots[lane] : 0, tile = mine ? cells.tiles[lane] : -1;
  NewPairs row = read_new<T, D>(cells, 0, head, lane);
  const unsigned unit = tile * (SUBBLOCK_SIZE / UNIT) + slot % SUBBLOCK_SIZE / UNIT;
  unsigned left = __ballot_sync(~0u, tile >= 0 && unit % stride == index);
  if (left & 1) write_new<T, D>(cells, row, __shfl_sync(~0u, slot, 0), head, kv_heads, lane);
  left &= ~1u;
  while (left != 0) {
    NewPairs rows[AT_ONCE];
    unsigned tokens[AT_ONCE];
    const unsigned count = min(__popc(left), AT_ONCE);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      tokens[i] = i < count ? __ffs(left) - 1 : 0;
      left &= left - 1;
      rows[i] = read_new<T, D>(cells, tokens[i], head, lane);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int to = __shfl_sync(~0u, slot, tokens[i]);
      if (i < count) write_new<T, D>(cells, rows[i], to, head, kv_heads, lane);
    }
  }
  __syncwarp();
}

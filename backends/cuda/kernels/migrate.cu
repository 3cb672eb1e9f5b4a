// Rows of cells moved in many pool arrays at once, as bytes: a row is (page, every KV head, row).
//
// Most sources are not overwritten by the same migration, and these rows are copied directly. Only
// rows that are both a source and a destination go through scratch, all read before any is written:
//   gather_rows  the endangered rows of every array into `scratch`
//   move_rows    every row to its destination, from its slot or from scratch
//
// arrays        table of pointers, one a pool array [page][kv_head][64][row_size], in Units
// scratch       [array][scratch_rows][kv_head][row_size], in Units
// slots         int32 (num_rows,): slots to gather
// origins       int32 (num_rows,): a slot that no row of this call goes to, or ~row of `scratch`
// destinations  int32 (num_rows,): slots, distinct
// row_size      Units of one row of one KV head
//
// Unit: uint4, unsigned or unsigned short: the largest that a row is a multiple of.
// Grid: (PER_THREAD units a thread, array). Numerics: bits are moved.
// Reference: omnitide/backends/reference/backend.py, migrate.
#include "cells.cuh"
#include "overlap.cuh"

constexpr int THREADS = 256;
constexpr int PER_THREAD = 4;

// One unit of one KV head of one row.
struct Place {
  int row, kv_head, unit;

  __device__ __forceinline__ Place(int item, int num_kv_heads, int row_size)
      : row(item / row_size / num_kv_heads),
        kv_head(item / row_size % num_kv_heads),
        unit(item % row_size) {}
};

__device__ __forceinline__ int item_of_thread(int nth) {
  return (blockIdx.x * PER_THREAD + nth) * THREADS + threadIdx.x;
}

template <typename Unit>
__global__ void __launch_bounds__(THREADS)
    gather_rows(const Unit* const* arrays, Unit* scratch, const int* slots, int num_rows,
                int num_kv_heads, int row_size) {
  let_successor_start();
  wait_for_predecessor();
  const Unit* from = arrays[blockIdx.y];
  const int items = num_rows * num_kv_heads * row_size;
  Unit* to = scratch + static_cast<long long>(blockIdx.y) * items;
  Unit held[PER_THREAD];
#pragma unroll
  for (int nth = 0; nth < PER_THREAD; ++nth) {
    const int item = item_of_thread(nth);
    if (item >= items) continue;
    const Place at(item, num_kv_heads, row_size);
    held[nth] = from[cell_row(slots[at.row], at.kv_head, num_kv_heads, row_size) + at.unit];
  }
#pragma unroll
  for (int nth = 0; nth < PER_THREAD; ++nth) {
    const int item = item_of_thread(nth);
    if (item < items) to[item] = held[nth];
  }
}

template <typename Unit>
__global__ void __launch_bounds__(THREADS)
    move_rows(Unit* const* arrays, const Unit* scratch, const int* origins, const int* destinations,
              int num_rows, int scratch_rows, int num_kv_heads, int row_size) {
  let_successor_start();
  wait_for_predecessor();
  Unit* array = arrays[blockIdx.y];
  const int items = num_rows * num_kv_heads * row_size;
  const Unit* kept =
      scratch + static_cast<long long>(blockIdx.y) * scratch_rows * num_kv_heads * row_size;
  Unit held[PER_THREAD];
#pragma unroll
  for (int nth = 0; nth < PER_THREAD; ++nth) {
    const int item = item_of_thread(nth);
    if (item >= items) continue;
    const Place at(item, num_kv_heads, row_size);
    const int origin = origins[at.row];
    const Unit* row =
        origin >= 0
            ? array + cell_row(origin, at.kv_head, num_kv_heads, row_size)
            : kept + (static_cast<long long>(~origin) * num_kv_heads + at.kv_head) * row_size;
    held[nth] = row[at.unit];
  }
#pragma unroll
  for (int nth = 0; nth < PER_THREAD; ++nth) {
    const int item = item_of_thread(nth);
    if (item >= items) continue;
    const Place at(item, num_kv_heads, row_size);
    array[cell_row(destinations[at.row], at.kv_head, num_kv_heads, row_size) + at.unit] = held[nth];
  }
}

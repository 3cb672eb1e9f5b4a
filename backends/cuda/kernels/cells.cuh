// Where a cell lies in a pool array [page][kv_head][PAGE_SIZE][head_dim].
#pragma once

constexpr int PAGE_SIZE = 64;
[[maybe_unused]] constexpr int SUBBLOCK_SIZE = 32;

// First element of a cell's row of one KV head; `row_size` is head_dim in the unit of the pointer.
__device__ __forceinline__ long long cell_row(int slot, int kv_head, int num_kv_heads,
                                              int row_size) {
  const long long page_head = static_cast<long long>(slot / PAGE_SIZE) * num_kv_heads + kv_head;
  return (page_head * PAGE_SIZE + slot % PAGE_SIZE) * row_size;
}

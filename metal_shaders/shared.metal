// What all shaders share; it goes before the text of each.
//
// Pools hold T [page][kv_heads][64][D], a row a slot. A subblock is 32 slots, half a page; a tile is
// a live subblock of the step's list (omnitide/step.py, `Tiles`).
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

constant constexpr int PAGE_ROWS = 64;
constant constexpr int TILE_ROWS = 32;
constant constexpr float LOG2_E = 1.4426950408889634f;

// Score of what a query doesn't see. Finite, because fast arithmetic may take infinities for
// anything.
constant constexpr float LOWEST = -1e30f;

// Number of a subblock's first row among the rows of a pool.
inline size_t first_row_of(int subblock, uint head, uint kv_heads) {
  return (size_t(subblock / 2) * kv_heads + head) * PAGE_ROWS + subblock % 2 * TILE_ROWS;
}

// Number of a slot's row among the rows of a pool.
inline size_t row_of(int slot, uint head, uint kv_heads) {
  return (size_t(slot / PAGE_ROWS) * kv_heads + head) * PAGE_ROWS + slot % PAGE_ROWS;
}

// Row and first column that a lane holds of an 8 x 8 simdgroup matrix; the second is its right
// neighbour. Lanes that differ in bits 0 and 3 alone share a row.
inline int matrix_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline int matrix_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

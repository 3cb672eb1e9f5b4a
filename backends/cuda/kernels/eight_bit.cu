// Keys and values of 8 bits: new rows are packed, and live ones made wide for attention.
//
// Pools of a layer: keys, values int8 [page][kv_head][64][head_dim], un-rotated; key_scales,
// value_scales float [page][kv_head][64]; factors of the keys' channels, float (kv_head, head_dim).
// A key is element * scale * factor, a value element * scale. cosines, sines float
// (slots, head_dim / 2): angles of the cell in each slot, for all layers.
//
// channel_factors  k  T  (num_rows, num_kv_heads, head_dim), tokens k_stride apart
//                  factors, written
//   Grid: a block for each KV head.
//
// pack_rows     k, v  as above; slots int32 (num_queries,), distinct; query_cos, query_sin float
//               (num_queries, head_dim / 2); rows, scales and angles are written at `slots`
//   Grid: (a block for each token and KV head; keys, values).
//   Numerics: float32, every quotient rounded once, elements half to even. A row with NaN or an
//   infinity has such a scale, and so is NaN when it is made wide.
//
// place_angles  slots int32 (num_cells,), distinct; cell_cos, cell_sin float (num_cells, half)
//   Grid: a thread for each angle.
//
// widen         num_tiles, subblocks, masks  of a step
//               rotated, wide_values  T  [page][kv_head][64][head_dim], written at live rows
//   Grid: a thread for WIDTH pairs (i, i + head_dim / 2) of ROWS rows of a tile and KV head.
//   Numerics: keys are rounded to T, turned in float as `append` turns them, and rounded again.
//
// T: __half, __nv_bfloat16, float. WIDTH: elements of 16 bytes of T, or 1 where something is not
// aligned to that.
// Reference: omnitide/backends/reference/eight_bit.py.
#include "cells.cuh"
#include "exact.cuh"
#include "overlap.cuh"
#include "rotation.cuh"
#include "vectors.cuh"

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;
constexpr int PACK_THREADS = 128;                 // of a row in `pack_rows`
constexpr int ROWS = 2;                           // of a thread of `widen`
constexpr int ROW_GROUPS = SUBBLOCK_SIZE / ROWS;  // threads for the rows of a tile

using Element = signed char;

__device__ __forceinline__ float greatest_of_warp(float x) {
#pragma unroll
  for (int apart = WARP / 2; apart > 0; apart /= 2) {
    x = greater_of(x, __shfl_xor_sync(ALL_LANES, x, apart));
  }
  return x;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    channel_factors(const T* k, long long k_stride, float* factors, int num_rows, int num_kv_heads,
                    int head_dim, float least_share, float least) {
  let_successor_start();
  wait_for_predecessor();
  __shared__ float found[WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const T* from = k + static_cast<long long>(blockIdx.x) * head_dim;
  float* to = factors + static_cast<long long>(blockIdx.x) * head_dim;
  for (int first = 0; first < head_dim; first += WARP) {
    const int dim = first + lane;
    float greatest = 0;
    if (dim < head_dim) {
#pragma unroll 4
      for (int row = warp; row < num_rows; row += WARPS) {
        greatest = greater_of(greatest, magnitude_of(to_float(from[row * k_stride + dim])));
      }
    }
    found[warp][lane] = greatest;
    __syncthreads();
    if (warp == 0 && dim < head_dim) {
#pragma unroll
      for (int other = 1; other < WARPS; ++other) {
        greatest = greater_of(greatest, found[other][lane]);
      }
      to[dim] = greatest;
    }
    __syncthreads();
  }
  float greatest = 0;
  for (int dim = lane; dim < head_dim; dim += WARP) greatest = greater_of(greatest, to[dim]);
  // No factor is written before every warp has read them all.
  greatest = greatest_of_warp(greatest);
  __syncthreads();
  least = greater_of(product_of(least_share, greatest), least);
  for (int dim = threadIdx.x; dim < head_dim; dim += THREADS) to[dim] = greater_of(to[dim], least);
}

// The nearest element, half to even; of NaN 0.
__device__ __forceinline__ Element element_of(float x, int most) {
  return static_cast<Element>(max(-most, min(most, __float2int_rn(x))));
}

// By a block: a row's elements and its scale. `value_at(dim)` is an unpacked value.
template <typename Values>
__device__ __forceinline__ void pack_row(Element* elements, float* scale_of_row, int head_dim,
                                         int most, Values value_at) {
  __shared__ float found[PACK_THREADS / WARP];
  float greatest = 0;
  // Not unrolled: quotients call a function, around which values of other turns would be spilled.
#pragma unroll 1
  for (int dim = threadIdx.x; dim < head_dim; dim += PACK_THREADS) {
    greatest = greater_of(greatest, magnitude_of(value_at(dim)));
  }
  greatest = greatest_of_warp(greatest);
  if (threadIdx.x % WARP == 0) found[threadIdx.x / WARP] = greatest;
  __syncthreads();
#pragma unroll
  for (float other : found) greatest = greater_of(greatest, other);
  const float scale = quotient_of(greatest, static_cast<float>(most));
  if (threadIdx.x == 0) *scale_of_row = scale;
  // Above 0, by its bits: a comparison would flush a denormal. Neither 0 nor NaN divides.
  const bool divides = __float_as_uint(scale) - 1 < 0x7f800000u;
  const float step = divides ? scale : 1;
#pragma unroll 1
  for (int dim = threadIdx.x; dim < head_dim; dim += PACK_THREADS) {
    elements[dim] = element_of(quotient_of(value_at(dim), step), most);
  }
}

template <typename T>
__global__ void __launch_bounds__(PACK_THREADS)
    pack_rows(const T* k, const T* v, long long k_stride, long long v_stride, const int* slots,
              const float* query_cos, const float* query_sin, const float* factors,
              signed char* keys, signed char* values, float* key_scales, float* value_scales,
              float* cosines, float* sines, int num_kv_heads, int head_dim, int most) {
  let_successor_start();
  wait_for_predecessor();
  const int head = blockIdx.x % num_kv_heads, query = blockIdx.x / num_kv_heads;
  const int slot = slots[query];
  const long long row = cell_row(slot, head, num_kv_heads, 1);
  const long long first = static_cast<long long>(head) * head_dim;

  if (blockIdx.y == 1) {
    const T* from = v + query * v_stride + first;
    pack_row(values + row * head_dim, value_scales + row, head_dim, most,
             [&](int dim) { return to_float(from[dim]); });
    return;
  }
  const T* from = k + query * k_stride + first;
  pack_row(keys + row * head_dim, key_scales + row, head_dim, most,
           [&](int dim) { return quotient_of(to_float(from[dim]), factors[first + dim]); });
  if (head != 0) return;
  const int half = head_dim / 2;
  const long long given = static_cast<long long>(query) * half;
  const long long kept = static_cast<long long>(slot) * half;
  for (int dim = threadIdx.x; dim < half; dim += PACK_THREADS) {
    cosines[kept + dim] = query_cos[given + dim];
    sines[kept + dim] = query_sin[given + dim];
  }
}

__global__ void __launch_bounds__(THREADS)
    place_angles(const int* slots, const float* cell_cos, const float* cell_sin, float* cosines,
                 float* sines, int num_cells, int half) {
  let_successor_start();
  wait_for_predecessor();
  const long long item = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (item >= static_cast<long long>(num_cells) * half) return;
  const long long to = static_cast<long long>(slots[item / half]) * half + item % half;
  cosines[to] = cell_cos[item];
  sines[to] = cell_sin[item];
}

// Elements as floats. A byte plus 128 becomes the low bits of 2^23, which a difference takes away:
// exact, and faster than a conversion.
template <int WIDTH>
__device__ __forceinline__ void spread(float (&to)[WIDTH], const Vector<Element, WIDTH>& elements) {
  if constexpr (WIDTH % 4 == 0) {
    const auto& words = reinterpret_cast<const Vector<unsigned, WIDTH / 4>&>(elements);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      const unsigned shifted = words.at[i / 4] ^ 0x80808080u;
      const unsigned bits = __byte_perm(shifted, 0x4b000000u, 0x7650 + i % 4);
      to[i] = __uint_as_float(bits) - 8388736.0f;
    }
  } else {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = static_cast<float>(elements.at[i]);
  }
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    widen(const signed char* keys, const signed char* values, const float* key_scales,
          const float* value_scales, const float* factors, const float* cosines, const float* sines,
          const int* num_tiles, const int* subblocks, const unsigned* masks, T* rotated,
          T* wide_values, int max_tiles, int num_kv_heads, int head_dim) {
  let_successor_start();
  wait_for_predecessor();
  const int half = head_dim / 2;
  const int chunks = half / WIDTH;
  int item = blockIdx.x * THREADS + threadIdx.x;
  const int dim = item % chunks * WIDTH;
  item /= chunks;
  const int group = item % ROW_GROUPS;
  item /= ROW_GROUPS;
  const int head = item % num_kv_heads, tile = item / num_kv_heads;
  if (tile >= max_tiles) return;
  const unsigned live = masks[tile];
  const int first_slot = subblocks[tile] * SUBBLOCK_SIZE;
  if (tile >= *num_tiles) return;

  using Packed = Vector<Element, WIDTH>;
  Packed elements[ROWS][4];
  float scales[ROWS][2], cosine[ROWS][WIDTH], sine[ROWS][WIDTH];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int slot = first_slot + i * ROW_GROUPS + group;
    if ((live >> (i * ROW_GROUPS + group) & 1) == 0) continue;
    const long long row = cell_row(slot, head, num_kv_heads, 1);
    const long long at = row * head_dim + dim;
    elements[i][0] = *reinterpret_cast<const Packed*>(keys + at);
    elements[i][1] = *reinterpret_cast<const Packed*>(keys + at + half);
    elements[i][2] = *reinterpret_cast<const Packed*>(values + at);
    elements[i][3] = *reinterpret_cast<const Packed*>(values + at + half);
    scales[i][0] = key_scales[row];
    scales[i][1] = value_scales[row];
    const long long angle = static_cast<long long>(slot) * half + dim;
    load(cosine[i], cosines + angle);
    load(sine[i], sines + angle);
  }
  float factor[2][WIDTH];
  const float* of_head = factors + static_cast<long long>(head) * head_dim + dim;
  load(factor[0], of_head);
  load(factor[1], of_head + half);

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int slot = first_slot + i * ROW_GROUPS + group;
    if ((live >> (i * ROW_GROUPS + group) & 1) == 0) continue;
    const long long at = cell_row(slot, head, num_kv_heads, head_dim) + dim;
    float wide[4][WIDTH];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      spread(wide[part], elements[i][part]);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        wide[part][j] = product_of(wide[part][j], scales[i][part / 2]);
        if (part < 2) {
          const float key = product_of(wide[part][j], factor[part][j]);
          wide[part][j] = to_float(from_float<T>(key));
        }
      }
    }
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      turn_pair(wide[0][j], wide[1][j], cosine[i][j], sine[i][j]);
    }
    store(rotated + at, wide[0]);
    store(rotated + at + half, wide[1]);
    store(wide_values + at, wide[2]);
    store(wide_values + at + half, wide[3]);
  }
}

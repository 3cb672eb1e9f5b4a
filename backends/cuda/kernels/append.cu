// Keys and values of new tokens into one layer's pools, and keys turned anew in all layers.
//
// append  k, v       T  (num_queries, num_kv_heads, head_dim); tokens k_stride, v_stride apart
//         slots      int32 (num_queries,), distinct
//         cosines, sines  float (num_queries, head_dim / 2)
//         keys, rotated, values  T  [page][kv_head][64][head_dim], written at `slots`
//   Grid: one thread for WIDTH pairs (i, i + head_dim / 2) of a token and KV head.
//   Numerics: keys and values are copied bit for bit; rotated keys are turned in float, then
//   rounded.
//
// turn    keys, rotated  tables of pointers, one a layer, to arrays as above
//         slots      int32 (num_cells,), distinct
//         cosines, sines  float (num_cells, head_dim / 2)
//   Grid: (one thread for WIDTH pairs of a cell and KV head; layer).
//   Numerics: as append; the same key and angles give the same bits.
//
// WIDTH elements are 16 bytes, or 1 where something is not aligned to that.
// Reference: omnitide/backends/reference/attention.py, rotate.
#include "cells.cuh"
#include "overlap.cuh"
#include "rotation.cuh"
#include "vectors.cuh"

constexpr int THREADS = 128;

template <int WIDTH>
__device__ __forceinline__ void turn_pairs(float (&first)[WIDTH], float (&second)[WIDTH],
                                           const float (&cosine)[WIDTH],
                                           const float (&sine)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) turn_pair(first[i], second[i], cosine[i], sine[i]);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    append(const T* k, const T* v, long long k_stride, long long v_stride, const int* slots,
           const float* cosines, const float* sines, T* keys, T* rotated, T* values,
           int num_queries, int num_kv_heads, int head_dim) {
  let_successor_start();
  wait_for_predecessor();
  const int half = head_dim / 2;
  const int chunks = half / WIDTH;
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if (item >= num_queries * num_kv_heads * chunks) return;
  const int dim = item % chunks * WIDTH;
  const int head = item / chunks % num_kv_heads;
  const int query = item / chunks / num_kv_heads;

  using Raw = Vector<T, WIDTH>;
  const T* key = k + query * k_stride + static_cast<long long>(head) * head_dim + dim;
  const T* value = v + query * v_stride + static_cast<long long>(head) * head_dim + dim;
  const long long to = cell_row(slots[query], head, num_kv_heads, head_dim) + dim;
  const long long angle = static_cast<long long>(query) * half + dim;
  const Raw value_first = *reinterpret_cast<const Raw*>(value);
  const Raw value_second = *reinterpret_cast<const Raw*>(value + half);
  const Raw key_first = *reinterpret_cast<const Raw*>(key);
  const Raw key_second = *reinterpret_cast<const Raw*>(key + half);
  float cosine[WIDTH], sine[WIDTH], first[WIDTH], second[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    first[i] = to_float(key_first.at[i]);
    second[i] = to_float(key_second.at[i]);
    cosine[i] = cosines[angle + i];  // angles of a step start at any word
    sine[i] = sines[angle + i];
  }
  turn_pairs(first, second, cosine, sine);

  *reinterpret_cast<Raw*>(values + to) = value_first;
  *reinterpret_cast<Raw*>(values + to + half) = value_second;
  *reinterpret_cast<Raw*>(keys + to) = key_first;
  *reinterpret_cast<Raw*>(keys + to + half) = key_second;
  store(rotated + to, first);
  store(rotated + to + half, second);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    turn(const T* const* keys, T* const* rotated, const int* slots, const float* cosines,
         const float* sines, int num_cells, int num_kv_heads, int head_dim) {
  let_successor_start();
  wait_for_predecessor();
  const int half = head_dim / 2;
  const int chunks = half / WIDTH;
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if (item >= num_cells * num_kv_heads * chunks) return;
  const int dim = item % chunks * WIDTH;
  const int head = item / chunks % num_kv_heads;
  const int cell = item / chunks / num_kv_heads;

  const long long at = cell_row(slots[cell], head, num_kv_heads, head_dim) + dim;
  const long long angle = static_cast<long long>(cell) * half + dim;
  const T* from = keys[blockIdx.y] + at;
  T* to = rotated[blockIdx.y] + at;
  float cosine[WIDTH], sine[WIDTH], first[WIDTH], second[WIDTH];
  load(first, from);
  load(second, from + half);
  load(cosine, cosines + angle);
  load(sine, sines + angle);
  turn_pairs(first, second, cosine, sine);
  store(to, first);
  store(to + half, second);
}

// Attention by plain multiply-adds in float, for float32 and for head dims without a tensor-core
// kernel: any even head_dim up to 256. Written to be obviously right.
//
// plain_attend    partial results of a block of rows over every gridDim.z-th live tile
// plain_join      the partial results of each row, put together
// plain_mass      what each cell of a tile receives from all rows of one KV head
// plain_mass_sum  that, summed over KV heads, by cell
// plain_segments  full attention inside segments of consecutive tokens (encoders)
//
// A row is one query of one query head; query head h reads KV head h / (num_heads / num_kv_heads).
// q, out           T (num_queries, num_heads, head_dim)
// rotated, values  T [page][kv_head][64][head_dim]: turned keys, and values
// num_tiles        int32 (1,), read here; max_tiles is what there is room for
// subblocks, least int32 (max_tiles,); masks uint32 (max_tiles,); orders, cells int32 (max_tiles,
// 32) query_orders     int32 (num_queries,); cosines, sines float (num_queries, head_dim / 2)
// greatest, totals float (splits, num_queries * num_heads): of each row the greatest score and the
//                  sum of exp(score - greatest); 0 if it saw nothing
// sums             float (splits, num_queries * num_heads, head_dim): values times exp(...)
// received         float (num_kv_heads, max_tiles, 32)
// blocks           int32 (num_blocks, 4): first row's token, stop of its segment's tokens, start
//                  and stop of its segment's keys
//
// Grid: plain_attend (blocks of 16 rows, kv_head, splits); plain_join (4 rows a block);
// plain_mass (max_tiles, kv_head); plain_mass_sum one thread a slot of a tile; plain_segments
// (num_blocks, head). Dynamic shared memory: 16 queries, a tile of keys, a tile of values.
// Numerics: float throughout; the turned query is rounded to T, as keys are. No atomics: equal
// inputs give equal bits. Rows of dead slots are read as 0, never from memory.
// Reference: omnitide/backends/reference/attention.py.
#include "cells.cuh"
#include "overlap.cuh"
#include "reductions.cuh"
#include "rotation.cuh"
#include "types.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP;
constexpr int BLOCKS = 4;  // of a multiprocessor, by registers
constexpr int WARP_ROWS = 4;
constexpr int BLOCK_ROWS = WARPS * WARP_ROWS;
constexpr int TILE = SUBBLOCK_SIZE;  // one cell a lane
static_assert(TILE == WARP, "a lane scores one cell of a tile");

// CHUNKS * 32 is head_dim, rounded up; what lies past head_dim is 0 in shared memory.
template <int CHUNKS>
constexpr int QUERY_PITCH = CHUNKS * WARP;
template <int CHUNKS>
constexpr int TILE_PITCH = CHUNKS * WARP + 1;  // odd: lanes that read a column don't share a bank

template <int CHUNKS>
struct Shared {
  float* queries;  // of this warp, [WARP_ROWS][QUERY_PITCH]
  float* keys;     // [TILE][TILE_PITCH]
  float* values;   // [TILE][TILE_PITCH]

  __device__ __forceinline__ Shared() {
    extern __shared__ float4 memory[];
    float* start = reinterpret_cast<float*>(memory);
    queries = start + threadIdx.x / WARP * WARP_ROWS * QUERY_PITCH<CHUNKS>;
    keys = start + BLOCK_ROWS * QUERY_PITCH<CHUNKS>;
    values = keys + TILE * TILE_PITCH<CHUNKS>;
  }
};

// What a warp knows of its rows so far. `total` is the lane's own share of the sum.
template <int CHUNKS>
struct RowStates {
  float greatest[WARP_ROWS];
  float total[WARP_ROWS];
  float sum[WARP_ROWS][CHUNKS];  // dims lane, lane + 32, ...

  __device__ __forceinline__ RowStates() {
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      greatest[row] = -infinity();
      total[row] = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) sum[row][chunk] = 0.0f;
    }
  }
};

// A query of this warp into shared memory, turned if there are angles. All lanes take part.
template <int CHUNKS, typename T>
__device__ __forceinline__ void stage_query(float* to, const T* query, const float* cosines,
                                            const float* sines, int head_dim) {
  const int lane = threadIdx.x % WARP;
  const int half = head_dim / 2;
  for (int dim = lane; dim < half; dim += WARP) {
    float first = to_float(query[dim]), second = to_float(query[dim + half]);
    if (cosines != nullptr) turn_pair(first, second, cosines[dim], sines[dim]);
    to[dim] = to_float(from_float<T>(first));
    to[dim + half] = to_float(from_float<T>(second));
  }
  for (int dim = head_dim + lane; dim < QUERY_PITCH<CHUNKS>; dim += WARP) to[dim] = 0.0f;
}

// The live rows of a tile into shared memory, 0 elsewhere. All threads of the block take part.
template <int CHUNKS, typename T>
__device__ __forceinline__ void stage_tile(float* to, const T* first_row, long long row_stride,
                                           unsigned live, int head_dim) {
#pragma unroll 2
  for (int row = threadIdx.x / WARP; row < TILE; row += WARPS) {
    const bool is_live = live >> row & 1;
    for (int dim = threadIdx.x % WARP; dim < QUERY_PITCH<CHUNKS>; dim += WARP) {
      to[row * TILE_PITCH<CHUNKS> + dim] =
          is_live && dim < head_dim ? to_float(first_row[row * row_stride + dim]) : 0.0f;
    }
  }
}

// Scores of this warp's rows with the lane's cell, not yet scaled.
template <int CHUNKS>
__device__ __forceinline__ void score(float (&scores)[WARP_ROWS], const Shared<CHUNKS>& shared,
                                      int head_dim) {
  const float* key = shared.keys + threadIdx.x % WARP * TILE_PITCH<CHUNKS>;
#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) scores[row] = 0.0f;
#pragma unroll 4
  for (int dim = 0; dim < head_dim; dim += 4) {
    const float k0 = key[dim], k1 = key[dim + 1], k2 = key[dim + 2], k3 = key[dim + 3];
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      const float4 query =
          *reinterpret_cast<const float4*>(shared.queries + row * QUERY_PITCH<CHUNKS> + dim);
      scores[row] = fmaf(query.x, k0, scores[row]);
      scores[row] = fmaf(query.y, k1, scores[row]);
      scores[row] = fmaf(query.z, k2, scores[row]);
      scores[row] = fmaf(query.w, k3, scores[row]);
    }
  }
}

// A tile's scores into the states of the rows: `scores` become weights, 0 where a row doesn't see
// the lane's cell, and what was summed before is scaled to the new greatest score.
template <int CHUNKS>
__device__ __forceinline__ void weigh(RowStates<CHUNKS>& states, float (&scores)[WARP_ROWS],
                                      const bool (&sees)[WARP_ROWS], float scale) {
#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) {
    if (!__any_sync(ALL_LANES, sees[row])) {
      scores[row] = 0.0f;
      continue;
    }
    const float scaled = scores[row] * scale;
    const float greatest = fmaxf(states.greatest[row], warp_max(sees[row] ? scaled : -infinity()));
    const float shrink = expf(states.greatest[row] - greatest);
    scores[row] = sees[row] ? expf(scaled - greatest) : 0.0f;
    states.greatest[row] = greatest;
    states.total[row] = fmaf(states.total[row], shrink, scores[row]);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) states.sum[row][chunk] *= shrink;
  }
}

// Adds the tile's values, by the weights that each lane holds of its cell.
template <int CHUNKS>
__device__ __forceinline__ void mix(RowStates<CHUNKS>& states, const float (&weights)[WARP_ROWS],
                                    const Shared<CHUNKS>& shared) {
  const float* values = shared.values + threadIdx.x % WARP;
#pragma unroll 4
  for (int cell = 0; cell < TILE; ++cell) {
    float value[CHUNKS];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      value[chunk] = values[cell * TILE_PITCH<CHUNKS> + chunk * WARP];
    }
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      const float weight = __shfl_sync(ALL_LANES, weights[row], cell);
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        states.sum[row][chunk] = fmaf(weight, value[chunk], states.sum[row][chunk]);
      }
    }
  }
}

// Which query and query head a row of one KV head is. Past the last row: query -1.
struct Row {
  int query, head;

  __device__ __forceinline__ Row(int row, int num_queries, int group, int kv_head)
      : query(row < num_queries * group ? row / group : -1), head(kv_head * group + row % group) {}
};

// The turned queries of a warp's rows into shared memory.
template <int CHUNKS, typename T>
__device__ __forceinline__ void stage_rows(const Shared<CHUNKS>& shared, const T* q,
                                           const float* cosines, const float* sines, int first_row,
                                           int num_queries, int num_heads, int group, int kv_head,
                                           int head_dim) {
#pragma unroll 1
  for (int row = 0; row < WARP_ROWS; ++row) {
    const Row at(first_row + row, num_queries, group, kv_head);
    if (at.query < 0) return;
    const long long query_head = static_cast<long long>(at.query) * num_heads + at.head;
    const long long angle = static_cast<long long>(at.query) * (head_dim / 2);
    stage_query<CHUNKS>(shared.queries + row * QUERY_PITCH<CHUNKS>, q + query_head * head_dim,
                        cosines + angle, sines + angle, head_dim);
  }
}

// First element of a subblock's rows of one KV head.
__device__ __forceinline__ long long tile_start(int subblock, int kv_head, int num_kv_heads,
                                                int head_dim) {
  return cell_row(subblock * SUBBLOCK_SIZE, kv_head, num_kv_heads, head_dim);
}

// Unless it mixes, no value is read and `sums` not written: for the greatest scores and totals.
template <typename T, int CHUNKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    plain_attend(const T* q, const T* rotated, const T* values, const int* num_tiles,
                 const int* subblocks, const unsigned* masks, const int* least, const int* orders,
                 const int* query_orders, const float* cosines, const float* sines, float* greatest,
                 float* totals, float* sums, int num_queries, int num_heads, int num_kv_heads,
                 int head_dim, bool mixes, float scale) {
  let_successor_start();
  wait_for_predecessor();
  const int lane = threadIdx.x % WARP;
  const int kv_head = blockIdx.y;
  const int group = num_heads / num_kv_heads;
  const int first_row = blockIdx.x * BLOCK_ROWS;
  const Shared<CHUNKS> shared;
  RowStates<CHUNKS> states;

  int latest = -1;  // greatest order of the block's queries
  for (int row = first_row; row < first_row + BLOCK_ROWS; ++row) {
    const Row at(row, num_queries, group, kv_head);
    if (at.query >= 0) latest = max(latest, query_orders[at.query]);
  }
  const int warp_row = first_row + threadIdx.x / WARP * WARP_ROWS;
  int row_order[WARP_ROWS];
#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) {
    const Row at(warp_row + row, num_queries, group, kv_head);
    row_order[row] = at.query < 0 ? -1 : query_orders[at.query];
  }
  stage_rows(shared, q, cosines, sines, warp_row, num_queries, num_heads, group, kv_head, head_dim);

  const int tiles = *num_tiles;
  for (int tile = blockIdx.z; tile < tiles; tile += gridDim.z) {
    if (least[tile] > latest) continue;  // no query of the block sees any of it
    const unsigned live = masks[tile];
    const long long start = tile_start(subblocks[tile], kv_head, num_kv_heads, head_dim);
    __syncthreads();  // the tile before has been used
    stage_tile<CHUNKS>(shared.keys, rotated + start, head_dim, live, head_dim);
    if (mixes) stage_tile<CHUNKS>(shared.values, values + start, head_dim, live, head_dim);
    __syncthreads();
    const int order = orders[tile * TILE + lane];
    float weights[WARP_ROWS];
    bool sees[WARP_ROWS];
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      sees[row] = (live >> lane & 1) && order <= row_order[row];
    }
    score(weights, shared, head_dim);
    weigh(states, weights, sees, scale);
    if (mixes) mix(states, weights, shared);
  }

#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) {
    const float total = warp_sum(states.total[row]);
    const Row at(warp_row + row, num_queries, group, kv_head);
    if (at.query < 0) continue;
    const long long split = static_cast<long long>(blockIdx.z) * num_queries * num_heads;
    const long long to = split + static_cast<long long>(at.query) * num_heads + at.head;
    if (lane == 0) {
      greatest[to] = states.greatest[row];
      totals[to] = total;
    }
    if (mixes) {
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        const int dim = chunk * WARP + lane;
        if (dim < head_dim) sums[to * head_dim + dim] = states.sum[row][chunk];
      }
    }
  }
}

// A row over all splits: its greatest score and its total.
struct Joined {
  float greatest, total;

  // What the sums of a split are multiplied by. A split that saw nothing has no greatest score.
  __device__ __forceinline__ float share(float split_greatest, float split_total) const {
    return split_total == 0.0f ? 0.0f : expf(split_greatest - greatest);
  }

  __device__ __forceinline__ Joined(const float* greatest_of, const float* totals, long long row,
                                    long long num_rows, int splits)
      : greatest(-infinity()), total(0.0f) {
    for (int split = 0; split < splits; ++split) {
      greatest = fmaxf(greatest, greatest_of[split * num_rows + row]);
    }
    for (int split = 0; split < splits; ++split) {
      const float part = totals[split * num_rows + row];
      total = fmaf(part, share(greatest_of[split * num_rows + row], part), total);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    plain_join(const float* greatest, const float* totals, const float* sums, T* out, int num_rows,
               int head_dim, int splits) {
  let_successor_start();
  wait_for_predecessor();
  const long long rows = num_rows;
  const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / WARP;
  if (row >= rows) return;
  const Joined joined(greatest, totals, row, rows, splits);
  const float inverse = joined.total == 0.0f ? 0.0f : 1.0f / joined.total;
  for (int dim = threadIdx.x % WARP; dim < head_dim; dim += WARP) {
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) {
      const long long at = split * rows + row;
      sum = fmaf(sums[at * head_dim + dim], joined.share(greatest[at], totals[at]), sum);
    }
    out[row * head_dim + dim] = from_float<T>(sum * inverse);
  }
}

template <typename T, int CHUNKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    plain_mass(const T* q, const T* rotated, const int* num_tiles, const int* subblocks,
               const unsigned* masks, const int* orders, const int* query_orders,
               const float* cosines, const float* sines, const float* greatest, const float* totals,
               float* received, int num_queries, int num_heads, int num_kv_heads, int head_dim,
               int splits, float scale) {
  let_successor_start();
  wait_for_predecessor();
  const int tile = blockIdx.x;
  if (tile >= *num_tiles) return;
  const int lane = threadIdx.x % WARP;
  const int warp = threadIdx.x / WARP;
  const int kv_head = blockIdx.y;
  const int group = num_heads / num_kv_heads;
  const long long num_rows = static_cast<long long>(num_queries) * num_heads;
  const Shared<CHUNKS> shared;

  const unsigned live = masks[tile];
  const bool is_live = live >> lane & 1;
  const int order = orders[tile * TILE + lane];
  const long long start = tile_start(subblocks[tile], kv_head, num_kv_heads, head_dim);
  stage_tile<CHUNKS>(shared.keys, rotated + start, head_dim, live, head_dim);
  __syncthreads();

  float sum = 0.0f;
  for (int first = warp * WARP_ROWS; first < num_queries * group; first += BLOCK_ROWS) {
    __syncwarp();  // the queries before have been used
    stage_rows(shared, q, cosines, sines, first, num_queries, num_heads, group, kv_head, head_dim);
    __syncwarp();
    float scores[WARP_ROWS];
    score(scores, shared, head_dim);
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      const Row at(first + row, num_queries, group, kv_head);
      if (at.query < 0 || !is_live || order > query_orders[at.query]) continue;
      const long long of = static_cast<long long>(at.query) * num_heads + at.head;
      const Joined joined(greatest, totals, of, num_rows, splits);
      sum += expf(scores[row] * scale - joined.greatest) / joined.total;
    }
  }

  __shared__ float sums[WARPS][TILE];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0) return;
  for (int other = 1; other < WARPS; ++other) sum += sums[other][lane];
  received[(static_cast<long long>(kv_head) * gridDim.x + tile) * TILE + lane] = sum;
}

// out float (num_cells,)
__global__ void __launch_bounds__(THREADS)
    plain_mass_sum(const float* received, const int* num_tiles, const int* cells, float* out,
                   int max_tiles, int num_kv_heads) {
  let_successor_start();
  wait_for_predecessor();
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= *num_tiles * TILE || cells[at] < 0) return;
  float sum = 0.0f;
  for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    sum += received[static_cast<long long>(kv_head) * max_tiles * TILE + at];
  }
  out[cells[at]] = sum;
}

// q, out  T (num_tokens, num_heads, head_dim)
// k, v    T (num_keys, num_heads, head_dim)
template <typename T, int CHUNKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    plain_segments(const T* q, const T* k, const T* v, T* out, const int* blocks, int num_heads,
                   int head_dim, float scale) {
  let_successor_start();
  wait_for_predecessor();
  const int lane = threadIdx.x % WARP;
  const int head = blockIdx.y;
  const int first_token = blocks[blockIdx.x * 4] + threadIdx.x / WARP * WARP_ROWS;
  const int stop = blocks[blockIdx.x * 4 + 1];
  const int key_start = blocks[blockIdx.x * 4 + 2];
  const int key_stop = blocks[blockIdx.x * 4 + 3];
  const long long token_size = static_cast<long long>(num_heads) * head_dim;
  const long long head_start = static_cast<long long>(head) * head_dim;
  const Shared<CHUNKS> shared;
  RowStates<CHUNKS> states;
#pragma unroll 1
  for (int row = 0; row < WARP_ROWS && first_token + row < stop; ++row) {
    stage_query<CHUNKS>(shared.queries + row * QUERY_PITCH<CHUNKS>,
                        q + (first_token + row) * token_size + head_start, nullptr, nullptr,
                        head_dim);
  }

  for (int first = key_start; first < key_stop; first += TILE) {
    const unsigned live = key_stop - first >= TILE ? ALL_LANES : (1u << (key_stop - first)) - 1;
    __syncthreads();  // the tile before has been used
    stage_tile<CHUNKS>(shared.keys, k + first * token_size + head_start, token_size, live,
                       head_dim);
    stage_tile<CHUNKS>(shared.values, v + first * token_size + head_start, token_size, live,
                       head_dim);
    __syncthreads();
    float weights[WARP_ROWS];
    bool sees[WARP_ROWS];
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      sees[row] = (live >> lane & 1) && first_token + row < stop;
    }
    score(weights, shared, head_dim);
    weigh(states, weights, sees, scale);
    mix(states, weights, shared);
  }

#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) {
    const float total = warp_sum(states.total[row]);
    if (first_token + row >= stop) continue;
    T* to = out + (first_token + row) * token_size + head_start;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const int dim = chunk * WARP + lane;
      if (dim < head_dim) to[dim] = from_float<T>(states.sum[row][chunk] / total);
    }
  }
}

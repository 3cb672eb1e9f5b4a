// Attention of new tokens over a step's live subblocks, for many queries at once.
//
// q, out       (num_queries, num_heads, D), T; q is turned here by query_cos and query_sin
// rotated      (num_pages, num_kv_heads, 64, D), T: keys turned by their cells' angles
// values       (num_pages, num_kv_heads, 64, D), T
// num_tiles    (1), int; subblocks (T), int; masks (T), unsigned; least, greatest (T), int;
// orders       (T, 32), int, -1 where dead: the live subblocks, see omnitide/step.py `Tiles`;
//              T = max_tiles is room, of which num_tiles are there
// query_orders (num_queries), int; query_cos, query_sin (num_queries, D / 2), float
// parts        (num_parts, num_kv_heads, num_rows, D), float: unscaled sums of each part
// part_ranges  (num_parts, num_kv_heads, num_rows, 2), float: score that a row's sums are relative
//              to, and the row's sum of weights
// T is __half or __nv_bfloat16.
//
// A row is one query of one head; row = query * group + head in its group, so that the heads of a
// KV head share its tiles. A block takes ROWS = 16 * FRAGMENTS * WARPS rows of a KV head. Its
// GROUPS groups of WARPS warps, and with them the gridDim.z parts of the list, take the tiles in
// turn; the groups' sums are merged in shared memory, the parts' by `merge_parts`.
//
// Grid: (num_kv_heads, ceil(num_rows / ROWS), num_parts), the last rows first: they see most.
// Block: 32 * WARPS * GROUPS. With one part `out` is written, else `parts` and `part_ranges`.
// Shared memory: see `PrefillAttention` in prefill.py; `room` is the length of the list in it.
//
// A tile is two live subblocks, not always neighbours. What no row of the block sees is never
// loaded; dead rows are zeros in shared memory and never read. Scores are masked only in subblocks
// with dead rows or with cells that some row of the block doesn't see.
// Numerics: attention_tile.cuh. A query that sees nothing gives 0.
// Reference: backends/reference/attention.py `paged_attention`.

#include "attention_tile.cuh"

constexpr int SUBBLOCK = 32;

// A live subblock that some row of the block sees.
struct __align__(16) Seen {
  int tile;        // index in the step's list; inverted (~) where scores have to be masked
  unsigned block;  // which 32 rows of the pools, seen as blocks of 32 rows
  unsigned live;   // live rows
};

// One of the step's list.
struct Entry {
  unsigned subblock;
  unsigned live;
  int least, greatest;
};

// Turns a row of queries into shared memory, 8 pairs a thread and turn.
template <typename T, int D, int ROWS, int THREADS>
__device__ __forceinline__ void load_queries(unsigned char* to, const T* q, const float* cos,
                                             const float* sin, int first_row, int num_rows,
                                             int group, int num_kv_heads, int kv_head) {
  using Rows = SharedRows<D>;
  constexpr int HALF = D / 16;  // chunks of half a row
#pragma unroll 2
  for (int index = threadIdx.x; index < ROWS * HALF; index += THREADS) {
    const int row = index / HALF, chunk = index % HALF;
    uint4 packed[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (first_row + row < num_rows) {
      const int query = (first_row + row) / group, head = (first_row + row) % group;
      const T* from =
          q + (static_cast<long long>(query) * num_kv_heads * group + kv_head * group + head) * D;
      const int angle = query * (D / 2) + 8 * chunk;
      uint4 raw[2] = {*reinterpret_cast<const uint4*>(from + 8 * chunk),
                      *reinterpret_cast<const uint4*>(from + 8 * (chunk + HALF))};
      const T* x = reinterpret_cast<const T*>(&raw[0]);
      const T* y = reinterpret_cast<const T*>(&raw[1]);
      float turned[2][8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float c = cos[angle + i], s = sin[angle + i];
        const float a = to_float(x[i]), b = to_float(y[i]);
        turned[0][i] = a * c - b * s;
        turned[1][i] = b * c + a * s;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        packed[half] = {pack_two(turned[half][0], turned[half][1], T()),
                        pack_two(turned[half][2], turned[half][3], T()),
                        pack_two(turned[half][4], turned[half][5], T()),
                        pack_two(turned[half][6], turned[half][7], T())};
    }
    *reinterpret_cast<uint4*>(to + Rows::at(row, chunk)) = packed[0];
    *reinterpret_cast<uint4*>(to + Rows::at(row, chunk + HALF)) = packed[1];
  }
}

// Starts copying the K and V rows and the orders of a tile into a stage.
template <typename T, int D, int THREADS>
__device__ __forceinline__ void load_tile(unsigned stage, unsigned stage_orders, const Seen* pair,
                                          int thread, const T* rotated, const T* values,
                                          const int* orders) {
  using Rows = SharedRows<D>;
  const RowCopy<D, THREADS> copy(thread);
#pragma unroll 1  // registers are short
  for (int half = 0; half < 2; ++half) {
    const Seen seen = pair[half];
    const long long first = seen.block * (SUBBLOCK * D * 1ll) + copy.row * D + 8 * copy.chunk;
    const T* key = rotated + first;
    const T* value = values + first;
    const unsigned live = seen.live >> (copy.row % SUBBLOCK);
    const unsigned to = stage + SUBBLOCK * half * Rows::STRIDE;
    copy.template each<SUBBLOCK>([&](int i, unsigned offset) {
      const bool is_live = live >> i & 1;
      copy_async(to + offset, key + i * D, is_live);
      copy_async(to + CELLS * Rows::STRIDE + offset, value + i * D, is_live);
    });
    if (seen.tile < 0 && thread < SUBBLOCK)  // word by word: the step's arrays are not aligned
      copy_word_async(stage_orders + 4 * (SUBBLOCK * half + thread),
                      orders + ~seen.tile * SUBBLOCK + thread);
  }
}

// Hides what a row doesn't see in one half of a tile. A row sees the orders below its limit.
template <int FRAGMENTS>
__device__ __forceinline__ void hide(float (&scores)[FRAGMENTS][CELLS / 8][4], int half,
                                     const int* orders, const unsigned* limits, bool is_empty) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned limit = is_empty ? 0 : limits[16 * f + 8 * r + lane / 4];
#pragma unroll
      for (int n = 0; n < SUBBLOCK / 8; ++n) {
        const int2 order =
            *reinterpret_cast<const int2*>(orders + SUBBLOCK * half + 8 * n + 2 * (lane % 4));
        float (&block)[4] = scores[f][SUBBLOCK / 8 * half + n];
        // Dead rows have order -1, the greatest of all as an unsigned number.
        if (static_cast<unsigned>(order.x) >= limit) block[2 * r] = NOTHING;
        if (static_cast<unsigned>(order.y) >= limit) block[2 * r + 1] = NOTHING;
      }
    }
}

// Adds the sums of the second group of warps to those of the first, lane by lane.
template <int THREADS, typename Warp>
__device__ __forceinline__ void merge_groups(Warp& warp, float* exchange, int group, int thread,
                                             float scale) {
  constexpr int FRAGMENTS = sizeof(warp.most) / sizeof(warp.most[0]);
  constexpr int CHUNKS = Warp::Rows::CHUNKS;
  float* ranges = exchange + FRAGMENTS * CHUNKS * 4 * THREADS;
  if (group == 1) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
#pragma unroll
      for (int i = 0; i < 4 * CHUNKS; ++i)
        exchange[(f * CHUNKS * 4 + i) * THREADS + thread] = warp.out[f][i / 4][i % 4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ranges[(4 * f + r) * THREADS + thread] = warp.most[f][r];
        ranges[(4 * f + 2 + r) * THREADS + thread] = warp.sum[f][2 * r];
      }
    }
  }
  __syncthreads();
  if (group == 1) return;
#pragma unroll
  for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float other = ranges[(4 * f + r) * THREADS + thread];
      warp.move_to(f, r, fmaxf(warp.most[f][r], other), scale);
      const float factor =
          other == NOTHING ? 0.0f : power_of_two((other - warp.most[f][r]) * scale);
      warp.sum[f][2 * r] += factor * ranges[(4 * f + 2 + r) * THREADS + thread];
#pragma unroll
      for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i)
          warp.out[f][n][i] += factor * exchange[((f * CHUNKS + n) * 4 + i) * THREADS + thread];
    }
}

template <typename T, int D, int WARPS, int FRAGMENTS, int GROUPS, int STAGES>
__global__ void __launch_bounds__(32 * WARPS * GROUPS, 1)
    prefill_attention(const T* q, const T* rotated, const T* values, const int* num_tiles,
                      const int* subblocks, const unsigned* masks, const int* least,
                      const int* greatest, const int* orders, const int* query_orders,
                      const float* query_cos, const float* query_sin, T* out, float* parts,
                      float* part_ranges, int num_queries, int max_tiles, int group, int room,
                      float scale) {
  using Rows = SharedRows<D>;
  constexpr int ROWS = 16 * FRAGMENTS * WARPS;
  constexpr int GROUP_THREADS = 32 * WARPS;
  constexpr int THREADS = GROUP_THREADS * GROUPS;
  constexpr int STAGE = 2 * CELLS * Rows::STRIDE;  // bytes: K, then V
  static_assert(GROUPS == 1 || (GROUPS == 2 &&
                                (FRAGMENTS * Rows::CHUNKS + FRAGMENTS) * 4 * GROUP_THREADS * 4 <=
                                    GROUPS * STAGES * STAGE),
                "the sums of a group have to fit into the stages");

  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* query_rows = shared;
  unsigned char* stages = query_rows + ROWS * Rows::STRIDE;
  int* stage_orders = reinterpret_cast<int*>(stages + GROUPS * STAGES * STAGE);
  unsigned* limits = reinterpret_cast<unsigned*>(stage_orders + GROUPS * STAGES * CELLS);
  int* scratch = reinterpret_cast<int*>(limits + ROWS);    // two numbers a warp
  Seen* seen = reinterpret_cast<Seen*>(scratch + 2 * 32);  // `room` of them

  const int num_kv_heads = gridDim.x, kv_head = blockIdx.x;
  const int num_rows = num_queries * group;
  const int first_row = (gridDim.y - 1 - blockIdx.y) * ROWS;
  const int lane = threadIdx.x % 32, warp_in_block = threadIdx.x / 32;
  const int warps = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS;
  const int warp_rows = thread / 32 * 16 * FRAGMENTS;  // first row of this warp in the block
  const int total = *num_tiles;
  const int round = min(THREADS, room);
  // What this thread looks at of the step's list; the first is in flight while orders are reduced.
  const auto read_next = [&](int next) {
    const int tile = next + threadIdx.x;
    Entry entry = {0, 0, 0, 0};
    if (threadIdx.x < round && tile < max_tiles)
      entry = {static_cast<unsigned>(subblocks[tile]), masks[tile], least[tile], greatest[tile]};
    return entry;
  };
  const Entry first_entry = read_next(0);

  // Least and greatest order of the block's queries, and the limit of each row.
  int earliest = 0x7fffffff, latest = -1;
  for (int row = threadIdx.x; row < ROWS; row += THREADS) {
    unsigned limit = 0;
    if (first_row + row < num_rows) {
      const int order = max(query_orders[(first_row + row) / group], -1);
      earliest = min(earliest, order);
      latest = max(latest, order);
      limit = order + 1;
    }
    limits[row] = limit;
  }
  earliest = __reduce_min_sync(~0u, earliest);
  latest = __reduce_max_sync(~0u, latest);
  if (lane == 0) {
    scratch[warp_in_block] = earliest;
    scratch[32 + warp_in_block] = latest;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS * GROUPS; ++i) {
    earliest = min(earliest, scratch[i]);
    latest = max(latest, scratch[32 + i]);
  }

  const unsigned query_base = shared_address(query_rows) + warp_rows * Rows::STRIDE;

  const int num_turns = gridDim.z * GROUPS, turn = blockIdx.z * GROUPS + warps;
  const unsigned group_stages = shared_address(stages) + warps * STAGES * STAGE;
  const int* group_orders = stage_orders + warps * STAGES * CELLS;
  int next = 0, num_pairs = 0;
  const auto load = [&](int pair, int stage) {
    load_tile<T, D, GROUP_THREADS>(group_stages + stage * STAGE,
                                   shared_address(group_orders + stage * CELLS), seen + 2 * pair,
                                   thread, rotated, values, orders);
  };

  // Lists what is seen of the step's list from `next` on, as much as there is room for, and starts
  // the first copies.
  const auto list_seen = [&](Entry entry) {
    int count = 0;
    while (true) {
      const int tile = next + threadIdx.x;
      const bool is_seen = threadIdx.x < round && tile < total && entry.least <= latest;
      const unsigned votes = __ballot_sync(~0u, is_seen);
      __syncthreads();
      if (lane == 0) scratch[warp_in_block] = __popc(votes);
      __syncthreads();
      int place = count + __popc(votes & ((1u << lane) - 1));
#pragma unroll
      for (int i = 0; i < WARPS * GROUPS; ++i) {
        if (i < warp_in_block) place += scratch[i];
        count += scratch[i];
      }
      if (is_seen) {
        const bool is_whole = entry.live == ~0u && entry.greatest <= earliest;
        const unsigned page = entry.subblock / 2 * num_kv_heads + kv_head;
        seen[place] = {is_whole ? tile : ~tile, 2 * page + entry.subblock % 2, entry.live};
      }
      next += round;
      if (next >= total || count + round > room) break;
      entry = read_next(next);
    }
    __syncthreads();
    if (count % 2 == 1) {  // the last tile's other half is empty
      if (threadIdx.x == 0) seen[count] = {~0, seen[count - 1].block, 0};
      ++count;
      __syncthreads();
    }
    num_pairs = count / 2;
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
      const int pair = turn + ahead * num_turns;
      if (pair < num_pairs) load(pair, ahead);
      commit_copies();
    }
  };

  list_seen(first_entry);
  load_queries<T, D, ROWS, THREADS>(query_rows, q, query_cos, query_sin, first_row, num_rows, group,
                                    num_kv_heads, kv_head);
  __syncthreads();
  WarpAttention<T, D, FRAGMENTS, CAN_HOLD<D, FRAGMENTS>> warp;
  warp.start();
  warp.hold(query_base);
  while (true) {
    int stage = 0;
    for (int pair = turn; pair < num_pairs; pair += num_turns) {
      wait_copies<STAGES - 2>();
      sync_warps(1 + warps, GROUP_THREADS);
      const int ahead = pair + (STAGES - 1) * num_turns;
      if (ahead < num_pairs) load(ahead, stage == 0 ? STAGES - 1 : stage - 1);
      commit_copies();

      const unsigned keys = group_stages + stage * STAGE;
      float scores[FRAGMENTS][CELLS / 8][4];
      warp.score(scores, query_base, keys);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (seen[2 * pair + half].tile < 0)
          hide<FRAGMENTS>(scores, half, group_orders + stage * CELLS, limits + warp_rows,
                          seen[2 * pair + half].live == 0);
      warp.weigh(scores, scale);
      warp.mix(scores, keys + CELLS * Rows::STRIDE);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    wait_copies<0>();
    if (next >= total) break;
    list_seen(read_next(next));
  }
  warp.finish();
  __syncthreads();
  if (GROUPS == 2) {
    merge_groups<GROUP_THREADS>(warp, reinterpret_cast<float*>(stages), warps, thread, scale);
    if (warps == 1) return;
  }

  if (gridDim.z == 1) {
    warp.settle(query_rows + warp_rows * Rows::STRIDE);
    for (int index = lane; index < 16 * FRAGMENTS * Rows::CHUNKS; index += 32) {
      const int chunk = index % Rows::CHUNKS, row = warp_rows + index / Rows::CHUNKS;
      if (first_row + row >= num_rows) break;
      const int query = (first_row + row) / group, head = (first_row + row) % group;
      T* to =
          out + (static_cast<long long>(query) * num_kv_heads * group + kv_head * group + head) * D;
      *reinterpret_cast<uint4*>(to + 8 * chunk) =
          *reinterpret_cast<const uint4*>(query_rows + Rows::at(row, chunk));
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + warp_rows + 16 * f + 8 * r + lane / 4;
      if (row >= num_rows) continue;
      const long long place =
          static_cast<long long>(blockIdx.z * num_kv_heads + kv_head) * num_rows + row;
      float2* to = reinterpret_cast<float2*>(parts + place * D + 2 * (lane % 4));
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        to[4 * n] = make_float2(warp.out[f][n][2 * r], warp.out[f][n][2 * r + 1]);
      if (lane % 4 == 0)
        reinterpret_cast<float2*>(part_ranges)[place] =
            make_float2(warp.most[f][r], warp.sum[f][2 * r]);
    }
}

// Merges the parts of each row; a warp takes a row. Grid: (ceil(num_rows / 4), num_kv_heads).
// Block: 128.
template <typename T, int D>
__global__ void __launch_bounds__(128)
    merge_parts(const float* parts, const float* part_ranges, T* out, int num_parts,
                int num_queries, int group, float scale) {
  const int lane = threadIdx.x % 32, num_rows = num_queries * group;
  const int row = blockIdx.x * 4 + threadIdx.x / 32, kv_head = blockIdx.y;
  const int num_kv_heads = gridDim.y;
  if (row >= num_rows) return;
  const long long stride = static_cast<long long>(num_kv_heads) * num_rows;
  const long long place = static_cast<long long>(kv_head) * num_rows + row;
  const float2* ranges = reinterpret_cast<const float2*>(part_ranges);
  float most = NOTHING;
  for (int part = 0; part < num_parts; ++part) most = fmaxf(most, ranges[part * stride + place].x);
  constexpr int PAIRS = (D / 2 + 31) / 32;  // of neighbours, a lane
  float2 mixed[PAIRS] = {};
  float sum = 0.0f;
  for (int part = 0; part < num_parts; ++part) {
    const float2 range = ranges[part * stride + place];
    if (range.x == NOTHING) continue;
    const float factor = power_of_two((range.x - most) * scale);
    sum += factor * range.y;
    const float2* from = reinterpret_cast<const float2*>(parts + (part * stride + place) * D);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i)
      if (lane + 32 * i < D / 2) {
        const float2 x = from[lane + 32 * i];
        mixed[i].x += factor * x.x;
        mixed[i].y += factor * x.y;
      }
  }
  const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
  const int query = row / group, head = row % group;
  unsigned* to = reinterpret_cast<unsigned*>(
      out + (static_cast<long long>(query) * num_kv_heads * group + kv_head * group + head) * D);
#pragma unroll
  for (int i = 0; i < PAIRS; ++i)
    if (lane + 32 * i < D / 2)
      to[lane + 32 * i] = pack_two(mixed[i].x * factor, mixed[i].y * factor, T());
}

// Attention of many new tokens over the live cells of a paged cache, on Hopper (sm_90a).
//
//   q, out      T, (num_queries, num_heads, D); q un-rotated
//   rotated     T, [page][kv_head][64][D], keys turned by their cells' angles; read through key_map
//   values      T, same shape; read through value_map, and directly where a subblock has dead rows
//   key_map, value_map   the pools as [rows][D], boxes of 32 rows by 64 columns, 128-byte swizzle
//   num_tiles, subblocks, masks, least, greatest, orders, query_orders, query_cos, query_sin
//               a step (see device_step.py); int32, uint32 (masks) and float32 (cos, sin)
//   partials    float32, room for 2 * gridDim.x query tiles; tickets int32, two a query tile, all
//   zero
//               before and after
// Grid: one block of 384 threads a multiprocessor. Shared memory: Layout<D>::bytes.
//
// The query heads of a KV head are packed: row r of its queries is token r / group, head r % group.
// A query tile is 128 such rows, a block of cells four live subblocks. The blocks that all query
// tiles of all KV heads see are laid end to end, and every thread block takes an equal run of them;
// a query tile that is cut is put together by the thread block that finishes it last, in a fixed
// order. Warpgroup 0 fetches, warpgroups 1 and 2 compute 64 rows each: scores of the next block are
// in the tensor cores beside the values of the last, while the softmax of one warpgroup hides
// behind the products of the other.
//
// Numerics: products in T with float accumulators, softmax in float (base 2), probabilities rounded
// to T. Subblocks that no row of the query tile sees are never fetched, dead rows of values are
// zeros, scores of unseen cells are set to -inf. A query that sees nothing gives 0. Reference:
// omnitide/backends/reference, attention.
#include "hopper.cuh"

constexpr int SUBBLOCK = 32;
constexpr int PAGE = 64;
constexpr int ROWS = 128;
constexpr int CELLS = 128;
constexpr int SLOTS = CELLS / SUBBLOCK;
constexpr int THREADS = 384;
constexpr int WARPS = THREADS / 32;
constexpr int NEVER = 0x7fffffff;  // as an order: after all others
constexpr int PRODUCERS = 1;  // named barriers: the fetching warpgroup; then each of the others
constexpr int TURNS = 4;      // whose turn it is to issue products
constexpr unsigned FULL = 0xffffffffu;

template <int D>
struct Layout {
  static constexpr int HALVES = D / 64;  // runs of 64 columns, each a swizzled tile of its own
  static constexpr int STAGES = D == 128 ? 2 : 4;
  static constexpr int HALF_BYTES = CELLS * 128;
  static constexpr int BLOCK_BYTES = HALVES * HALF_BYTES;
  static constexpr int GROUP_HALF_BYTES = 64 * 128;
  static constexpr int GROUP_BYTES = HALVES * GROUP_HALF_BYTES;
  static constexpr int KEYS = 2 * GROUP_BYTES;
  static constexpr int VALUES = KEYS + STAGES * BLOCK_BYTES;
  static constexpr int ORDERS = VALUES + STAGES * BLOCK_BYTES;
  static constexpr int BARRIERS = ORDERS + STAGES * CELLS * 4;
  static constexpr int PLAN = BARRIERS + STAGES * 4 * 8 + 16;
};

// What the query tiles see, in shared memory.
struct Plan {
  int num_query_tiles;
  int num_tiles;
  int* first;    // blocks of the query tiles before; one more entry
  int* visible;  // subblocks seen
  int* partial;  // of these, with cells that some row does not see
  int* low;      // least and greatest order of the rows
  int* high;
  int* least;            // of each subblock
  int* seen_from;        // order from which all 32 rows are seen; NEVER if some are dead
  unsigned short* list;  // subblocks of the present query tile, the partial ones first
};

// The run of blocks of one thread block, query tile by query tile.
struct Work {
  int position, end;
  int head, tile;
  int start, from, to;  // first block of the query tile; blocks of it to do

  __device__ __forceinline__ static int run_start(int worker, int workers, int total) {
    return static_cast<int>(static_cast<long long>(worker) * total / workers);
  }
  __device__ __forceinline__ static int owner(int block, int workers, int total) {
    return static_cast<int>((static_cast<long long>(block + 1) * workers - 1) / total);
  }

  __device__ __forceinline__ void begin(const Plan& plan, int workers, int total) {
    position = run_start(blockIdx.x, workers, total);
    end = run_start(blockIdx.x + 1, workers, total);
    const int per_head = plan.first[plan.num_query_tiles];
    head = position / per_head;
    int low = 0, high = plan.num_query_tiles;  // first[low] <= offset < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (plan.first[middle] <= position - head * per_head) {
        low = middle;
      } else {
        high = middle;
      }
    }
    tile = low;
    locate(plan);
  }
  __device__ __forceinline__ bool more() const { return position < end; }
  __device__ __forceinline__ void next(const Plan& plan) {
    position = start + to;
    if (++tile == plan.num_query_tiles) {
      tile = 0;
      ++head;
    }
    locate(plan);
  }
  __device__ __forceinline__ void locate(const Plan& plan) {
    start = head * plan.first[plan.num_query_tiles] + plan.first[tile];
    from = position - start;
    to = min(end - start, blocks(plan));
  }
  __device__ __forceinline__ int blocks(const Plan& plan) const {
    return plan.first[tile + 1] - plan.first[tile];
  }
  // Slots before the first subblock, so that the last block is a full one.
  __device__ __forceinline__ int padding(const Plan& plan) const {
    return blocks(plan) * SLOTS - plan.visible[tile];
  }
  // Blocks that need masks; they come first.
  __device__ __forceinline__ int masked(const Plan& plan) const {
    return (padding(plan) + plan.partial[tile] + SLOTS - 1) / SLOTS;
  }
};

// Fills `plan`; all threads.
__device__ __forceinline__ void make_plan(const Plan& plan, const unsigned* masks, const int* least,
                                          const int* greatest, const int* query_orders,
                                          int max_tiles, int num_rows, int group) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < max_tiles; i += THREADS) {
    const int first = least[i];
    const int last = masks[i] == FULL ? greatest[i] : NEVER;
    if (i < plan.num_tiles) {
      plan.least[i] = first;
      plan.seen_from[i] = last;
    }
  }
  for (int tile = warp; tile < plan.num_query_tiles; tile += WARPS) {
    const int stop = (min(num_rows, (tile + 1) * ROWS) - 1) / group;
    int low = NEVER;
    int high = -1;
    for (int token = tile * ROWS / group + lane; token <= stop; token += 32) {
      low = min(low, query_orders[token]);
      high = max(high, query_orders[token]);
    }
    low = __reduce_min_sync(FULL, low);
    high = __reduce_max_sync(FULL, high);
    if (lane == 0) {
      plan.low[tile] = low;
      plan.high[tile] = high;
    }
  }
  __syncthreads();
  for (int tile = warp; tile < plan.num_query_tiles; tile += WARPS) {
    const int low = plan.low[tile];
    const int high = plan.high[tile];
    int visible = 0;
    int partial = 0;
#pragma unroll 4
    for (int i = lane; i < plan.num_tiles; i += 32) {
      const bool seen = plan.least[i] <= high;
      visible += seen;
      partial += seen && plan.seen_from[i] > low;
    }
    visible = __reduce_add_sync(FULL, visible);
    partial = __reduce_add_sync(FULL, partial);
    if (lane == 0) {
      plan.visible[tile] = visible;
      plan.partial[tile] = partial;
    }
  }
  __syncthreads();
  if (warp == 0) {
    int before = 0;
    for (int base = 0; base < plan.num_query_tiles; base += 32) {
      const int tile = base + lane;
      // A tile that sees nothing has one block all the same: its zeros must be written.
      int sum = tile < plan.num_query_tiles ? max(1, (plan.visible[tile] + SLOTS - 1) / SLOTS) : 0;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(FULL, sum, step);
        if (lane >= step) sum += other;
      }
      if (tile < plan.num_query_tiles) plan.first[tile + 1] = before + sum;
      before += __shfl_sync(FULL, sum, 31);
    }
    if (lane == 0) plan.first[0] = 0;
  }
  __syncthreads();
}

// Fills `plan.list`; one warp.
__device__ __forceinline__ void list_visible(const Plan& plan, int tile) {
  const int lane = threadIdx.x % 32;
  const unsigned before = (1u << lane) - 1;
  const int low = plan.low[tile];
  const int high = plan.high[tile];
  int masked = 0;
  int whole = plan.partial[tile];
  for (int base = 0; base < plan.num_tiles; base += 32) {
    const int i = base + lane;
    const bool seen = i < plan.num_tiles && plan.least[i] <= high;
    const bool part = seen && plan.seen_from[i] > low;
    const unsigned parts = __ballot_sync(FULL, part);
    const unsigned wholes = __ballot_sync(FULL, seen && !part);
    if (part) plan.list[masked + __popc(parts & before)] = i;
    if (seen && !part) plan.list[whole + __popc(wholes & before)] = i;
    masked += __popc(parts);
    whole += __popc(wholes);
  }
}

// The barriers of one stage's keys and values: filled, and free again.
template <int D>
struct Stages {
  unsigned base;

  __device__ __forceinline__ static int stage(int n) { return n % Layout<D>::STAGES; }
  __device__ __forceinline__ static int parity(int n) { return n / Layout<D>::STAGES % 2; }
  __device__ __forceinline__ unsigned barrier(int kind, int n) const {
    return base + (kind * Layout<D>::STAGES + stage(n)) * 8;
  }
  __device__ __forceinline__ unsigned keys_full(int n) const { return barrier(0, n); }
  __device__ __forceinline__ unsigned keys_free(int n) const { return barrier(1, n); }
  __device__ __forceinline__ unsigned values_full(int n) const { return barrier(2, n); }
  __device__ __forceinline__ unsigned values_free(int n) const { return barrier(3, n); }
};

// The fetching warpgroup: warp w brings subblock w of every block.
template <typename T, int D>
__device__ __forceinline__ void fetch(const Plan& plan, Work work, Stages<D> stages,
                                      unsigned shared, int* cell_orders, const TensorMap& key_map,
                                      const TensorMap& value_map, const T* values,
                                      const int* subblocks, const unsigned* masks,
                                      const int* orders, int num_kv_heads) {
  using L = Layout<D>;
  const int slot = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int place = slot * SUBBLOCK * 128;
  int n = 0;
  for (; work.more(); work.next(plan)) {
    sync_named(PRODUCERS, 128);
    if (slot == 0) list_visible(plan, work.tile);
    sync_named(PRODUCERS, 128);
    const int padding = work.padding(plan);
    const int masked = work.masked(plan);
    for (int base = work.from; base < work.to; base += 32) {
      // Each lane looks one block up, for all lanes.
      const int index = (base + lane) * SLOTS + slot - padding;
      const bool any = base + lane < work.to && index >= 0;
      const int listed = any ? plan.list[index] : -1;
      const int subblock = any ? subblocks[listed] : 0;
      const unsigned mask = any ? masks[listed] : 0;
      const int row = ((subblock / 2) * num_kv_heads + work.head) * PAGE + subblock % 2 * SUBBLOCK;
      const int stop = min(32, work.to - base);
      for (int i = 0; i < stop; ++i, ++n) {
        const int tile = __shfl_sync(FULL, listed, i);
        const int first_row = __shfl_sync(FULL, row, i);
        const unsigned live = __shfl_sync(FULL, mask, i);
        const int stage = stages.stage(n);
        const int parity = stages.parity(n) ^ 1;

        const unsigned keys = shared + L::KEYS + stage * L::BLOCK_BYTES + place;
        wait_phase(stages.keys_free(n), parity);
        if (lane == 0 && tile >= 0) {
          expect_bytes(stages.keys_full(n), SUBBLOCK * D * 2);
#pragma unroll
          for (int half = 0; half < L::HALVES; ++half)
            copy_box(keys + half * L::HALF_BYTES, key_map, half * 64, first_row,
                     stages.keys_full(n));
        }
        if (base + i < masked) {
          const bool alive = live >> lane & 1;
          cell_orders[stage * CELLS + slot * SUBBLOCK + lane] =
              alive ? orders[tile * SUBBLOCK + lane] : NEVER;
          __syncwarp();
        }
        if (lane == 0) arrive(stages.keys_full(n));

        const unsigned to = shared + L::VALUES + stage * L::BLOCK_BYTES + place;
        wait_phase(stages.values_free(n), parity);
        if (live == FULL) {
          if (lane == 0) {
            expect_bytes(stages.values_full(n), SUBBLOCK * D * 2);
#pragma unroll
            for (int half = 0; half < L::HALVES; ++half)
              copy_box(to + half * L::HALF_BYTES, value_map, half * 64, first_row,
                       stages.values_full(n));
          }
        } else {
          // Dead rows may hold NaN, and 0 times NaN is NaN: they become zeros here.
          constexpr int CHUNKS = D / 8;
          for (int chunk = lane; chunk < SUBBLOCK * CHUNKS; chunk += 32) {
            const int r = chunk / CHUNKS;
            const int c = chunk % CHUNKS;
            copy_or_clear(to + c / 8 * L::HALF_BYTES + r * 128 + (c % 8 ^ r % 8) * 16,
                          values + static_cast<long long>(first_row + r) * D + c * 8,
                          live >> r & 1);
          }
          wait_copies();
          fence_for_products();
          __syncwarp();
        }
        if (lane == 0) arrive(stages.values_full(n));
      }
    }
  }
}

// Rotated queries of one warpgroup's 64 rows into shared memory; rows past the end become zeros.
template <typename T, int D>
__device__ __forceinline__ void load_queries(unsigned to, const T* q, const float* query_cos,
                                             const float* query_sin, int first_row, int num_rows,
                                             int head, int group, int num_heads) {
  constexpr int PAIRS = D / 16;  // chunks of 8 elements in half a head
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 64 * PAIRS / 128; ++i) {
    const int task = i * 128 + thread;
    const int r = task / PAIRS;
    const int c = task % PAIRS;
    uint4 chunks[2] = {};
    if (first_row + r < num_rows) {
      const int token = (first_row + r) / group;
      const int lane_head = head * group + (first_row + r) % group;
      const T* from = q + (static_cast<long long>(token) * num_heads + lane_head) * D + c * 8;
      chunks[0] = *reinterpret_cast<const uint4*>(from);
      chunks[1] = *reinterpret_cast<const uint4*>(from + D / 2);
      float cos[8], sin[8];
      const int at = token * (D / 2) + c * 8;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        cos[j] = query_cos[at + j];  // not aligned to more than 4 bytes
        sin[j] = query_sin[at + j];
      }
      T* x = reinterpret_cast<T*>(chunks);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float a = to_float(x[j]);
        const float b = to_float(x[j + 8]);
        x[j] = from_float<T>(a * cos[j] - b * sin[j]);
        x[j + 8] = from_float<T>(b * cos[j] + a * sin[j]);
      }
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int chunk = c + part * PAIRS;
      const unsigned at =
          to + chunk / 8 * Layout<D>::GROUP_HALF_BYTES + r * 128 + (chunk % 8 ^ r % 8) * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(chunks[part].x),
                   "r"(chunks[part].y), "r"(chunks[part].z), "r"(chunks[part].w)
                   : "memory");
    }
  }
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// Running maximum (of raw scores) and sum of a thread's two rows.
struct Softmax {
  float top[2];
  float sum[2];  // of this thread's columns only

  __device__ __forceinline__ void clear() {
    top[0] = top[1] = minus_infinity();
    sum[0] = sum[1] = 0.f;
  }
  // Scores become probabilities against the new maximum; `decay` is what the past shrinks by.
  __device__ __forceinline__ void update(float (&s)[64], float scale, float (&decay)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float best[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) best[i] = fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]);
#pragma unroll
      for (int j = 4; j < 16; ++j)
        best[j % 4] = fmaxf(best[j % 4], fmaxf(s[4 * j + 2 * row], s[4 * j + 2 * row + 1]));
      float now = fmaxf(fmaxf(best[0], best[1]), fmaxf(best[2], best[3]));
      now = fmaxf(now, __shfl_xor_sync(FULL, now, 1));
      now = fmaxf(now, __shfl_xor_sync(FULL, now, 2));
      now = fmaxf(now, top[row]);
      const float base = now == minus_infinity() ? 0.f : now * scale;
      decay[row] = power_of_two(top[row] * scale - base);
      top[row] = now;
      float total[4] = {};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& x = s[4 * j + 2 * row + k];
          x = power_of_two(x * scale - base);
          total[j % 2 * 2 + k] += x;
        }
      }
      sum[row] = sum[row] * decay[row] + ((total[0] + total[1]) + (total[2] + total[3]));
    }
  }

  // Sums over the four threads of a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(FULL, sum[row], 1);
      sum[row] += __shfl_xor_sync(FULL, sum[row], 2);
    }
  }
};

template <int D>
__device__ __forceinline__ void shrink(float (&o)[D / 2], const float (&decay)[2]) {
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] *= decay[i / 2 % 2];
}

// Scores of cells that a row does not see become -inf.
__device__ __forceinline__ void hide(float (&s)[64], const int* cell_orders, const int (&mine)[2]) {
  const int pair = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int2 order = *reinterpret_cast<const int2*>(cell_orders + j * 8 + pair * 2);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (order.x > mine[row]) s[4 * j + 2 * row] = minus_infinity();
      if (order.y > mine[row]) s[4 * j + 2 * row + 1] = minus_infinity();
    }
  }
}

template <typename T>
__device__ __forceinline__ void round_scores(const float (&s)[64], unsigned (&p)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = pack_two(s[2 * i], s[2 * i + 1], T());
}

// One part of a cut query tile, in each thread's own order.
template <int D>
__device__ __forceinline__ float4* part_of(float* partials, int worker, int which, int group) {
  return reinterpret_cast<float4*>(partials) +
         (static_cast<long long>(worker * 2 + which) * 2 + group) * (D / 8 + 1) * 128 +
         threadIdx.x % 128;
}

template <int D>
__device__ __forceinline__ void store_part(float4* part, const float (&o)[D / 2],
                                           const Softmax& softmax) {
#pragma unroll
  for (int i = 0; i < D / 8; ++i)
    __stcg(part + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
  __stcg(part + D / 8 * 128,
         make_float4(softmax.top[0], softmax.top[1], softmax.sum[0], softmax.sum[1]));
}

template <int D>
__device__ __forceinline__ void add_part(const float4* part, float (&o)[D / 2], Softmax& softmax,
                                         float scale) {
  const float4 other = __ldcg(part + D / 8 * 128);
  const float tops[2] = {other.x, other.y};
  const float sums[2] = {other.z, other.w};
  float mine[2], theirs[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float now = fmaxf(softmax.top[row], tops[row]);
    const float base = now == minus_infinity() ? 0.f : now * scale;
    mine[row] = power_of_two(softmax.top[row] * scale - base);
    theirs[row] = power_of_two(tops[row] * scale - base);
    softmax.top[row] = now;
    softmax.sum[row] = softmax.sum[row] * mine[row] + sums[row] * theirs[row];
  }
#pragma unroll
  for (int i = 0; i < D / 8; ++i) {
    const float4 add = __ldcg(part + i * 128);
    o[4 * i] = o[4 * i] * mine[0] + add.x * theirs[0];
    o[4 * i + 1] = o[4 * i + 1] * mine[0] + add.y * theirs[0];
    o[4 * i + 2] = o[4 * i + 2] * mine[1] + add.z * theirs[1];
    o[4 * i + 3] = o[4 * i + 3] * mine[1] + add.w * theirs[1];
  }
}

// Divides by the sums and writes 64 rows through shared memory, 16 bytes a thread.
template <typename T, int D>
__device__ __forceinline__ void write_rows(unsigned staging, float (&o)[D / 2],
                                           const Softmax& softmax, T* out, int barrier,
                                           int first_row, int num_rows, int head, int group,
                                           int num_heads) {
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  float inverse[2];
#pragma unroll
  for (int row = 0; row < 2; ++row)
    inverse[row] = softmax.sum[row] > 0.f ? 1.f / softmax.sum[row] : 0.f;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int r = thread / 32 * 16 + lane / 4 + row * 8;
      const unsigned at = staging + j / 8 * Layout<D>::GROUP_HALF_BYTES + r * 128 +
                          (j % 8 ^ r % 8) * 16 + lane % 4 * 4;
      const unsigned both =
          pack_two(o[4 * j + 2 * row] * inverse[row], o[4 * j + 2 * row + 1] * inverse[row], T());
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(both) : "memory");
    }
  }
  sync_named(barrier, 128);
  constexpr int CHUNKS = D / 8;
#pragma unroll
  for (int i = 0; i < 64 * CHUNKS / 128; ++i) {
    const int task = i * 128 + thread;
    const int r = task / CHUNKS;
    const int c = task % CHUNKS;
    if (first_row + r < num_rows) {
      uint4 chunk;
      const unsigned at =
          staging + c / 8 * Layout<D>::GROUP_HALF_BYTES + r * 128 + (c % 8 ^ r % 8) * 16;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                   : "r"(at)
                   : "memory");
      const int token = (first_row + r) / group;
      const int lane_head = head * group + (first_row + r) % group;
      *reinterpret_cast<uint4*>(out + (static_cast<long long>(token) * num_heads + lane_head) * D +
                                c * 8) = chunk;
    }
  }
  sync_named(barrier, 128);
}

template <typename T, int D>
__device__ __forceinline__ void issue_scores(float (&s)[64], unsigned queries, unsigned keys) {
  using L = Layout<D>;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const unsigned long long a = describe(queries + k / 4 * L::GROUP_HALF_BYTES + k % 4 * 32, 0);
    const unsigned long long b = describe(keys + k / 4 * L::HALF_BYTES + k % 4 * 32, 0);
    if (k == 0) {
      multiply<0>(s, a, b, T());
    } else {
      multiply<1>(s, a, b, T());
    }
  }
  commit_products();
}

template <typename T, int D>
__device__ __forceinline__ void issue_values(float (&o)[D / 2], const unsigned (&p)[32],
                                             unsigned values) {
#pragma unroll
  for (int k = 0; k < CELLS / 16; ++k)
    multiply_add(o, p + 4 * k, describe(values + k * 16 * 128, Layout<D>::HALF_BYTES), T());
  commit_products();
}

// A computing warpgroup, `side` 0 or 1: 64 rows of every query tile.
template <typename T, int D, bool TAKE_TURNS>
__device__ __forceinline__ void compute(const Plan& plan, Work work, Stages<D> stages,
                                        unsigned shared, const int* cell_orders, int* last_flags,
                                        const T* q, T* out, const int* query_orders,
                                        const float* query_cos, const float* query_sin,
                                        float* partials, int* tickets, int num_rows, int group,
                                        int num_heads, int workers, int total, float scale) {
  using L = Layout<D>;
  const int side = threadIdx.x / 128 - 1;
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const int barrier = PRODUCERS + 1 + side;
  const unsigned queries = shared + side * L::GROUP_BYTES;
  const unsigned keys = shared + L::KEYS;
  const unsigned values = shared + L::VALUES;
  float s[64], o[D / 2];
  unsigned p[32];
  float decay[2];
  Softmax softmax;
  int n = 0;
  if (TAKE_TURNS && side == 1) arrive_named(TURNS, 256);
  for (; work.more(); work.next(plan)) {
    const int first_row = work.tile * ROWS + side * 64;
    load_queries<T, D>(queries, q, query_cos, query_sin, first_row, num_rows, work.head, group,
                       num_heads);
    int mine[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int r = first_row + thread / 32 * 16 + lane / 4 + row * 8;
      mine[row] = r < num_rows ? query_orders[r / group] : -1;
    }
    fence_for_products();
    sync_named(barrier, 128);
    const int masked = work.masked(plan);
    softmax.clear();
#pragma unroll
    for (int i = 0; i < D / 2; ++i) o[i] = 0.f;

    wait_phase(stages.keys_full(n), stages.parity(n));
    pin(s);
    begin_products();
    issue_scores<T, D>(s, queries, keys + stages.stage(n) * L::BLOCK_BYTES);
    wait_products<0>(s);
    if (work.from < masked) {
      hide(s, cell_orders + stages.stage(n) * CELLS, mine);
      __syncwarp();
    }
    if (lane == 0) arrive(stages.keys_free(n));
    softmax.update(s, scale, decay);
    round_scores<T>(s, p);

    for (int block = work.from + 1; block < work.to; ++block) {
      ++n;
      wait_phase(stages.values_full(n - 1), stages.parity(n - 1));
      wait_phase(stages.keys_full(n), stages.parity(n));
      if (TAKE_TURNS) sync_named(TURNS + side, 256);
      pin(s);
      pin(o);
      pin(p);
      begin_products();
      issue_scores<T, D>(s, queries, keys + stages.stage(n) * L::BLOCK_BYTES);
      issue_values<T, D>(o, p, values + stages.stage(n - 1) * L::BLOCK_BYTES);
      if (TAKE_TURNS) arrive_named(TURNS + 1 - side, 256);
      wait_products<1>(s);
      if (block < masked) {
        hide(s, cell_orders + stages.stage(n) * CELLS, mine);
        __syncwarp();
      }
      if (lane == 0) arrive(stages.keys_free(n));
      softmax.update(s, scale, decay);
      wait_products<0>(o);
      pin(p);
      if (lane == 0) arrive(stages.values_free(n - 1));
      shrink<D>(o, decay);
      round_scores<T>(s, p);
    }
    wait_phase(stages.values_full(n), stages.parity(n));
    pin(o);
    pin(p);
    begin_products();
    issue_values<T, D>(o, p, values + stages.stage(n) * L::BLOCK_BYTES);
    wait_products<0>(o);
    if (lane == 0) arrive(stages.values_free(n));
    ++n;
    softmax.finish();

    bool last = true;
    if (work.from > 0 || work.to < work.blocks(plan)) {
      store_part<D>(part_of<D>(partials, blockIdx.x, work.from > 0 ? 0 : 1, side), o, softmax);
      __threadfence();
      sync_named(barrier, 128);
      const int first = Work::owner(work.start, workers, total);
      const int stop = Work::owner(work.start + work.blocks(plan) - 1, workers, total);
      if (thread == 0) {
        int* ticket = tickets + (work.head * plan.num_query_tiles + work.tile) * 2 + side;
        const bool all = atomicAdd(ticket, 1) == stop - first;
        if (all) *ticket = 0;
        last_flags[side] = all;
      }
      sync_named(barrier, 128);
      last = last_flags[side];
      if (last) {
        __threadfence();
        softmax.clear();
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] = 0.f;
        for (int worker = first; worker <= stop; ++worker) {
          const bool cut = Work::run_start(worker, workers, total) > work.start;
          add_part<D>(part_of<D>(partials, worker, cut ? 0 : 1, side), o, softmax, scale);
        }
      }
    }
    if (last)
      write_rows<T, D>(queries, o, softmax, out, barrier, first_row, num_rows, work.head, group,
                       num_heads);
  }
  if (TAKE_TURNS && side == 0) sync_named(TURNS, 256);
}

template <typename T, int D, bool TAKE_TURNS>
__global__ void __launch_bounds__(THREADS, 1)
    prefill_attention_hopper(const T* q, const __grid_constant__ TensorMap key_map,
                             const __grid_constant__ TensorMap value_map, const T* values, T* out,
                             const int* num_tiles, const int* subblocks, const unsigned* masks,
                             const int* least, const int* greatest, const int* orders,
                             const int* query_orders, const float* query_cos,
                             const float* query_sin, float* partials, int* tickets, int num_queries,
                             int num_heads, int num_kv_heads, int max_tiles, int least_share,
                             float scale) {
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const unsigned shared = shared_address(memory);
  const int group = num_heads / num_kv_heads;
  const int num_rows = num_queries * group;
  const Stages<D> stages{shared + L::BARRIERS};
  int* cell_orders = reinterpret_cast<int*>(memory + L::ORDERS);
  int* last_flags = reinterpret_cast<int*>(memory + L::PLAN) - 4;
  Plan plan;
  plan.num_query_tiles = (num_rows + ROWS - 1) / ROWS;
  plan.num_tiles = *num_tiles;
  plan.first = reinterpret_cast<int*>(memory + L::PLAN);
  plan.visible = plan.first + plan.num_query_tiles + 1;
  plan.partial = plan.visible + plan.num_query_tiles;
  plan.low = plan.partial + plan.num_query_tiles;
  plan.high = plan.low + plan.num_query_tiles;
  plan.least = plan.high + plan.num_query_tiles;
  plan.seen_from = plan.least + max_tiles;
  plan.list = reinterpret_cast<unsigned short*>(plan.seen_from + max_tiles);

  if (threadIdx.x == 0) {
    prefetch_map(key_map);
    prefetch_map(value_map);
#pragma unroll
    for (int stage = 0; stage < L::STAGES; ++stage) {
      init_barrier(stages.keys_full(stage), SLOTS);
      init_barrier(stages.keys_free(stage), 8);
      init_barrier(stages.values_full(stage), SLOTS);
      init_barrier(stages.values_free(stage), 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  make_plan(plan, masks, least, greatest, query_orders, max_tiles, num_rows, group);

  const int total = plan.first[plan.num_query_tiles] * num_kv_heads;
  const int workers = min(static_cast<int>(gridDim.x), max(1, total / least_share));
  if (blockIdx.x >= workers) return;
  Work work;
  work.begin(plan, workers, total);
  if (threadIdx.x < 128) {
    give_registers<40>();
    fetch<T, D>(plan, work, stages, shared, cell_orders, key_map, value_map, values, subblocks,
                masks, orders, num_kv_heads);
  } else {
    take_registers<232>();
    compute<T, D, TAKE_TURNS>(plan, work, stages, shared, cell_orders, last_flags, q, out,
                              query_orders, query_cos, query_sin, partials, tickets, num_rows,
                              group, num_heads, workers, total, scale);
  }
}

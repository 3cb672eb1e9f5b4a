// Attention of many new tokens over the live cells of a paged cache, on Hopper (sm_90a).
//
//   q, out      T, (num_queries, num_heads, D); q un-rotated
//   rotated     T, [page][kv_head][64][D], keys turned by their cells' angles; read through key_map
//   values      T, same shape; read through value_map, and directly where a subblock has dead rows
//   key_map, value_map   the pools as [rows][D], boxes of 32 rows by 64 columns, 128-byte swizzle
//   num_tiles, subblocks, masks, least, greatest, orders, query_orders, query_cos, query_sin
//               a step (see device_step.py); int32, uint32 (masks) and float32 (cos, sin)
//   partials    float32, 128 * (D + 8) for each thread block
//   arrivals    int32, two a query tile and KV head, all zero before and after
// Grid: at most one block of 384 threads a multiprocessor. Shared memory: see prefill_hopper.py.
//
// The query heads of a KV head are packed: row r of its queries is token r / group, head r % group.
// A query tile is 128 such rows; a block of cells is four live subblocks. The blocks that all query
// tiles of all KV heads see are laid end to end, and every worker (a thread block) takes an equal
// run of them. A query tile that is cut is put together by the worker that has its first block. It
// waits for workers of later runs only, and those are thread blocks of lower index, which start
// before it.
//
// Warpgroup 0 fetches (one warp cells, three warps the next queries), warpgroups 1 and 2 compute 64
// rows each and take turns: the softmax of one hides behind the products of the other, and the
// scores of the next block are computed beside the values of the last, across query tiles too.
//
// What orders memory, apart from barriers of threads. All arrivals release, all waits acquire, in
// every lane that goes on to read or to issue.
//   keys, values   copied by the copy engine, read by wgmma: one proxy, so full and free barriers
//                  are enough. A wgmma of four warps has read its operands once each warp has
//                  waited for its own part: each arrives on the free barriers, 8 in all.
//   values with dead rows   written by cp.async, as ordinary stores are: each lane waits for its
//                  own and passes the proxy fence, then the warp meets, then lane 0 arrives.
//   cell_orders    stored by all lanes, and each of them arrives on keys_full. Read before the
//                  reader's warp meets and arrives on keys_free.
//   queries        stored, fenced and announced by each thread for itself. Outputs are staged over
//                  queries that no product reads any more: see `compute`.
//   partials       stores, barrier, fence, count; and on the other side count seen, fence, barrier,
//                  loads that pass the L1. The count returns to 0 in the launch that raised it.
//
// Numerics: products in T with float accumulators, softmax in float (base 2), probabilities rounded
// to T. Subblocks that no row of the query tile sees are never fetched, dead rows of values are
// zeros, scores of unseen cells are set to -inf. A query that sees nothing gives 0. `scale` is
// positive.
//
// Reference: omnitide/backends/reference, attention.
#include "hopper.cuh"

constexpr int SUBBLOCK = 32;
constexpr int PAGE = 64;
constexpr int ROWS = 128;
constexpr int CELLS = 128;
constexpr int SLOTS = CELLS / SUBBLOCK;
constexpr int THREADS = 384;
constexpr int WARPS = THREADS / 32;
constexpr int LOADERS = 96;        // threads that bring queries
constexpr int NEVER = 0x7fffffff;  // as an order: after all others
constexpr int ALONE = 1;           // named barriers: each computing warpgroup by itself (two ids),
constexpr int TURNS = 3;           // which of the two may issue products (two ids),
constexpr int TOGETHER = 5;        // both
constexpr unsigned FULL = 0xffffffffu;

template <int D>
struct Layout {
  static constexpr int HALVES = D / 64;  // runs of 64 columns, each a swizzled tile of its own
  static constexpr int STAGES = D == 128 ? 2 : 4;
  static constexpr int HALF_BYTES = CELLS * 128;
  static constexpr int BLOCK_BYTES = HALVES * HALF_BYTES;
  static constexpr int GROUP_HALF_BYTES = 64 * 128;
  static constexpr int GROUP_BYTES = HALVES * GROUP_HALF_BYTES;
  static constexpr int QUERY_BYTES = 2 * GROUP_BYTES;
  static constexpr int KEYS = 2 * QUERY_BYTES;  // two query tiles are held
  static constexpr int VALUES = KEYS + STAGES * BLOCK_BYTES;
  static constexpr int ORDERS = VALUES + STAGES * BLOCK_BYTES;
  static constexpr int BARRIERS = ORDERS + STAGES * CELLS * 4;
  static constexpr int PLAN = BARRIERS + (STAGES + 1) * 4 * 8;
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

// How the blocks are shared out: a worker takes `whole`, each of the first `rest` one more.
struct Share {
  int whole, rest;

  __device__ __forceinline__ int start(int worker) const {
    return worker * whole + min(worker, rest);
  }
  __device__ __forceinline__ int owner(int block) const {
    const int longer = rest * (whole + 1);
    return block < longer ? block / (whole + 1) : rest + (block - longer) / whole;
  }
};

// The run of blocks of one worker, query tile by query tile.
struct Work {
  int end;
  int head, tile;
  int start, from, to;  // first block of the query tile; blocks of it to do

  __device__ __forceinline__ void begin(const Plan& plan, const Share& share, int worker) {
    const int position = share.start(worker);
    end = share.start(worker + 1);
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
    locate(plan, position);
  }
  __device__ __forceinline__ bool more() const { return start + from < end; }
  __device__ __forceinline__ void next(const Plan& plan) {
    const int position = start + to;
    if (++tile == plan.num_query_tiles) {
      tile = 0;
      ++head;
    }
    locate(plan, position);
  }
  __device__ __forceinline__ void locate(const Plan& plan, int position) {
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
  constexpr int LANES = 8;  // of a query tile
  for (int base = 0; base < plan.num_query_tiles; base += THREADS / LANES) {
    const int tile = base + threadIdx.x / LANES;
    const int stop = (min(num_rows, (tile + 1) * ROWS) - 1) / group;
    int low = NEVER;
    int high = -1;
#pragma unroll 4
    for (int token = tile * ROWS / group + lane % LANES; token <= stop; token += LANES) {
      const int order = query_orders[token];
      low = min(low, order);
      high = max(high, order);
    }
    for (int step = 1; step < LANES; step *= 2) {
      low = min(low, __shfl_xor_sync(FULL, low, step));
      high = max(high, __shfl_xor_sync(FULL, high, step));
    }
    if (lane % LANES == 0 && tile < plan.num_query_tiles) {
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
  // Of the query tiles, numbered from 0 for each worker; the first is brought by its users.
  __device__ __forceinline__ unsigned queries_full(int item) const {
    return base + (4 * Layout<D>::STAGES + item % 2) * 8;
  }
  __device__ __forceinline__ unsigned queries_free(int item) const {
    return queries_full(item) + 16;
  }
  __device__ __forceinline__ static int queries_full_parity(int item) {
    return ((item + 1) / 2 - 1) % 2;
  }
  __device__ __forceinline__ static int queries_free_parity(int item) { return (item / 2 + 1) % 2; }
};

// One warp brings keys and values.
template <typename T, int D>
__device__ __forceinline__ void fetch_cells(const Plan& plan, Work work, Stages<D> stages,
                                            unsigned shared, int* cell_orders,
                                            const TensorMap& key_map, const TensorMap& value_map,
                                            const T* values, const int* subblocks,
                                            const unsigned* masks, const int* orders,
                                            int num_kv_heads) {
  using L = Layout<D>;
  constexpr int SUBBLOCK_BYTES = SUBBLOCK * D * 2;
  constexpr int AHEAD = 32 / SLOTS;  // blocks looked up at once, a subblock a lane
  const int lane = threadIdx.x % 32;
  const int slot = lane % SLOTS;
  int n = 0;
  for (; work.more(); work.next(plan)) {
    __syncwarp();
    list_visible(plan, work.tile);
    __syncwarp();
    const int padding = work.padding(plan);
    const int masked = work.masked(plan);
    for (int base = work.from; base < work.to; base += AHEAD) {
      const int index = base * SLOTS + lane - padding;
      const bool any = base + lane / SLOTS < work.to && index >= 0;
      const int listed = any ? plan.list[index] : -1;
      const int subblock = any ? subblocks[listed] : 0;
      const unsigned mask = any ? masks[listed] : 0;
      const int row = ((subblock / 2) * num_kv_heads + work.head) * PAGE + subblock % 2 * SUBBLOCK;
      const int stop = min(AHEAD, work.to - base);
      for (int i = 0; i < stop; ++i, ++n) {
        // Each of the first lanes copies one subblock.
        const int tile = __shfl_sync(FULL, listed, i * SLOTS + slot);
        const int first_row = __shfl_sync(FULL, row, i * SLOTS + slot);
        const unsigned live = __shfl_sync(FULL, mask, i * SLOTS + slot);
        const int stage = stages.stage(n);
        const int parity = stages.parity(n) ^ 1;
        const unsigned place = shared + stage * L::BLOCK_BYTES + slot * SUBBLOCK * 128;

        const unsigned present = __ballot_sync(FULL, lane < SLOTS && tile >= 0);
        wait_phase(stages.keys_free(n), parity);
        if (lane == 0) expect_bytes(stages.keys_full(n), __popc(present) * SUBBLOCK_BYTES);
        __syncwarp();
        if (present >> lane & 1) {
#pragma unroll
          for (int half = 0; half < L::HALVES; ++half)
            copy_box(place + L::KEYS + half * L::HALF_BYTES, key_map, half * 64, first_row,
                     stages.keys_full(n));
        }
        if (base + i < masked) {
#pragma unroll
          for (int other = 0; other < SLOTS; ++other) {
            const int at = __shfl_sync(FULL, tile, other);
            const bool alive = __shfl_sync(FULL, live, other) >> lane & 1;
            cell_orders[stage * CELLS + other * SUBBLOCK + lane] =
                alive ? orders[at * SUBBLOCK + lane] : NEVER;
          }
        }
        arrive(stages.keys_full(n));

        const unsigned whole = __ballot_sync(FULL, lane < SLOTS && live == FULL);
        wait_phase(stages.values_free(n), parity);
        if (lane == 0) expect_bytes(stages.values_full(n), __popc(whole) * SUBBLOCK_BYTES);
        __syncwarp();
        if (whole >> lane & 1) {
#pragma unroll
          for (int half = 0; half < L::HALVES; ++half)
            copy_box(place + L::VALUES + half * L::HALF_BYTES, value_map, half * 64, first_row,
                     stages.values_full(n));
        }
        if (whole != (1u << SLOTS) - 1) {
          // Dead rows may hold NaN, and 0 times NaN is NaN: they become zeros here.
          constexpr int CHUNKS = D / 8;
          for (int other = 0; other < SLOTS; ++other) {
            const unsigned rows = __shfl_sync(FULL, live, other);
            const T* from =
                values + static_cast<long long>(__shfl_sync(FULL, first_row, other)) * D;
            const unsigned to = __shfl_sync(FULL, place, other) + L::VALUES;
            if (rows == FULL) continue;
#pragma unroll 4
            for (int chunk = lane; chunk < SUBBLOCK * CHUNKS; chunk += 32) {
              const int r = chunk / CHUNKS;
              const int c = chunk % CHUNKS;
              copy_or_clear(to + c / 8 * L::HALF_BYTES + r * 128 + (c % 8 ^ r % 8) * 16,
                            from + r * D + c * 8, rows >> r & 1);
            }
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

// Which token and query head a row of queries or outputs is.
struct Rows {
  int count;
  int group, num_heads;
  float inverse;  // of group

  // Exact below 2^21 rows.
  __device__ __forceinline__ int token(int row) const {
    return __float2int_rd((row + 0.5f) * inverse);
  }
  // In heads from the start of q or out.
  __device__ __forceinline__ long long place(int row, int kv_head) const {
    const int at = token(row);
    return static_cast<long long>(at) * num_heads + kv_head * group + (row - at * group);
  }
};

// Rotated queries of one tile into shared memory, by `COUNT` threads; rows past the end become
// zeros.
template <typename T, int D, int COUNT>
__device__ __forceinline__ void load_queries(unsigned to, int thread, const T* q,
                                             const float* query_cos, const float* query_sin,
                                             const Rows& rows, int first_row, int kv_head) {
  constexpr int PAIRS = D / 16;  // chunks of 8 elements in half a head
  constexpr int TASKS = ROWS * PAIRS;
#pragma unroll(COUNT == 256 ? TASKS / COUNT : 1)
  for (int task = thread; task < TASKS; task += COUNT) {
    const int r = task / PAIRS;
    const int c = task % PAIRS;
    uint4 chunks[2] = {};
    if (first_row + r < rows.count) {
      const T* from = q + rows.place(first_row + r, kv_head) * D + c * 8;
      chunks[0] = *reinterpret_cast<const uint4*>(from);
      chunks[1] = *reinterpret_cast<const uint4*>(from + D / 2);
      float cos[8], sin[8];
      const int at = rows.token(first_row + r) * (D / 2) + c * 8;
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
      store_shared(to + r / 64 * Layout<D>::GROUP_BYTES + chunk / 8 * Layout<D>::GROUP_HALF_BYTES +
                       r % 64 * 128 + (chunk % 8 ^ r % 8) * 16,
                   chunks[part]);
    }
  }
  fence_for_products();
}

// Three warps bring the queries of all but the first query tile while the tile before is computed.
template <typename T, int D>
__device__ __forceinline__ void fetch_queries(const Plan& plan, Work work, Stages<D> stages,
                                              unsigned shared, const T* q, const float* query_cos,
                                              const float* query_sin, const Rows& rows) {
  int item = 1;
  for (work.next(plan); work.more(); work.next(plan), ++item) {
    wait_phase(stages.queries_free(item), stages.queries_free_parity(item));
    load_queries<T, D, LOADERS>(shared + item % 2 * Layout<D>::QUERY_BYTES, threadIdx.x - 32, q,
                                query_cos, query_sin, rows, work.tile * ROWS, work.head);
    arrive(stages.queries_full(item));
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

  // Probabilities against the maximum of before, packed into `p`: no search for a new maximum, and
  // nothing shrinks. Some may pass 1, which does no harm up to LIMIT. Where that won't do: false,
  // for the whole warp, and nothing has changed but `p`.
  template <typename T>
  __device__ __forceinline__ bool keep(const float (&s)[64], float scale, unsigned (&p)[32]) {
    constexpr float LIMIT = 4096.f;  // far below the largest float16
    const float base[2] = {top[0] * scale, top[1] * scale};
    float total[2][2] = {};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = i % 2;
      const float low = power_of_two(s[2 * i] * scale - base[row]);
      const float high = power_of_two(s[2 * i + 1] * scale - base[row]);
      total[row][0] += low;
      total[row][1] += high;
      p[i] = pack_two(low, high, T());
    }
    const float first = total[0][0] + total[0][1];
    const float second = total[1][0] + total[1][1];
    // A maximum of -inf gives inf or NaN here.
    if (__any_sync(FULL, !(first <= LIMIT && second <= LIMIT))) return false;
    sum[0] += first;
    sum[1] += second;
    return true;
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

// Accumulators follow a new maximum.
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

// The part that a worker and warpgroup leave behind, in each thread's own order.
template <int D>
__device__ __forceinline__ float4* part_of(float* partials, int worker, int side) {
  return reinterpret_cast<float4*>(partials) + (worker * 2 + side) * (D / 8 + 1) * 128 +
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
                                           const Rows& rows, int first_row, int kv_head) {
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float inverse = softmax.sum[row] > 0.f ? 1.f / softmax.sum[row] : 0.f;
    const int r = thread / 32 * 16 + lane / 4 + row * 8;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      store_shared(staging + j / 8 * Layout<D>::GROUP_HALF_BYTES + r * 128 + (j % 8 ^ r % 8) * 16 +
                       lane % 4 * 4,
                   pack_two(o[4 * j + 2 * row] * inverse, o[4 * j + 2 * row + 1] * inverse, T()));
  }
  sync_named(barrier, 128);
  constexpr int CHUNKS = D / 8;
#pragma unroll
  for (int task = thread; task < 64 * CHUNKS; task += 128) {
    const int r = task / CHUNKS;
    const int c = task % CHUNKS;
    if (first_row + r < rows.count)
      *reinterpret_cast<uint4*>(out + rows.place(first_row + r, kv_head) * D + c * 8) = load_shared(
          staging + c / 8 * Layout<D>::GROUP_HALF_BYTES + r * 128 + (c % 8 ^ r % 8) * 16);
  }
  sync_named(barrier, 128);
}

// One warpgroup's rows of a query tile are done, or this worker's part of them.
template <typename T, int D>
__device__ __forceinline__ void finish_rows(const Plan& plan, const Work& work, const Share& share,
                                            int worker, int side, unsigned staging,
                                            float (&o)[D / 2], Softmax& softmax, float scale,
                                            float* partials, int* arrivals, T* out,
                                            const Rows& rows) {
  const int thread = threadIdx.x % 128;
  int* arrived = arrivals + (work.head * plan.num_query_tiles + work.tile) * 2 + side;
  softmax.finish();
  if (work.from > 0) {
    store_part<D>(part_of<D>(partials, worker, side), o, softmax);
    sync_named(ALONE + side, 128);
    if (thread == 0) {
      // After the barrier: a fence covers what its thread has seen, so the parts of all 128.
      __threadfence();
      atomicAdd(arrived, 1);
    }
    return;
  }
  if (work.to < work.blocks(plan)) {
    const int last = share.owner(work.start + work.blocks(plan) - 1);
    if (thread == 0) {
      while (*static_cast<volatile int*>(arrived) < last - worker) {
      }
      *arrived = 0;
      __threadfence();
    }
    sync_named(ALONE + side, 128);
#pragma unroll 1
    for (int other = worker + 1; other <= last; ++other)
      add_part<D>(part_of<D>(partials, other, side), o, softmax, scale);
  }
  write_rows<T, D>(staging, o, softmax, out, ALONE + side, rows, work.tile * ROWS + side * 64,
                   work.head);
}

// s = queries keys^T, 64 rows by 128 cells; runs on after the return, like the next.
template <typename T, int D>
__device__ __forceinline__ void issue_scores(float (&s)[64], unsigned queries, unsigned keys) {
  using L = Layout<D>;
  const unsigned long long a = describe(queries, 0);
  const unsigned long long b = describe(keys, 0);
  multiply<0>(s, a, b, T());
#pragma unroll
  for (int k = 1; k < D / 16; ++k)
    multiply<1>(s, advance(a, k / 4 * L::GROUP_HALF_BYTES + k % 4 * 32),
                advance(b, k / 4 * L::HALF_BYTES + k % 4 * 32), T());
  commit_products();
}

// o += p values.
template <typename T, int D>
__device__ __forceinline__ void issue_values(float (&o)[D / 2], const unsigned (&p)[32],
                                             unsigned values) {
  const unsigned long long b = describe(values, Layout<D>::HALF_BYTES);
#pragma unroll
  for (int k = 0; k < CELLS / 16; ++k) multiply_add(o, p + 4 * k, advance(b, k * 16 * 128), T());
  commit_products();
}

// Orders of a thread's two rows; rows past the end see nothing.
__device__ __forceinline__ void read_orders(int (&mine)[2], const int* query_orders,
                                            const Rows& rows, int first_row) {
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int r = first_row + thread / 32 * 16 + thread % 32 / 4 + row * 8;
    mine[row] = r < rows.count ? query_orders[rows.token(r)] : -1;
  }
}

// A computing warpgroup, `side` 0 or 1: 64 rows of every query tile.
template <typename T, int D>
__device__ __forceinline__ void compute(const Plan& plan, Work work, const Share& share, int worker,
                                        Stages<D> stages, unsigned shared, const int* cell_orders,
                                        const T* q, T* out, const int* query_orders,
                                        const float* query_cos, const float* query_sin,
                                        float* partials, int* arrivals, const Rows& rows,
                                        float scale) {
  using L = Layout<D>;
  const int side = __shfl_sync(FULL, threadIdx.x / 128 - 1, 0);
  const int lane = threadIdx.x % 32;
  const unsigned queries = shared + side * L::GROUP_BYTES;
  const unsigned keys = shared + L::KEYS;
  const unsigned values = shared + L::VALUES;
  float s[64], o[D / 2];
  unsigned p[32];
  float decay[2];
  int mine[2];
  Softmax softmax;
  int n = 0;     // blocks so far
  int item = 0;  // query tiles so far
  int block = work.from;
  int masked = work.masked(plan);
  if (side == 1) arrive_named(TURNS, 256);

  read_orders(mine, query_orders, rows, work.tile * ROWS + side * 64);
  load_queries<T, D, 256>(shared, threadIdx.x - 128, q, query_cos, query_sin, rows,
                          work.tile * ROWS, work.head);
  softmax.clear();
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] = 0.f;
  sync_named(TOGETHER, 256);

  wait_phase(stages.keys_full(n), stages.parity(n));
  pin(s);
  begin_products();
  issue_scores<T, D>(s, queries, keys);
  wait_products<0>(s);
  if (block < masked) hide(s, cell_orders, mine);
  __syncwarp();
  if (lane == 0) arrive(stages.keys_free(n));
  softmax.update(s, scale, decay);
  round_scores<T>(s, p);

  while (true) {
    // `p` belongs to block n; the scores of block n + 1 are next.
    const Work done = work;
    const bool fresh = ++block == work.to;
    if (fresh) {
      work.next(plan);
      block = 0;
    }
    const bool more = work.more();
    if (fresh && more) {
      ++item;
      masked = work.masked(plan);
      read_orders(mine, query_orders, rows, work.tile * ROWS + side * 64);
      wait_phase(stages.queries_full(item), stages.queries_full_parity(item));
    }
    wait_phase(stages.values_full(n), stages.parity(n));
    if (more) wait_phase(stages.keys_full(n + 1), stages.parity(n + 1));
    sync_named(TURNS + side, 256);
    pin(s);
    pin(o);
    pin(p);
    begin_products();
    // After the last block this repeats its scores, and nobody reads them.
    issue_scores<T, D>(s, queries + item % 2 * L::QUERY_BYTES,
                       keys + stages.stage(more ? n + 1 : n) * L::BLOCK_BYTES);
    issue_values<T, D>(o, p, values + stages.stage(n) * L::BLOCK_BYTES);
    arrive_named(TURNS + 1 - side, 256);
    wait_products<1>(s);

    unsigned next[32];
    bool kept = false;
    if (more) {
      if (block < masked) {
        hide(s, cell_orders + stages.stage(n + 1) * CELLS, mine);
        __syncwarp();
      }
      if (lane == 0) arrive(stages.keys_free(n + 1));
      if (!fresh && block >= masked) kept = softmax.keep<T>(s, scale, next);
    }
    if (!kept) {
      wait_products<0>(o);
      if (fresh) {
        // The repeated scores read the rows that the outputs will go through; a warp has waited for
        // its own part of them only.
        if (!more) sync_named(ALONE + side, 128);
        finish_rows<T, D>(plan, done, share, worker, side,
                          queries + (item - more) % 2 * L::QUERY_BYTES, o, softmax, scale, partials,
                          arrivals, out, rows);
        if (!more) break;
        if (threadIdx.x % 128 == 0) arrive(stages.queries_free(item - 1));
        softmax.clear();
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] = 0.f;
      }
      softmax.update(s, scale, decay);
      shrink<D>(o, decay);
      round_scores<T>(s, next);
    }
    wait_products<0>(o);
    pin(p);
    if (lane == 0) arrive(stages.values_free(n));
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = next[i];
    ++n;
  }
  if (side == 0) sync_named(TURNS, 256);
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    prefill_attention_hopper(const T* q, const __grid_constant__ TensorMap key_map,
                             const __grid_constant__ TensorMap value_map, const T* values, T* out,
                             const int* num_tiles, const int* subblocks, const unsigned* masks,
                             const int* least, const int* greatest, const int* orders,
                             const int* query_orders, const float* query_cos,
                             const float* query_sin, float* partials, int* arrivals,
                             int num_queries, int num_heads, int num_kv_heads, int max_tiles,
                             int least_share, float scale) {
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const unsigned shared = shared_address(memory);
  const int group = num_heads / num_kv_heads;
  const Rows rows{num_queries * group, group, num_heads, 1.f / group};
  const Stages<D> stages{shared + L::BARRIERS};
  int* cell_orders = reinterpret_cast<int*>(memory + L::ORDERS);
  Plan plan;
  plan.num_query_tiles = (rows.count + ROWS - 1) / ROWS;
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
    for (int i = 0; i < L::STAGES; ++i) {
      init_barrier(stages.keys_full(i), 32);
      init_barrier(stages.keys_free(i), 8);
      init_barrier(stages.values_full(i), 1);
      init_barrier(stages.values_free(i), 8);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      init_barrier(stages.queries_full(i), LOADERS);
      init_barrier(stages.queries_free(i), 2);
    }
    publish_barriers();
  }
  make_plan(plan, masks, least, greatest, query_orders, max_tiles, rows.count, group);

  const int total = plan.first[plan.num_query_tiles] * num_kv_heads;
  const int workers = min(static_cast<int>(gridDim.x), max(1, total / least_share));
  if (blockIdx.x >= workers) return;
  const Share share{total / workers, total % workers};
  const int worker = workers - 1 - blockIdx.x;
  Work work;
  work.begin(plan, share, worker);
  // 72 + 2 x 216 is what three warpgroups start with, 3 x 168: more would be waited for forever.
  if (threadIdx.x < 128) {
    give_registers<72>();
    if (threadIdx.x < 32) {
      fetch_cells<T, D>(plan, work, stages, shared, cell_orders, key_map, value_map, values,
                        subblocks, masks, orders, num_kv_heads);
    } else {
      fetch_queries<T, D>(plan, work, stages, shared, q, query_cos, query_sin, rows);
    }
  } else {
    take_registers<216>();
    compute<T, D>(plan, work, share, worker, stages, shared, cell_orders, q, out, query_orders,
                  query_cos, query_sin, partials, arrivals, rows, scale);
  }
}

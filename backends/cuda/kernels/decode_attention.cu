// Attention of a few queries over the live tiles of a history.
//
//   q          T [num_queries][kv_heads * group][D], not rotated
//   rotated    T [page][kv_heads][64][D], keys turned by their rotary angles
//   values     T [page][kv_heads][64][D]
//   num_tiles  int32 [1], at most max_tiles
//   subblocks  int32 [max_tiles], subblock ids (slot / 32)
//   masks      uint32 [max_tiles], live rows of each
//   orders     int32 [max_tiles][32], order of each row, -1 where dead
//   query_orders  int32 [num_queries]; query i sees the rows with 0 <= order <= its own
//   query_cos, query_sin  float32 [num_queries][D / 2], pairs (i, i + D / 2)
//   out        T [num_queries][kv_heads * group][D]; 0 for a query that sees nothing
//   parts      float32 [row blocks][kv_heads][GROUPS * 8 * NT * D / 4][splits][4], all bits set
//   sums       float32 the same with [2] at the end; both are all bits set again afterwards
//   group_inverse  65536 / group, rounded up
//
// Grid (splits, kv_heads, row blocks), THREADS threads; decode_attention_cluster: clusters of
// CLUSTER_BLOCKS along the splits, up to 8 rows. T is half or bfloat16; D is a multiple of 16, at
// least 64. All blocks of a KV head must be able to run at the same time (with clusters: blocks
// start in the order of their indices), and no two launches that share `parts` may.
//
// A warp takes 16 rows of K and V at a time and multiplies scores = Q K^T, then out^T = V^T P^T
// (mma m16n8k16): what a lane holds of the scores is what it must hold of P^T, and a group of up to
// 8 rows (query, query head of one KV head) wastes nothing of V's products. Which columns and rows
// a lane holds is permuted along each summed axis, the same way on both sides, such that K and V go
// from memory to registers in wide loads, without shared memory.
//
// The work is cut into units of 16 rows of a tile. Unit u belongs to split u % splits, so that
// blocks differ by one unit at most; in a block its streams (warps) take turns. Loads of the next
// unit are issued as soon as the registers of the last one are free. Dead rows are not read. Each
// warp keeps maximum, sum and output of its rows. These are merged in shared memory; then the
// blocks of a KV head exchange: each writes its part of every output and adds up all parts of a
// share of the outputs. A word of a part that has not been written has all bits set, which is a NaN
// that no operation gives: one trip through the L2 cache, with neither fences nor tickets. With
// clusters, these exchange first, through shared memory, and the last cluster of a KV head adds up
// what the others leave in `parts`, marked the same way; less traffic, for short histories.
//
// This needs no order between words: each is waited for by itself, and only its one reader, who has
// it, marks it unwritten again. The next launch writes after this one has ended, also where they
// overlap (`wait_for_predecessor`) or are replayed. A launch that ends early leaves words behind;
// but with it ends the context, and the scratch is made anew (compute-sanitizer can be told
// otherwise: don't). No NaN of the arithmetic has all bits set: they are all 0x7fffffff, and every
// word is the result of an operation, not a copy of an input. Nobody leaves a cluster before all
// that is sent to it has come.
//
// Scores, softmax and sums are float32; the query after its rotation and P are rounded to T.
// Reference: backends/reference/attention.py, paged_attention.
#include "cluster.cuh"
#include "mma.cuh"
#include "overlap.cuh"
#include "types.cuh"

constexpr int THREADS = 256;
constexpr int PAGE_ROWS = 64;
constexpr int UNIT_ROWS = 16;
constexpr int UNITS_PER_TILE = 2;
constexpr unsigned ALL_LIVE = 0xffff;
constexpr float LOWEST = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

struct Tiles {
  const int* count;
  const int* subblocks;
  const unsigned* masks;
  const int* orders;
  unsigned room;
};

struct Queries {
  const int* orders;
  const float *cos, *sin;
  unsigned count, group, group_inverse;
};

// The tile of a unit.
struct Tile {
  unsigned subblock, mask;
};

__device__ __forceinline__ Tile read_tile(const Tiles& tiles, unsigned index, unsigned end) {
  Tile tile{0, 0};
  if (index < end) {
    tile.subblock = tiles.subblocks[index / UNITS_PER_TILE];
    tile.mask = tiles.masks[index / UNITS_PER_TILE];
  }
  return tile;
}

// Live rows of a unit: bit r is set where row r is live; none from `end` on.
__device__ __forceinline__ unsigned live_rows(const Tile& tile, unsigned index, unsigned end) {
  return index < end ? tile.mask >> index % UNITS_PER_TILE * UNIT_ROWS & ALL_LIVE : 0;
}

// Orders of the rows 2c, 2c + 1, 2c + 8, 2c + 9.
__device__ __forceinline__ void read_orders(int (&orders)[4], const Tiles& tiles, unsigned index,
                                            unsigned end, unsigned c) {
  const int* from = tiles.orders + (index * UNIT_ROWS + 2 * c);
#pragma unroll
  for (int i = 0; i < 4; ++i) orders[i] = index < end ? from[i % 2 + i / 2 * 8] : -1;
}

// Number of a unit's first row among the rows of a pool.
__device__ __forceinline__ unsigned first_row_of(const Tile& tile, unsigned index, unsigned head,
                                                 unsigned kv_heads) {
  const unsigned page = tile.subblock / 2;
  const unsigned half = tile.subblock % 2 * 2 + index % UNITS_PER_TILE;
  return (page * kv_heads + head) * PAGE_ROWS + half * UNIT_ROWS;
}

__device__ __forceinline__ void load(unsigned* x, const void* from) {
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x[0]) : "l"(from));
}
__device__ __forceinline__ void load_two(unsigned* x, const void* from) {
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(from));
}
__device__ __forceinline__ void load_four(unsigned* x, const void* from) {
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(from));
}

// A row of a unit, or its lowest live row in place of a dead one. What is read twice so counts for
// nothing: its score is masked, its weight is 0.
template <bool FULL>
__device__ __forceinline__ unsigned live_row(unsigned row, unsigned live) {
  return FULL || live >> row & 1 ? row : __ffs(live) - 1;
}

// Rows g and g + 8 of a unit with live rows that starts at row `first`; `pool` points at column 8c
// of row 0. Registers 4j to 4j + 3 hold columns 32j + 8c to 32j + 8c + 7; where D / 16 is odd the
// last two hold 4 columns of the last 16.
template <bool FULL, typename T, int D>
__device__ __forceinline__ void load_keys(unsigned (&k)[2][D / 8], const T* pool, unsigned first,
                                          unsigned live, unsigned g, unsigned c) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const unsigned row = first + live_row<FULL>(g + 8 * r, live);
    const T* from = pool + static_cast<unsigned long long>(row) * D;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) load_four(&k[r][4 * j], from + 32 * j);
    if constexpr (D % 32 != 0) load_two(&k[r][D / 8 - 2], from + D / 32 * 32 - 4 * c);
  }
}

// Rows 2c, 2c + 1, 2c + 8, 2c + 9; `pool` points at column 8g of row 0. Registers 4j to 4j + 3 hold
// columns 64j + 8g to 64j + 8g + 7; the rest of D is dealt out the same way in 4 or 2 columns a
// lane.
template <bool FULL, typename T, int D>
__device__ __forceinline__ void load_values(unsigned (&v)[4][D / 16], const T* pool, unsigned first,
                                            unsigned live, unsigned g, unsigned c) {
  constexpr int WHOLE = D / 64;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned row = first + live_row<FULL>(2 * c + i % 2 + i / 2 * 8, live);
    const T* from = pool + static_cast<unsigned long long>(row) * D;
#pragma unroll
    for (int j = 0; j < WHOLE; ++j) load_four(&v[i][4 * j], from + 64 * j);
    if constexpr (D % 64 == 32) {
      load_two(&v[i][4 * WHOLE], from + 64 * WHOLE - 4 * g);
    } else if constexpr (D % 64 == 16) {
      load(&v[i][4 * WHOLE], from + 64 * WHOLE - 6 * g);
    }
  }
}

// The turned query in shared memory, in the order in which lanes read it: [16 rows][product of 16
// columns][lane][register], dealt out as `load_keys` does with the columns. Index of the register
// that holds columns d and d + 1, d even, of a row.
template <int D>
__device__ __forceinline__ unsigned query_register(unsigned row, unsigned d) {
  const bool whole = d < D / 32 * 32;
  const unsigned product = whole ? d / 32 * 2 + d % 8 / 4 : D / 16 - 1;
  const unsigned c = whole ? d % 32 / 8 : d % 16 / 4;
  const unsigned lane = row % 8 * 4 + c;
  return ((row / 16 * (D / 16) + product) * 32 + lane) * 4 + row % 16 / 8 + d % 4 / 2 * 2;
}

// Columns d, d + 1 and d + D / 2, d + D / 2 + 1 of a query row and what turns them. Rows beyond the
// queries are 0 and see nothing.
template <typename T>
struct QueryItem {
  T x[2], y[2];
  float cos[2], sin[2];
  int order, offset;
};

template <typename T, int D>
__device__ __forceinline__ QueryItem<T> read_query(const T* q, const Queries& queries, unsigned d,
                                                   unsigned row, unsigned head, unsigned kv_heads) {
  const unsigned query = row * queries.group_inverse >> 16;
  const unsigned offset = ((query * (kv_heads - 1) + head) * queries.group + row) * D;
  const bool valid = query < queries.count;
  QueryItem<T> item;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    item.x[e] = valid ? q[offset + d + e] : from_float<T>(0);
    item.y[e] = valid ? q[offset + d + D / 2 + e] : from_float<T>(0);
    item.cos[e] = valid ? queries.cos[query * (D / 2) + d + e] : 0;
    item.sin[e] = valid ? queries.sin[query * (D / 2) + d + e] : 0;
  }
  item.order = valid ? queries.orders[query] : -1;
  item.offset = valid ? static_cast<int>(offset) : -1;
  return item;
}

// Read anew for every unit: the query would take too many registers.
__device__ __forceinline__ void load_query(unsigned (&x)[4], const unsigned* from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))));
}

// The column that the lower half of register t of `load_values` holds.
template <int D>
__device__ __forceinline__ unsigned value_column(int t, unsigned g) {
  constexpr int WHOLE = D / 64;
  return t < 4 * WHOLE ? t / 4 * 64 + 8 * g + t % 4 * 2
                       : 64 * WHOLE + D % 64 / 8 * g + (t - 4 * WHOLE) * 2;
}

// Where column d of a row lies in a warp's partial output: whole rows of banks, and groups of four
// columns interchanged so that neither writing nor reading has bank conflicts.
template <int D>
__device__ __forceinline__ unsigned partial_offset(unsigned row, unsigned d) {
  constexpr int PITCH = (D + 31) / 32 * 32;
  const unsigned turn = (row & 2) << 1 | (row & 4) << 2;
  return row * PITCH + (d ^ turn);
}

// Words of a part: each is written and read as one, whatever becomes of the vector.
__device__ __forceinline__ void put(float4* to, float4 x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w)
               : "memory");
}
__device__ __forceinline__ void put(float2* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y)
               : "memory");
}
__device__ __forceinline__ float4 get(const float4* from) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ float2 get(const float2* from) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "l"(from)
               : "memory");
  return x;
}

constexpr int UNWRITTEN = -1;

__device__ __forceinline__ bool written(float x) { return __float_as_int(x) != UNWRITTEN; }
__device__ __forceinline__ bool written(float4 x) {
  return written(x.x) && written(x.y) && written(x.z) && written(x.w);
}
__device__ __forceinline__ bool written(float2 x) { return written(x.x) && written(x.y); }

__device__ __forceinline__ void clear(float4* at) {
  const float none = __int_as_float(UNWRITTEN);
  put(at, make_float4(none, none, none, none));
}
__device__ __forceinline__ void clear(float2* at) {
  const float none = __int_as_float(UNWRITTEN);
  put(at, make_float2(none, none));
}

// Four neighbours of a row, divided by the sum of weights.
template <typename T>
__device__ __forceinline__ void write_out(T* to, float4 x, float total) {
  const float share = total > 0 ? 1 / total : 0;
  uint2 words;
  words.x = pack_two(x.x * share, x.y * share, T());
  words.y = pack_two(x.z * share, x.w * share, T());
  *reinterpret_cast<uint2*>(to) = words;
}

// x += weight * y, in four columns.
__device__ __forceinline__ void add(float4& x, float weight, float4 y) {
  x.x += weight * y.x;
  x.y += weight * y.y;
  x.z += weight * y.z;
  x.w += weight * y.w;
}

// Add up this block's share of the outputs: fours of columns number split * share to split * share
// + share - 1 of `count`. The parts of one lie in neighbouring lanes, `width` of them (a power of
// two).
template <typename T, int D, int WARPS>
__device__ __forceinline__ void exchange(T* out, const int* row_offsets, float4* parts,
                                         float2* sums, unsigned count) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned splits = gridDim.x, share = (count + splits - 1) / splits;
  const unsigned width = splits > 16 ? 32 : 2u << (31 - __clz(splits - 1));
  const unsigned stop = min(count, (blockIdx.x + 1) * share);
  for (unsigned first = blockIdx.x * share + warp * (32 / width); first < stop;
       first += WARPS * (32 / width)) {
    const unsigned four = first + lane / width;
    float high = LOWEST, total = 0;
    float4 x = make_float4(0, 0, 0, 0);
    for (unsigned from = lane % width; from < splits && four < stop; from += 64) {
      float4 y[2] = {};
      float2 sum[2] = {};
      bool here;
      do {
        here = true;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          if (from + 32 * u < splits) {
            y[u] = get(parts + four * splits + from + 32 * u);
            sum[u] = get(sums + four * splits + from + 32 * u);
            here = here && written(y[u]) && written(sum[u]);
          }
        }
      } while (!here);
      const float before = high;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if (from + 32 * u < splits) {
          clear(parts + four * splits + from + 32 * u);
          clear(sums + four * splits + from + 32 * u);
          high = fmaxf(high, sum[u].x);
        }
      }
      const float shrink = power_of_two(before - high);
      total *= shrink;
      x = make_float4(x.x * shrink, x.y * shrink, x.z * shrink, x.w * shrink);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if (from + 32 * u < splits) {
          const float weight = power_of_two(sum[u].x - high);
          total += weight * sum[u].y;
          add(x, weight, y[u]);
        }
      }
    }
    __syncwarp();
    float most = high;
    for (unsigned step = width / 2; step > 0; step /= 2) {
      most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    }
    const float shrink = power_of_two(high - most);
    total *= shrink;
    x = make_float4(x.x * shrink, x.y * shrink, x.z * shrink, x.w * shrink);
    for (unsigned step = width / 2; step > 0; step /= 2) {
      total += __shfl_xor_sync(~0u, total, step);
      x.x += __shfl_xor_sync(~0u, x.x, step);
      x.y += __shfl_xor_sync(~0u, x.y, step);
      x.z += __shfl_xor_sync(~0u, x.z, step);
      x.w += __shfl_xor_sync(~0u, x.w, step);
    }
    if (lane % width == 0 && four < stop) {
      write_out(out + row_offsets[four / (D / 4)] + four % (D / 4) * 4, x, total);
    }
  }
}

#if __CUDA_ARCH__ >= 900
constexpr int CLUSTER_BLOCKS = 8;

// What the blocks of a cluster send a block of it: their parts of its slice of the outputs.
template <int D, int BLOCK_ROWS, int CLUSTER>
struct Received {
  static constexpr int SLICE = BLOCK_ROWS * D / CLUSTER;
  static constexpr int SLICE_ROWS = SLICE > D ? SLICE / D : 1;
  static constexpr unsigned BYTES = CLUSTER * (SLICE * sizeof(float) + SLICE_ROWS * sizeof(float2));
  alignas(16) float x[CLUSTER][SLICE];
  float2 stats[CLUSTER][BLOCK_ROWS];
  unsigned long long barrier;

  // Send four columns to the block that owns them, with their row's sums once a row and owner.
  __device__ __forceinline__ void send(unsigned four, float4 y, float2 sums) {
    const unsigned rank = cluster_rank(), owner = 4 * four / SLICE, at = 4 * four % SLICE;
    const unsigned done = remote_address(&barrier, owner);
    send_async(remote_address(&x[rank][at], owner), y, done);
    if (4 * four % D == 0 || at == 0) {
      send_async(remote_address(&stats[rank][4 * four / D], owner), sums, done);
    }
  }
};

// Add up what was received, and the same slice of the other clusters, which they leave in `parts`.
// The last cluster of a KV head adds; it waits only for clusters that start before it.
template <typename T, int D, int BLOCK_ROWS, int CLUSTER>
__device__ __forceinline__ void merge_clusters(T* out, const int* row_offsets,
                                               const Received<D, BLOCK_ROWS, CLUSTER>& received,
                                               float4* parts) {
  constexpr int SLICE = BLOCK_ROWS * D / CLUSTER, MERGED_AT_ONCE = 4;
  const unsigned rank = cluster_rank(), cluster = blockIdx.x / CLUSTER;
  const unsigned clusters = gridDim.x / CLUSTER;
  parts += rank * clusters * (SLICE / 2);
  for (unsigned i = 2 * threadIdx.x; i < SLICE; i += 2 * THREADS) {
    const unsigned row = (rank * SLICE + i) / D, d = (rank * SLICE + i) % D;
    float high = LOWEST, total = 0, x = 0, y = 0;
#pragma unroll
    for (int s = 0; s < CLUSTER; ++s) high = fmaxf(high, received.stats[s][row].x);
#pragma unroll
    for (int s = 0; s < CLUSTER; ++s) {
      const float2 one = received.stats[s][row];
      const float weight = power_of_two(one.x - high);
      total += weight * one.y;
      x += weight * received.x[s][i];
      y += weight * received.x[s][i + 1];
    }
    float4* part = parts + i / 2;
    if (cluster + 1 != clusters) {
      put(part + cluster * (SLICE / 2), make_float4(x, y, high, total));
      continue;
    }
    for (unsigned first = 0; first + 1 < clusters; first += MERGED_AT_ONCE) {
      float4 one[MERGED_AT_ONCE];
      bool here;
      do {
        here = true;
#pragma unroll
        for (int s = 0; s < MERGED_AT_ONCE; ++s) {
          one[s] = make_float4(0, 0, LOWEST, 0);
          if (first + s + 1 < clusters) {
            one[s] = get(part + (first + s) * (SLICE / 2));
            here = here && written(one[s]);
          }
        }
      } while (!here);
      const float before = high;
#pragma unroll
      for (int s = 0; s < MERGED_AT_ONCE; ++s) {
        high = fmaxf(high, one[s].z);
        if (first + s + 1 < clusters) clear(part + (first + s) * (SLICE / 2));
      }
      const float shrink = power_of_two(before - high);
      total *= shrink;
      x *= shrink;
      y *= shrink;
#pragma unroll
      for (int s = 0; s < MERGED_AT_ONCE; ++s) {
        const float weight = power_of_two(one[s].z - high);
        total += weight * one[s].w;
        x += weight * one[s].x;
        y += weight * one[s].y;
      }
    }
    if (row_offsets[row] >= 0) {
      const float share = total > 0 ? 1 / total : 0;
      *reinterpret_cast<unsigned*>(out + row_offsets[row] + d) =
          pack_two(x * share, y * share, T());
    }
  }
}
#endif

template <typename T, int D, int NT, int GROUPS, int WARPS, int CLUSTER>
__device__ __forceinline__ void attend(const T* q, const T* rotated, const T* values,
                                       const Tiles tiles, const Queries queries, T* out,
                                       float4* parts, float2* sums, float scale) {
  constexpr int STREAMS = WARPS / GROUPS;
  constexpr int ROWS = 8 * NT;
  constexpr int BLOCK_ROWS = GROUPS * ROWS;
  constexpr int FOURS = BLOCK_ROWS * D / 4;
  constexpr int PARTIAL = ROWS * ((D + 31) / 32 * 32);
  constexpr int TURNED_ROWS = (BLOCK_ROWS + 15) / 16 * 16;
  extern __shared__ __align__(16) float shared[];
  float* partial = shared;  // [WARPS][PARTIAL]
  unsigned* turned =
      reinterpret_cast<unsigned*>(partial + WARPS * PARTIAL);               // [TURNED_ROWS][D / 2]
  float2* stats = reinterpret_cast<float2*>(turned + TURNED_ROWS * D / 2);  // [WARPS][ROWS]
  int* row_orders = reinterpret_cast<int*>(stats + WARPS * ROWS);           // [BLOCK_ROWS]
  int* row_offsets = row_orders + BLOCK_ROWS;                               // [BLOCK_ROWS]

  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const unsigned g = lane / 4, c = lane % 4;
  const unsigned head = blockIdx.y, kv_heads = gridDim.y;
  const unsigned row_group = warp % GROUPS, stream = warp / GROUPS;
  const unsigned first_row = blockIdx.z * BLOCK_ROWS;
  const unsigned stride = gridDim.x * STREAMS;
  unsigned index = blockIdx.x + gridDim.x * stream;
  rotated += 8 * c;
  values += 8 * g;

#if __CUDA_ARCH__ >= 900
  __shared__ Received<D, BLOCK_ROWS, CLUSTER> received;
  if constexpr (CLUSTER > 1) {
    if (thread == 0) expect_bytes(&received.barrier, received.BYTES);
    __syncwarp();
    cluster_arrive();
  }
#endif
  wait_for_predecessor();
  let_successor_start();

  // The tile list is read before its length is known: `room` entries are there in any case.
  const unsigned room = UNITS_PER_TILE * tiles.room;
  Tile tile = read_tile(tiles, index, room), next = read_tile(tiles, index + stride, room);
  int orders[4];
  read_orders(orders, tiles, index, room, c);
  const unsigned end = UNITS_PER_TILE * *tiles.count;
  // The query must not queue behind K and V.
  constexpr int ITEMS = (BLOCK_ROWS * (D / 4) + THREADS - 1) / THREADS;
  QueryItem<T> items[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const unsigned item = thread + i * THREADS;
    items[i] = read_query<T, D>(q, queries, item % (D / 4) * 2, first_row + item / (D / 4), head,
                                kv_heads);
  }

  unsigned k[2][D / 8], v[4][D / 16] = {};
  unsigned first = first_row_of(tile, index, head, kv_heads);
  unsigned live = live_rows(tile, index, end);
  if (live == ALL_LIVE) {
    load_keys<true, T, D>(k, rotated, first, live, g, c);
    load_values<true, T, D>(v, values, first, live, g, c);
  } else if (live != 0) {
    load_keys<false, T, D>(k, rotated, first, live, g, c);
    load_values<false, T, D>(v, values, first, live, g, c);
  }

  // While these are on their way: the block's rotated query rows.
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const unsigned item = thread + i * THREADS;
    if (ITEMS * THREADS == BLOCK_ROWS * (D / 4) || item < BLOCK_ROWS * (D / 4)) {
      const unsigned row = item / (D / 4), d = item % (D / 4) * 2;
      const float x0 = to_float(items[i].x[0]), x1 = to_float(items[i].x[1]);
      const float y0 = to_float(items[i].y[0]), y1 = to_float(items[i].y[1]);
      const float *cos = items[i].cos, *sin = items[i].sin;
      turned[query_register<D>(row, d)] =
          pack_two(x0 * cos[0] - y0 * sin[0], x1 * cos[1] - y1 * sin[1], T());
      turned[query_register<D>(row, d + D / 2)] =
          pack_two(y0 * cos[0] + x0 * sin[0], y1 * cos[1] + x1 * sin[1], T());
      if constexpr (BLOCK_ROWS % 16 != 0) {
        turned[query_register<D>(row + 8, d)] = 0;
        turned[query_register<D>(row + 8, d + D / 2)] = 0;
      }
      if (d == 0) {
        row_orders[row] = items[i].order;
        row_offsets[row] = items[i].offset;
      }
    }
  }
  __syncthreads();

  // Of out^T a lane holds rows of queries 2c, 2c + 1; of scores, maximum and sum those of query g.
  float o[D / 16][NT][4] = {}, most[NT], sum[NT] = {};
#pragma unroll
  for (int n = 0; n < NT; ++n) most[n] = LOWEST;
  const bool started = index < end;
  if (started) {
    const unsigned* query = turned + (row_group * ROWS / 16 * (D / 16) * 32 + lane) * 4;
    int seen[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) seen[n] = row_orders[row_group * ROWS + 8 * n + g];
    const float scale_2 = scale * LOG2_E;

    while (true) {
      index += stride;
      const Tile after = read_tile(tiles, index + stride, end);
      float score[2][4] = {};
#pragma unroll
      for (int s = 0; s < D / 16; ++s) {
        unsigned a[4];
        load_query(a, query + s * 128);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          multiply_add(score[r], a[0], a[1], a[2], a[3], k[r][2 * s], k[r][2 * s + 1], T());
        }
      }
      first = first_row_of(next, index, head, kv_heads);
      live = live_rows(next, index, end);
      if (live == ALL_LIVE) {
        load_keys<true, T, D>(k, rotated, first, live, g, c);
      } else if (live != 0) {
        load_keys<false, T, D>(k, rotated, first, live, g, c);
      }

      unsigned p[NT][2];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float weight[4], high = most[n];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool visible = orders[i] >= 0 && orders[i] <= seen[n];
          weight[i] = visible ? score[i / 2][2 * n + i % 2] * scale_2 : 2 * LOWEST;
          high = fmaxf(high, weight[i]);
        }
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        if (__any_sync(~0u, high > most[n])) {
          const float shrink = power_of_two(most[n] - high);
          const float shrink_even = __shfl_sync(~0u, shrink, 8 * c);
          const float shrink_odd = __shfl_sync(~0u, shrink, 8 * c + 4);
          sum[n] *= shrink;
          most[n] = high;
#pragma unroll
          for (int t = 0; t < D / 16; ++t) {
#pragma unroll
            for (int e = 0; e < 4; ++e) o[t][n][e] *= e % 2 == 0 ? shrink_even : shrink_odd;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weight[i] = power_of_two(weight[i] - high);
          sum[n] += weight[i];
        }
        p[n][0] = pack_two(weight[0], weight[1], T());
        p[n][1] = pack_two(weight[2], weight[3], T());
      }
#pragma unroll
      for (int t = 0; t < D / 16; ++t) {
        const unsigned a0 = lower_halves(v[0][t], v[1][t]), a1 = upper_halves(v[0][t], v[1][t]);
        const unsigned a2 = lower_halves(v[2][t], v[3][t]), a3 = upper_halves(v[2][t], v[3][t]);
#pragma unroll
        for (int n = 0; n < NT; ++n) multiply_add(o[t][n], a0, a1, a2, a3, p[n][0], p[n][1], T());
      }
      if (index >= end) break;
      // A unit without a live row leaves the values of an earlier one in place.
      if (live == ALL_LIVE) {
        load_values<true, T, D>(v, values, first, live, g, c);
      } else if (live != 0) {
        load_values<false, T, D>(v, values, first, live, g, c);
      }
      read_orders(orders, tiles, index, end, c);
      next = after;
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      sum[n] += __shfl_xor_sync(~0u, sum[n], 1);
      sum[n] += __shfl_xor_sync(~0u, sum[n], 2);
    }
  }

  // Merge the warps.
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    if (c == 0) stats[warp * ROWS + 8 * n + g] = make_float2(most[n], sum[n]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const unsigned row = 8 * n + 2 * c + e;
      float* to = partial + warp * PARTIAL;
#pragma unroll
      for (int t = 0; t + 1 < D / 16; t += 2) {
        *reinterpret_cast<float4*>(to + partial_offset<D>(row, value_column<D>(t, g))) =
            make_float4(o[t][n][e], o[t][n][2 + e], o[t + 1][n][e], o[t + 1][n][2 + e]);
      }
      if constexpr (D / 16 % 2 != 0) {
        constexpr int LAST = D / 16 - 1;
        *reinterpret_cast<float2*>(to + partial_offset<D>(row, value_column<D>(LAST, g))) =
            make_float2(o[LAST][n][e], o[LAST][n][2 + e]);
      }
    }
  }
  __syncthreads();
  const unsigned splits = gridDim.x, row_block = blockIdx.z * kv_heads + head;
  parts += static_cast<unsigned long long>(row_block) * FOURS * splits;
  sums += static_cast<unsigned long long>(row_block) * FOURS * splits;
  const unsigned valid_rows = min(queries.count * queries.group - first_row, BLOCK_ROWS);
  const unsigned count = CLUSTER > 1 ? FOURS : valid_rows * (D / 4);
#if __CUDA_ARCH__ >= 900
  if constexpr (CLUSTER > 1) cluster_wait();
#endif
  for (unsigned four = thread; four < count; four += THREADS) {
    const unsigned row = four / (D / 4), d = four % (D / 4) * 4;
    const float* from = partial + row / ROWS * PARTIAL + partial_offset<D>(row % ROWS, d);
    const float2* from_stats = stats + row / ROWS * ROWS + row % ROWS;
    float high = LOWEST, total = 0;
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) high = fmaxf(high, from_stats[s * GROUPS * ROWS].x);
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) {
      const float2 one = from_stats[s * GROUPS * ROWS];
      const float weight = power_of_two(one.x - high);
      total += weight * one.y;
      add(x, weight, *reinterpret_cast<const float4*>(from + s * GROUPS * PARTIAL));
    }
#if __CUDA_ARCH__ >= 900
    if constexpr (CLUSTER > 1) {
      received.send(four, x, make_float2(high, total));
      continue;
    }
#endif
    if (splits == 1) {
      write_out(out + row_offsets[row] + d, x, total);
    } else {
      put(parts + four * splits + blockIdx.x, x);
      put(sums + four * splits + blockIdx.x, make_float2(high, total));
    }
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (CLUSTER > 1) {
    wait_for_bytes(&received.barrier);
    merge_clusters<T, D, BLOCK_ROWS, CLUSTER>(out, row_offsets, received, parts);
    return;
  }
#endif
  if (splits > 1) exchange<T, D, WARPS>(out, row_offsets, parts, sums, count);
}

#define PARAMETERS                                                                               \
  const T *q, const T *rotated, const T *values, const int *num_tiles, const int *subblocks,     \
      const unsigned *masks, const int *orders, const int *query_orders, const float *query_cos, \
      const float *query_sin, T *out, float4 *parts, float2 *sums, unsigned max_tiles,           \
      unsigned num_queries, unsigned group, unsigned group_inverse, float scale
#define ARGUMENTS                                                                                 \
  q, rotated, values, Tiles{num_tiles, subblocks, masks, orders, max_tiles},                      \
      Queries{query_orders, query_cos, query_sin, num_queries, group, group_inverse}, out, parts, \
      sums, scale

template <typename T, int D, int NT, int GROUPS>
__global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1) decode_attention(PARAMETERS) {
  attend<T, D, NT, GROUPS, THREADS / 32, 1>(ARGUMENTS);
}

#if __CUDA_ARCH__ >= 900
template <typename T, int D>
__cluster_dims__(CLUSTER_BLOCKS, 1, 1) __global__ void __launch_bounds__(THREADS, 2)
    decode_attention_cluster(PARAMETERS) {
  attend<T, D, 1, 1, THREADS / 32, CLUSTER_BLOCKS>(ARGUMENTS);
}
#endif

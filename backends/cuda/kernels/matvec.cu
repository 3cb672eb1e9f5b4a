// out = x weight^T for a few rows of x, at the speed at which the weights can be read.
//
//   x           (tokens, width) T, 1 <= tokens <= 8; width a multiple of 8
//   norm_weight (width,) T, read if NORM: x is RMS-normalised first and rounded to T
//   weight_0..2 (height_i, width) T: up to three matrices side by side; height 0: not there
//   bias_0..2   (height_i,) T or null
//   residual    (tokens, height_0) T or null, added to out_0
//   out_0..2    (tokens, height_i) T
//   GATED: out_0 = silu(x weight_0^T + bias_0) * (x weight_1^T + bias_1); both factors are rounded
//   to T first. weight_1 is as high as weight_0, height_1 and height_2 are 0.
//
// T: __half or __nv_bfloat16. Products and sums in float, one rounding at the end.
// Grid: any number of blocks of 256 threads, best one a multiprocessor; each takes an equal share
// of the rows of the matrices. Shared memory: STAGES * (16 + tokens + (NORM ? 1 : 0)) * (2 CHUNK +
// 64). Reference: `linear`, `rms_norm`, `swiglu` of backends/reference/backend.py.
//
// A block goes through its rows in tiles of at most 16 (GATED: 8 of each matrix), through a tile in
// chunks of CHUNK columns. A stage of the ring in shared memory holds a chunk of the tile's rows,
// of x and of the norm's weight. The warps share a chunk's columns: mma m16n8k16 multiplies 16 rows
// by 8 tokens; which columns it calls k does not matter as long as both factors agree, so each lane
// takes 8 neighbours. Weights do not depend on earlier kernels: the ring is filled before the wait
// for them.
#include "copies.cuh"
#include "overlap.cuh"
#include "types.cuh"

constexpr int TILE = 16;
constexpr int MAX_TOKENS = 8;
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;

__device__ __forceinline__ void multiply(float (&sum)[4], uint4 low, uint4 high, uint4 x, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(x.x), "r"(x.y));
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(low.z), "r"(high.z), "r"(low.w), "r"(high.w), "r"(x.z), "r"(x.w));
}

__device__ __forceinline__ void multiply(float (&sum)[4], uint4 low, uint4 high, uint4 x,
                                         __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(x.x), "r"(x.y));
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(low.z), "r"(high.z), "r"(low.w), "r"(high.w), "r"(x.z), "r"(x.w));
}

__device__ __forceinline__ float2 unpack_two(unsigned pair, __half) {
  return __half22float2(*reinterpret_cast<__half2*>(&pair));
}
__device__ __forceinline__ float2 unpack_two(unsigned pair, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&pair));
}

template <typename T>
__device__ __forceinline__ float square_two(unsigned pair) {
  const float2 x = unpack_two(pair, T());
  return x.x * x.x + x.y * x.y;
}

template <typename T>
__device__ __forceinline__ unsigned scale_two(unsigned pair, unsigned weights, float scale) {
  const float2 x = unpack_two(pair, T());
  const float2 weight = unpack_two(weights, T());
  return pack_two(x.x * scale * weight.x, x.y * scale * weight.y, T());
}

// Outputs of a tile.
struct Units {
  int first, count;
};

// The rows that a block is to multiply by, and where they come from and go to.
template <typename T, bool GATED, bool NORM>
struct Work {
  static constexpr int UNITS = GATED ? TILE / 2 : TILE;  // outputs a tile has for one token

  const T* x;
  const T* norm_weight;
  const T* weights[3];
  int heights[3];
  int tokens, width;
  int begin, count, tiles;

  __device__ __forceinline__ void share(int block, int num_blocks) {
    const long long all = GATED ? heights[0] : heights[0] + heights[1] + heights[2];
    begin = static_cast<int>(all * block / num_blocks);
    count = static_cast<int>(all * (block + 1) / num_blocks) - begin;
    tiles = (count + UNITS - 1) / UNITS;
  }

  // Tiles of a block differ by at most one unit.
  __device__ __forceinline__ Units units(int tile) const {
    const int first = count * tile / tiles;
    return {begin + first, count * (tile + 1) / tiles - first};
  }

  // Rows of a stage in use.
  __device__ __forceinline__ int rows() const { return TILE + tokens + (NORM ? 1 : 0); }

  // Where a weight row of a stage comes from; null: the tile has no such row.
  __device__ __forceinline__ const T* weight_row(int row, Units tile) const {
    int unit = GATED ? row % UNITS : row;
    if (unit >= tile.count) return nullptr;
    unit += tile.first;
    int matrix = GATED ? row / UNITS : 0;
    if (!GATED && unit >= heights[0]) {
      unit -= heights[0];
      matrix = 1;
      if (unit >= heights[1]) {
        unit -= heights[1];
        matrix = 2;
      }
    }
    const T* weight = matrix == 0 ? weights[0] : matrix == 1 ? weights[1] : weights[2];
    return weight + static_cast<long long>(unit) * width;
  }

  // Where the rows below the weights come from.
  __device__ __forceinline__ const T* input_row(int row) const {
    return row < tokens ? x + static_cast<long long>(row) * width : norm_weight;
  }
};

template <typename T, bool GATED, bool NORM, int CHUNK, int STAGES, int AHEAD, bool BULK>
__global__ void __launch_bounds__(THREADS)
    matvec(const T* x, const T* norm_weight, float eps, const T* weight_0, const T* weight_1,
           const T* weight_2, const T* bias_0, const T* bias_1, const T* bias_2, const T* residual,
           T* out_0, T* out_1, T* out_2, int height_0, int height_1, int height_2, int tokens,
           int width) {
  // 64 bytes beside a whole number of bank rows: two rows read by one access don't meet in a bank.
  constexpr int PITCH = 2 * CHUNK + 64;
  constexpr int UNITS = Work<T, GATED, NORM>::UNITS;
  static_assert(CHUNK % 256 == 0, "a step of each warp");

  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ float partial[WARPS][MAX_TOKENS][TILE];

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, quad = lane % 4;

  Work<T, GATED, NORM> work{
      x,      norm_weight, {weight_0, weight_1, weight_2}, {height_0, height_1, height_2},
      tokens, width};
  work.share(blockIdx.x, gridDim.x);
  const int stage_bytes = work.rows() * PITCH;
  const int chunks = (width + CHUNK - 1) / CHUNK;
  const int total = work.tiles * chunks;

  // What is copied next, and where to.
  int fill_tile = 0, fill_chunk = 0, fill_stage = 0;
  Units fill_units = work.units(0);
  const int inputs = work.rows() - TILE;

  __shared__ __align__(8) unsigned long long barriers[STAGES];
  const unsigned long long once = evict_first(), normal = evict_normal();
  const T* low_row = nullptr;
  const T* high_row = nullptr;
  auto fill = [&](bool weights, bool given) {
    const int column = fill_chunk * CHUNK;
    const int columns = min(CHUNK, width - column);
    unsigned char* to = ring + fill_stage * stage_bytes;
#if __CUDA_ARCH__ >= 900
    if constexpr (BULK) {
      // Each warp copies two of the tile's rows.
      const unsigned barrier = shared_address(&barriers[fill_stage]);
      if (fill_chunk == 0) {
        fill_units = work.units(fill_tile);
        low_row = work.weight_row(warp, fill_units);
        high_row = work.weight_row(warp + 8, fill_units);
      }
      if (lane == 0) {
        const int bytes = columns * 2;
        if (weights) {
          if (warp == 0) {
            barrier_expect(barrier, (fill_units.count * (GATED ? 2 : 1) + inputs) * bytes);
          }
          if (low_row != nullptr) {
            copy_bulk(shared_address(to + warp * PITCH), low_row + column, bytes, barrier, once);
          }
          if (high_row != nullptr) {
            copy_bulk(shared_address(to + (warp + 8) * PITCH), high_row + column, bytes, barrier,
                      once);
          }
        }
        if (given) {
          for (int row = warp; row < inputs; row += WARPS) {
            copy_bulk(shared_address(to + (TILE + row) * PITCH), work.input_row(row) + column,
                      bytes, barrier, normal);
          }
        }
      }
    } else
#endif
    {
      if (fill_chunk == 0 && fill_tile < work.tiles) fill_units = work.units(fill_tile);
      constexpr int PIECES = CHUNK / 8;
      const int at = thread % PIECES * 8;
      if (fill_tile < work.tiles && at < columns) {
        const unsigned place = shared_address(to) + at * 2;
        if (weights) {
#pragma unroll
          for (int row = thread / PIECES; row < TILE; row += THREADS / PIECES) {
            const T* from = work.weight_row(row, fill_units);
            if (from != nullptr) copy_16(place + row * PITCH, from + column + at, once);
          }
        }
        if (given) {
          for (int row = thread / PIECES; row < inputs; row += THREADS / PIECES) {
            copy_16(place + (TILE + row) * PITCH, work.input_row(row) + column + at, normal);
          }
        }
      }
      close_group();
    }
    if (++fill_chunk == chunks) fill_chunk = 0, ++fill_tile;
    if (++fill_stage == STAGES) fill_stage = 0;
  };
#if __CUDA_ARCH__ >= 900
  if constexpr (BULK) {
    if (thread == 0) {
      for (int i = 0; i < STAGES; ++i) barrier_init(shared_address(&barriers[i]), 1);
      barrier_publish();
    }
    __syncthreads();
  }
  for (int i = 0; i < STAGES - 1 && (!BULK || i < total); ++i) fill(true, false);
  if (AHEAD > 0 && warp == 0) {
    for (int i = STAGES - 1; i < STAGES - 1 + AHEAD && i < total; ++i) {
      const T* from = lane < TILE ? work.weight_row(lane, work.units(i / chunks)) : nullptr;
      const int column = i % chunks * CHUNK;
      if (from != nullptr) prefetch_bulk(from + column, min(CHUNK, width - column) * 2);
    }
  }
  let_successor_start();
  wait_for_predecessor();
  fill_tile = fill_chunk = fill_stage = 0;
  for (int i = 0; i < STAGES - 1 && (!BULK || i < total); ++i) fill(false, true);
#else
  for (int i = 0; i < STAGES - 1; ++i) fill(true, true);
#endif

  // The token whose column of the product this lane supplies; lanes without one repeat the last.
  const int token = min(group, tokens - 1);
  float scale = 1.0f;
  if constexpr (NORM) {
    for (int i = 0; i < tokens; ++i) {
      float square = 0.0f;
      const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<long long>(i) * width);
      for (int piece = thread; piece < width / 8; piece += THREADS) {
        const uint4 eight = __ldcg(from + piece);
        square += square_two<T>(eight.x) + square_two<T>(eight.y) + square_two<T>(eight.z) +
                  square_two<T>(eight.w);
      }
      for (int offset = 16; offset > 0; offset /= 2) {
        square += __shfl_xor_sync(0xffffffff, square, offset);
      }
      if (lane == 0) partial[warp][i][0] = square;
    }
    __syncthreads();
    float square = 0.0f;
    for (int i = 0; i < WARPS; ++i) square += partial[i][token][0];
    scale = rsqrtf(square / width + eps);
  }

  float sum[4] = {};
  int tile = 0, chunk = 0, stage = 0;
  Units units{};
  unsigned parity = 0;
  for (int i = 0; i < total; ++i) {
    const bool last = chunk == chunks - 1;
    if (BULK && __CUDA_ARCH__ >= 900) {
      __syncthreads();  // the stage read last is free
      if (i + STAGES - 1 < total) fill(true, true);
    } else {
      if (i == 0 && __CUDA_ARCH__ >= 900) {
        wait_for_groups<0>();
      } else {
        wait_for_groups<STAGES - 2>();
      }
      __syncthreads();  // also: everyone's copies are there
      fill(true, true);
    }
    if (chunk == 0) units = work.units(tile);

    // One thread an output; what is added to it comes while the stage does.
    const int unit = thread % UNITS, row = thread / UNITS;
    const int index = units.first + unit;
    const bool writes = last && row < tokens && unit < units.count;
    int at = index, height = height_0;
    const T* bias = bias_0;
    T* out = out_0;
    if (!GATED && index >= height_0) {
      at = index - height_0, height = height_1, bias = bias_1, out = out_1;
      if (at >= height_1) at -= height_1, height = height_2, bias = bias_2, out = out_2;
    }
    const long long offset = static_cast<long long>(row) * height + at;
    float added = 0.0f, added_up = 0.0f;
    if (writes) {
      if (bias != nullptr) added = to_float(bias[at]);
      if (GATED && bias_1 != nullptr) added_up = to_float(bias_1[at]);
      if (!GATED && residual != nullptr) added += to_float(__ldcg(residual + offset));
    }

#if __CUDA_ARCH__ >= 900
    if (BULK) barrier_wait(shared_address(&barriers[stage]), parity);
#endif
    const unsigned char* base = ring + stage * stage_bytes;
    const int columns = min(CHUNK, width - chunk * CHUNK);
#pragma unroll
    for (int step = 0; step < CHUNK / (32 * WARPS); ++step) {
      const int column = (step * WARPS + warp) * 32 + quad * 8;
      uint4 low = {}, high = {}, eight = {};
      if (column < columns) {
        const unsigned char* from = base + column * 2;
        low = *reinterpret_cast<const uint4*>(from + group * PITCH);
        high = *reinterpret_cast<const uint4*>(from + (group + 8) * PITCH);
        eight = *reinterpret_cast<const uint4*>(from + (TILE + token) * PITCH);
        if constexpr (NORM) {
          const uint4 by = *reinterpret_cast<const uint4*>(from + (TILE + tokens) * PITCH);
          eight.x = scale_two<T>(eight.x, by.x, scale);
          eight.y = scale_two<T>(eight.y, by.y, scale);
          eight.z = scale_two<T>(eight.z, by.z, scale);
          eight.w = scale_two<T>(eight.w, by.w, scale);
        }
      }
      multiply(sum, low, high, eight, T());
    }
    if (++stage == STAGES) stage = 0, parity ^= 1;
    ++chunk;
    if (!last) continue;

    partial[warp][quad * 2][group] = sum[0];
    partial[warp][quad * 2 + 1][group] = sum[1];
    partial[warp][quad * 2][group + 8] = sum[2];
    partial[warp][quad * 2 + 1][group + 8] = sum[3];
    sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
    __syncthreads();
    if (writes) {
      float result = added, up = added_up;
      for (int j = 0; j < WARPS; ++j) {
        result += partial[j][row][unit];
        if (GATED) up += partial[j][row][UNITS + unit];
      }
      if (GATED) {
        result = to_float(from_float<T>(result));
        up = to_float(from_float<T>(up));
        result = result / (1.0f + expf(-result)) * up;
      }
      out[offset] = from_float<T>(result);
    }
    ++tile;
    chunk = 0;
  }
}

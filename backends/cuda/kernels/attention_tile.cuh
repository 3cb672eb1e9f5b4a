// Attention of a few rows of queries over tiles of 64 cells: what one warp does, on tensor cores.
//
// Numerics: products of T, sums, scores and exponentials in float32; the weights are rounded to T
// before they meet the values. The softmax runs along: `most` is the score that a row's weights are
// relative to, and moves only when a score exceeds it by GROWTH powers of two, so that the sums are
// rarely rescaled (the quotient is the same whatever `most` is).
#pragma once

#include "tensor_core.cuh"

constexpr int CELLS = 64;       // of a tile
constexpr float GROWTH = 8.0f;  // weights stay below 2^8, far from the end of float16
#define NOTHING (-__int_as_float(0x7f800000))

// Where rows of D numbers of 2 bytes lie in shared memory. A chunk is 16 bytes, a step 2 chunks
// (the inner size of a product); rows are padded to whole steps. The same chunk of 8 neighbouring
// rows lies in 8 different groups of banks: by exclusive or where rows are whole lines of 128
// bytes, else because rows are an odd number of chunks apart.
template <int D>
struct SharedRows {
  static constexpr int STEPS = (D + 15) / 16;
  static constexpr int CHUNKS = 2 * STEPS;
  static constexpr bool CROSSED = CHUNKS % 8 == 0;
  static constexpr int STRIDE = 16 * (CROSSED ? CHUNKS : CHUNKS + 1);

  static __device__ __forceinline__ unsigned at(unsigned row, unsigned chunk) {
    return row * STRIDE + 16 * (CROSSED ? chunk ^ (row & 7) : chunk);
  }
  // From an address in the first step to the same place in another. Row 0 is at a multiple of 256.
  static __device__ __forceinline__ unsigned in_step(unsigned address, int step) {
    return CROSSED ? address ^ (32 * step) : address + 32 * step;
  }
};

// How threads share the copying of rows: each keeps to one chunk and goes on by AT_ONCE rows.
template <int D, int THREADS>
struct RowCopy {
  using Rows = SharedRows<D>;
  static constexpr int AT_ONCE = THREADS / Rows::CHUNKS;
  static_assert(!Rows::CROSSED || AT_ONCE % 8 == 0, "a step down has to keep the crossing");

  unsigned row, chunk;  // of this thread

  __device__ __forceinline__ explicit RowCopy(unsigned thread)
      : row(thread / Rows::CHUNKS), chunk(thread % Rows::CHUNKS) {}

  // Calls copy(i, offset) for each row `row` + i of NUM_ROWS that is this thread's; `offset` is
  // where its chunk lies in shared memory.
  template <int NUM_ROWS, typename Copy>
  __device__ __forceinline__ void each(Copy copy) const {
    constexpr bool IS_EVEN = AT_ONCE * Rows::CHUNKS == THREADS && NUM_ROWS % AT_ONCE == 0;
    const unsigned offset = Rows::at(row, chunk);
#pragma unroll
    for (int i = 0; i < NUM_ROWS; i += AT_ONCE)
      if (IS_EVEN || (row < AT_ONCE && row + i < NUM_ROWS)) copy(i, offset + i * Rows::STRIDE);
  }
};

// Whether that many rows of queries can stay in registers beside sums and scores.
template <int D, int FRAGMENTS>
constexpr bool CAN_HOLD =
    FRAGMENTS * (4 * SharedRows<D>::CHUNKS + CELLS / 2 + 4 * SharedRows<D>::STEPS) < 180;

// A warp's 16 * FRAGMENTS rows. `scores[f][n][i]`, `out[f][n][i]`: row 16 f + lane / 4 + 8 (i / 2),
// column 8 n + 2 (lane % 4) + i % 2. `most[f][r]`, `sum[f][2 r]`: row 16 f + lane / 4 + 8 r.
// HELD: the queries stay in registers; else they are read from shared memory for each tile.
template <typename T, int D, int FRAGMENTS, bool HELD>
struct WarpAttention {
  using Rows = SharedRows<D>;
  using Scores = float[FRAGMENTS][CELLS / 8][4];
  // Where registers are short, the weights are added up by a product with ones: it takes fewer.
  static constexpr bool BY_PRODUCT = FRAGMENTS > 1;

  float out[FRAGMENTS][Rows::CHUNKS][4];
  float most[FRAGMENTS][2];
  float sum[FRAGMENTS][4];  // [2 r] is the row's; of this lane's columns only, until `finish`
  unsigned held[HELD ? FRAGMENTS : 1][HELD ? Rows::STEPS : 1][4];

  // Offsets of a lane's row and chunk for operand a (and transposed b), and for b.
  static __device__ __forceinline__ unsigned wide_offset() {
    const int lane = threadIdx.x % 32;
    return Rows::at(lane % 16, lane / 16);
  }
  static __device__ __forceinline__ unsigned tall_offset() {
    const int lane = threadIdx.x % 32;
    return Rows::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }

  static __device__ __forceinline__ unsigned place_of(unsigned queries, int f, int step) {
    return Rows::in_step(queries + wide_offset(), step) + 16 * f * Rows::STRIDE;
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
#pragma unroll
      for (int n = 0; n < Rows::CHUNKS; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[f][n][i] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[f][r] = NOTHING;
        sum[f][2 * r] = sum[f][2 * r + 1] = 0.0f;
      }
    }
  }

  // Takes the queries into registers if they are held. `queries`: the warp's rows, shared memory.
  __device__ __forceinline__ void hold(unsigned queries) {
    if constexpr (HELD) {
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int step = 0; step < Rows::STEPS; ++step)
          load_matrices(held[f][step], place_of(queries, f, step));
    }
  }

  // scores = queries * keys. `keys`: the tile's rows, shared memory.
  __device__ __forceinline__ void score(Scores& scores, unsigned queries, unsigned keys) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
      for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[f][n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < Rows::STEPS; ++step) {
      unsigned a[FRAGMENTS][4];
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f) {
        if constexpr (HELD) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[f][i] = held[f][step][i];
        } else {
          load_matrices(a[f], queries + 16 * f * Rows::STRIDE + Rows::in_step(wide_offset(), step));
        }
      }
#pragma unroll
      for (int n = 0; n < CELLS / 8; n += 2) {
        unsigned b[4];
        load_matrices(b, Rows::in_step(keys + tall_offset(), step) + 8 * n * Rows::STRIDE);
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
          multiply_add(scores[f][n], a[f], b[0], b[1], T());
          multiply_add(scores[f][n + 1], a[f], b[2], b[3], T());
        }
      }
    }
  }

  // Scores become weights. `scale`: factor of the scores times log2(e), positive.
  __device__ __forceinline__ void weigh(Scores& scores, float scale) {
    float top[FRAGMENTS][2];
    bool grows = false;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x = scores[f][0][2 * r];
#pragma unroll
        for (int n = 0; n < CELLS / 8; ++n)
          x = fmaxf(x, fmaxf(scores[f][n][2 * r], scores[f][n][2 * r + 1]));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        // Not so where both are minus infinity: their difference is no number.
        const bool far = (x - most[f][r]) * scale > GROWTH;
        top[f][r] = far ? x : most[f][r];
        grows |= far;
      }
    if (__any_sync(~0u, grows)) {
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) move_to(f, r, top[f][r], scale);
    }
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float shift = most[f][r] == NOTHING ? 0.0f : most[f][r] * scale;
#pragma unroll
        for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) {
            scores[f][n][i] = power_of_two(fmaf(scores[f][n][i], scale, -shift));
            if (!BY_PRODUCT) sum[f][2 * r] += scores[f][n][i];
          }
      }
  }

  // Makes a row's sums relative to `to`.
  __device__ __forceinline__ void move_to(int f, int r, float to, float scale) {
    const float factor = to == most[f][r] ? 1.0f : power_of_two((most[f][r] - to) * scale);
    most[f][r] = to;
    sum[f][2 * r] *= factor;
    sum[f][2 * r + 1] *= factor;
#pragma unroll
    for (int n = 0; n < Rows::CHUNKS; ++n) {
      out[f][n][2 * r] *= factor;
      out[f][n][2 * r + 1] *= factor;
    }
  }

  // out += weights * values. `values`: the tile's rows, shared memory.
  __device__ __forceinline__ void mix(const Scores& weights, unsigned values) {
    const unsigned ones = pack_two(1.0f, 1.0f, T());
#pragma unroll
    for (int step = 0; step < CELLS / 16; ++step) {
      unsigned a[FRAGMENTS][4];
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float (&pair)[4] = weights[f][2 * step + i / 2];
          a[f][i] = pack_two(pair[i % 2 * 2], pair[i % 2 * 2 + 1], T());
        }
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
        if (BY_PRODUCT) multiply_add(sum[f], a[f], ones, ones, T());
#pragma unroll
      for (int n = 0; n < Rows::CHUNKS; n += 2) {
        unsigned b[4];
        load_transposed(b, Rows::in_step(values + wide_offset(), n / 2) + 16 * step * Rows::STRIDE);
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
          multiply_add(out[f][n], a[f], b[0], b[1], T());
          multiply_add(out[f][n + 1], a[f], b[2], b[3], T());
        }
      }
    }
  }

  // Adds up the sums of the four lanes that share a row; a product has done so already.
  __device__ __forceinline__ void finish() {
    if constexpr (!BY_PRODUCT) {
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sum[f][2 * r] += __shfl_xor_sync(~0u, sum[f][2 * r], 1);
          sum[f][2 * r] += __shfl_xor_sync(~0u, sum[f][2 * r], 2);
        }
    }
  }

  // Writes the quotients to the warp's rows in shared memory; 0 where a row saw nothing.
  __device__ __forceinline__ void settle(unsigned char* rows) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = sum[f][2 * r] > 0.0f ? 1.0f / sum[f][2 * r] : 0.0f;
#pragma unroll
        for (int n = 0; n < Rows::CHUNKS; ++n)
          *reinterpret_cast<unsigned*>(rows + Rows::at(16 * f + 8 * r + lane / 4, n) +
                                       lane % 4 * 4) =
              pack_two(out[f][n][2 * r] * factor, out[f][n][2 * r + 1] * factor, T());
      }
    __syncwarp();
  }
};

// out = x weight^T for a few rows of x and quantised weights, at the speed at which these can be
// read. Their layout is MLX's, unchanged: weight[row][column] = code * scale + shift, with a scale
// and a shift ("bias" there) for each GROUP of columns.
//
//   x           (tokens, width) T, 1 <= tokens <= TOKENS; width a multiple of GROUP
//   norm_weight (width,) T or null: x is RMS-normalised first and rounded to T
//   codes_0..2  (height_i, width BITS / 32) unsigned: up to three matrices side by side; height 0:
//               not there
//   scales_0..2, shifts_0..2 (height_i, width / GROUP) T
//   bias_0..2   (height_i,) T or null
//   residual    (tokens, height_0) T or null, added to out_0
//   out_0..2    (tokens, height_i) T
//   pieces      of a row: width / columns, rounded up
//   each, more  outputs of a block; the first `more` blocks have one more. Gated ones count once
//   gated: out_0 = silu(x weight_0^T + bias_0) * (x weight_1^T + bias_1); both factors are rounded
//   to T first. weight_1 is as high as weight_0, height_1 and height_2 are 0.
//
// T: __half or __nv_bfloat16. With TOKENS 1 x is rounded to 16 bits of a power of two that its
// group shares (fixed_point.cuh says how far off that is), and a group's products with the codes
// are summed exactly; else x is taken as it is and they are summed in float. Their sum times the
// scale, plus the shift times the group's sum of x, as rounded, is added up in float; one rounding
// at the end. What is infinite in x, or no number, makes its row's outputs NaN with TOKENS 1; else
// what is infinite may. With TOKENS 1, a group's codes count as 0 where its scale times its
// greatest x is less than about 2^-112.
//
// Grid: any number of blocks of 1 to 16 warps (8 for TOKENS 16, and for TOKENS 8 with 8 bits).
// Shared memory, in bytes, with `groups` rounded up to an even number and `reads` columns / GROUP
// in eights: warps slots (16 pitch(columns BITS / 8) + 512 reads) + 16 (tokens + norm)
// x_pitch(width) + 4 max(TOKENS, 2) groups + 64 TOKENS (batch (1 + gated) + warps - 1) + 8 batch (1
// + gated).
// Reference: `linear`, `rms_norm`, `swiglu` of backends/reference/backend.py with the weights of
// omnitide/dequantize.py.
//
// A block's outputs are cut into tiles of 16 rows, a tile into pieces of `columns` columns, an even
// number of groups, at most 16. Of the pieces of a batch of `batch` tiles each warp takes an equal
// run (runs.cuh), through a ring of `slots` (1 to 8) slots of its own (ring.cuh). It multiplies a
// slot by x (one_token.cuh, more_tokens.cuh). Its sums of a tile go to shared memory; when a batch
// is done, one thread an output adds them up.
//
// Where launches overlap, one warp asks for x as soon as the predecessor has ended, in bulk copies,
// which need not queue behind the weights' copies; the others fill their slots before. Older chips
// ask for x first.
#include "copies.cuh"
#include "more_tokens.cuh"
#include "one_token.cuh"
#include "overlap.cuh"
#include "reductions.cuh"

constexpr int MAX_WARPS = 16;

// What the predecessor may have written, from the L2 cache. Stays behind `wait_for_predecessor`.
template <typename T>
__device__ __forceinline__ T load_late(const T* from) {
  unsigned short bits;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(from) : "memory");
  return *reinterpret_cast<T*>(&bits);
}

// x in shared memory, and its product with the tiles of a warp.
template <typename T, int BITS, int GROUP, int TOKENS>
struct ProductOf {
  using Type = MoreTokens<T, BITS, GROUP, TOKENS>;
};
template <typename T, int BITS, int GROUP>
struct ProductOf<T, BITS, GROUP, 1> {
  using Type = OneToken<T, BITS, GROUP>;
};

// Threads of a block at most: more have too few registers each.
template <int BITS, int TOKENS>
constexpr int MAX_THREADS = TOKENS > 8 || (BITS == 8 && TOKENS > 1) ? 256 : 32 * MAX_WARPS;

template <typename T, int BITS, int GROUP, int TOKENS>
__global__ void __launch_bounds__(MAX_THREADS<BITS, TOKENS>, 1)
    quantized_matvec(const T* x, const T* norm_weight, float eps, const unsigned* codes_0,
                     const unsigned* codes_1, const unsigned* codes_2, const T* scales_0,
                     const T* scales_1, const T* scales_2, const T* shifts_0, const T* shifts_1,
                     const T* shifts_2, const T* bias_0, const T* bias_1, const T* bias_2,
                     const T* residual, T* out_0, T* out_1, T* out_2, int height_0, int height_1,
                     int height_2, int tokens, int width, int columns, int pieces, int slots,
                     int batch, int each, int more, bool gated) {
  using Product = typename ProductOf<T, BITS, GROUP, TOKENS>::Type;
  using WeightRing = Ring<T, BITS, GROUP>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares[TOKENS * MAX_WARPS];
  const int thread = threadIdx.x, threads = blockDim.x, warps = threads / 32;
  const int warp = thread / 32, lane = thread % 32;

  const int slot_bytes = WeightRing::bytes_of_slot(columns);
  uint4* inputs = reinterpret_cast<uint4*>(shared + warps * slots * slot_bytes);
  const int packs = width / 8;  // of a row of x
  // Groups are multiplied by twos; x of one that isn't there is 0.
  const int groups = width / GROUP, even_groups = (groups + 1) / 2 * 2;
  const int even_packs = even_groups * (GROUP / 8);
  // Two tokens' packs that lanes read at once meet no bank twice.
  const int x_pitch = Fold<BITS, GROUP>::PACKS == 2 ? even_packs + 1 : even_packs | 4;
  float* sums = reinterpret_cast<float*>(inputs + (tokens + (norm_weight != nullptr)) * x_pitch);
  // The first and the last warp that add to a segment, then their sums.
  const int sides = gated ? 2 : 1;
  int* owners = reinterpret_cast<int*>(sums + even_groups * Product::SUMS);
  float* partials = reinterpret_cast<float*>(owners + 2 * batch * sides);

  // Starts the copy of this thread's packs of some rows.
  auto fetch = [&](int to, const T* from, int rows) {
    const uint4* source = reinterpret_cast<const uint4*>(from);
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll 1
      for (int at = thread; at < packs; at += threads) {
        copy_16(shared_address(inputs + (to + row) * x_pitch + at), source + row * packs + at);
      }
    }
  };
  let_successor_start();
#if __CUDA_ARCH__ >= 900
  __shared__ __align__(8) unsigned long long x_is_here;
  if (thread == 0) {
    barrier_init(shared_address(&x_is_here), 1);
    barrier_publish();
  }
#else
  fetch(0, x, tokens);
#endif
  if (norm_weight != nullptr) fetch(tokens, norm_weight, 1);
  close_group();

  // Some blocks have one output more than others.
  const int begin = each * blockIdx.x + min(static_cast<int>(blockIdx.x), more);
  const int count = each + (static_cast<int>(blockIdx.x) < more ? 1 : 0);
  const int tiles = (count + TILE - 1) / TILE;

  const Outputs outputs{begin, count, height_0, height_1, gated};
  const Matrices<T> matrices{
      {codes_0, codes_1, codes_2}, {scales_0, scales_1, scales_2}, {shifts_0, shifts_1, shifts_2}};
  const Three<const T*> biases{bias_0, bias_1, bias_2};
  const Three<T*> outs{out_0, out_1, out_2};
  const Three<int> heights{height_0, height_1, height_2};
  const Runs runs{tiles, batch, sides, pieces, warps, warp};
  WeightRing ring(matrices, outputs, runs, shared + warp * slots * slot_bytes, lane, width,
                  columns);
  // What is added to a product: biases, up's in y, and what the predecessor may have written.
  auto biases_of = [&](int row) {
    int local;
    const T* bias = biases.of(outputs.find(row, 0, local));
    float2 added = make_float2(0.0f, 0.0f);
    if (bias != nullptr) added.x = to_float(bias[local]);
    if (gated && bias_1 != nullptr) added.y = to_float(bias_1[local]);
    return added;
  };
  auto residual_at = [&](int row, int token) {
    return residual + (static_cast<long long>(token) * height_0 + begin + row);
  };

#if __CUDA_ARCH__ >= 900
  // Asked for by one warp before its own weights: others may be held up by theirs.
  if (warp == 0) {
    wait_for_predecessor();
    if (lane == 0) {
      const unsigned bytes = width * sizeof(T), barrier = shared_address(&x_is_here);
      barrier_expect(barrier, tokens * bytes);
      for (int token = 0; token < tokens; ++token) {
        copy_bulk(shared_address(inputs + token * x_pitch),
                  x + static_cast<long long>(token) * width, bytes, barrier);
      }
    }
  }
#endif
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) ring.fill_next(slot);
  // Of the thread's first output. What comes late is converted where it is needed.
  const int first_rows = min(batch * TILE, count);
  const bool adds = thread < first_rows * tokens;
  const int first_row = thread % first_rows;
  float2 added = make_float2(0.0f, 0.0f);
  if (adds) added = biases_of(first_row);
  T added_residual = from_float<T>(0.0f);
  const T* its_residual =
      adds && residual != nullptr ? residual_at(first_row, thread / first_rows) : nullptr;
  wait_for_predecessor();
  if (its_residual != nullptr) added_residual = load_late(its_residual);
#if __CUDA_ARCH__ >= 900
  __syncthreads();  // the barrier is there
  barrier_wait(shared_address(&x_is_here), 0);
#endif
  wait_for_groups_but(slots);  // this thread's share of the norm's weights, and of x

  Product product(inputs, x_pitch, sums, lane, tokens);
  if (norm_weight != nullptr) {
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      float square = 0.0f;
#pragma unroll 1
      for (int at = thread; at < packs; at += threads) {
        const Eight eight = Eight::of(inputs[token * x_pitch + at], T());
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          square += eight.pairs[i].x * eight.pairs[i].x + eight.pairs[i].y * eight.pairs[i].y;
        }
      }
      square = warp_sum(square);
      if (lane == 0) squares[token * MAX_WARPS + warp] = square;
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int token = 0; token < tokens; ++token) {
    float scale = 1.0f;
    if (norm_weight != nullptr) {
      const float square = warp_sum(lane < warps ? squares[token * MAX_WARPS + lane] : 0.0f);
      scale = rsqrtf(square / width + eps);
    }
#pragma unroll 1
    for (int start = 0; start < even_packs; start += threads) {
      const int at = start + thread;
      uint4 pack = uint4{};
      if (at < packs) {
        pack = inputs[token * x_pitch + at];
        if (norm_weight != nullptr) {
          pack = normalized<T>(pack, inputs[tokens * x_pitch + at], scale);
        }
      }
      product.prepare(token, at, even_packs, pack);
    }
  }
  __syncthreads();

  int slot = 0;
#pragma unroll 1
  for (int first = 0; first < tiles; first += batch) {
#pragma unroll 1
    for (Run run = runs.of(first); run.left > 0;) {
      wait_for_groups_but(slots - 1);
      __syncwarp();
      const int first_group = run.piece * ring.per_piece;
      product.multiply(ring.slot(slot), first_group, min(ring.per_piece, groups - first_group));
      __syncwarp();
      ring.fill_next(slot);
      const int segment = run.segment - first * sides;
      const bool ends = run.piece == pieces - 1;
      if (lane == 0 && run.piece == 0) owners[2 * segment] = warp;
      if (lane == 0 && ends) owners[2 * segment + 1] = warp;
      run.advance(pieces);
      if (ends || run.left == 0) {
        product.hand_over(partials + (segment + warp) * (TILE * TOKENS));
      }
      if (++slot == slots) slot = 0;
    }
    __syncthreads();

    // A segment's sum, in the order of its pieces. Of every two neighbours in (segment, warp) one
    // number is greater, so that both numbers' sum tells them apart.
    const int last = min(first + batch, tiles);
    auto sum_of = [&](int segment, int at) {
      float sum = 0.0f;
#pragma unroll 2
      for (int i = owners[2 * segment]; i <= owners[2 * segment + 1]; ++i) {
        sum += partials[(segment + i) * (TILE * TOKENS) + at];
      }
      return sum;
    };
    const int live_rows = min(batch * TILE, count - first * TILE);
#pragma unroll 1
    for (int output = thread; output < live_rows * tokens; output += threads) {
      const int row = output % live_rows, token = output / live_rows;
      const int segment = row / TILE * sides, at = row % TILE * TOKENS + token;
      if (first > 0 || output >= threads) {
        added = biases_of(first * TILE + row);
        if (residual != nullptr) {
          added_residual = load_late(residual_at(first * TILE + row, token));
        }
      }
      float result = sum_of(segment, at) + (added.x + to_float(added_residual));
      if (gated) {
        const float up = sum_of(segment + 1, at) + added.y;
        result = to_float(from_float<T>(result));
        result = result / (1.0f + expf(-result)) * to_float(from_float<T>(up));
      }
      int local;
      const int matrix = outputs.find(first * TILE + row, 0, local);
      outs.of(matrix)[static_cast<long long>(token) * heights.of(matrix) + local] =
          from_float<T>(result);
    }
    if (last < tiles) __syncthreads();
  }
}

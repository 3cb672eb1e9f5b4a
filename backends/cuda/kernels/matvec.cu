// out = x weight^T for a few rows of x, at the speed at which the weights can be read.
//
//   x           (tokens, width) T, 1 <= tokens <= TOKENS; width a multiple of 8
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
// of the rows. Shared memory: 2 (8 slots columns + (tokens + NORM) width) bytes. Reference:
// `linear`, `rms_norm`, `swiglu` of backends/reference/backend.py.
//
// A row is cut into pieces of `columns` columns, a multiple of 8, at most 2048 and so many that no
// piece is empty; there are at most 64 a row. The warps take the block's pieces in turn; each has
// `slots` (1 to 8) places of its own that weights are copied to asynchronously, so that no warp
// waits for another while weights flow. A piece's sum goes to shared memory; when a batch of rows
// is done, one thread an output adds up its pieces. The weights don't depend on earlier kernels:
// their copies start before the wait for those.
#include "copies.cuh"
#include "overlap.cuh"
#include "packs.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int PARTIALS = 1024;                 // sums of pieces that a block keeps
[[maybe_unused]] constexpr int MAX_SLOTS = 8;  // only chips with bulk copies have barriers
constexpr int STEPS = 8;                       // of 16 bytes a lane: a piece is as many at most

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, offset);
  }
  return value;
}

// A place in a block's sequence of pieces: outputs one by one, of each all pieces of its rows.
struct Place {
  int unit, part;

  __device__ __forceinline__ void advance(Place by, int parts) {
    unit += by.unit;
    part += by.part;
    if (part >= parts) part -= parts, ++unit;
  }
};

// sum += the products of 16 rows with 8 columns, 16 deep.
__device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, unsigned b_low, unsigned b_high,
                                         __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b_low), "r"(b_high));
}
__device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, unsigned b_low, unsigned b_high,
                                         __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b_low), "r"(b_high));
}

// The dot product of two runs of 256 a warp, eight neighbours a lane, by the tensor cores. The
// lanes' 16 bytes are taken for a 16 x 16 matrix each, W and X; what is wanted is the trace of W
// X^T. Lane 4 g + t holds of row g the first and third word, of row g + 8 the others, on both
// sides, so that the upper rows of W meet their own columns in `upper`, the lower ones in `lower`.
// Off the diagonals is nothing of use.
struct Dot {
  float upper[4] = {}, lower[4] = {};

  template <typename T>
  __device__ __forceinline__ void add(uint4 w, uint4 x, T) {
    multiply(upper, w, x.x, x.z, T());
    multiply(lower, w, x.y, x.w, T());
  }

  // In every lane.
  __device__ __forceinline__ float total(int lane) const {
    const int group = lane / 4;
    const bool diagonal = lane % 4 == group / 2;
    const float mine = group % 2 == 0 ? upper[0] + lower[2] : upper[1] + lower[3];
    return sum_of_warp(diagonal ? mine : 0.0f);
  }
};

template <typename T, bool GATED, bool NORM, int TOKENS>
__global__ void __launch_bounds__(THREADS)
    matvec(const T* x, const T* norm_weight, float eps, const T* weight_0, const T* weight_1,
           const T* weight_2, const T* bias_0, const T* bias_1, const T* bias_2, const T* residual,
           T* out_0, T* out_1, T* out_2, int height_0, int height_1, int height_2, int tokens,
           int width, int columns, int slots) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float partials[PARTIALS];
  __shared__ float squares[WARPS];
  __shared__ uint4 zeros;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (thread == 0) zeros = uint4{};
  T* ring = reinterpret_cast<T*>(shared) + warp * slots * columns;
  uint4* inputs = reinterpret_cast<uint4*>(shared + WARPS * slots * columns * sizeof(T));
  const int packs = width / 8;  // of 16 bytes in a row

  // Some blocks have one output more than others.
  const int all = GATED ? height_0 : height_0 + height_1 + height_2;
  const int grid = gridDim.x, block = blockIdx.x;
  const int begin = all / grid * block + min(block, all % grid);
  const int count = all / grid + (block < all % grid ? 1 : 0);
  const int pieces = (width + columns - 1) / columns;
  const int parts = GATED ? 2 * pieces : pieces;

  // The weights of a place, and how many.
  auto locate = [&](Place place, int& length) {
    int row = begin + place.unit, piece = place.part;
    const T* weight = weight_0;
    if (GATED && piece >= pieces) piece -= pieces, weight = weight_1;
    if (!GATED && row >= height_0) {
      row -= height_0, weight = weight_1;
      if (row >= height_1) row -= height_1, weight = weight_2;
    }
    length = min(columns, width - piece * columns);
    return weight + static_cast<long long>(row) * width + piece * columns;
  };
  // Copies them to a slot.
  auto fill = [&](Place place, int slot, [[maybe_unused]] unsigned barrier) {
    int length;
    const T* from = locate(place, length);
    const unsigned to = shared_address(ring + slot * columns);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      barrier_expect(barrier, length * sizeof(T));
      copy_bulk(to, from, length * sizeof(T), barrier, evict_first());
    }
#else
    for (int at = lane * 8; at < length; at += 256) {
      copy_16(to + at * sizeof(T), from + at);
    }
#endif
  };
  // Starts the copy of this thread's share of some rows.
  auto fetch = [&](int to, const T* from, int rows) {
    const uint4* source = reinterpret_cast<const uint4*>(from);
#pragma unroll 1
    for (int at = thread; at < rows * packs; at += THREADS) {
      copy_16(shared_address(inputs + to * packs + at), source + at);
    }
  };

  const Place stride{WARPS / parts, WARPS % parts};
  Place next{warp / parts, warp % parts};  // to be copied
  Place place = next;                      // to be multiplied
#if __CUDA_ARCH__ >= 900
  __shared__ __align__(8) unsigned long long barriers[WARPS * MAX_SLOTS];
  const unsigned first_barrier = shared_address(barriers + warp * MAX_SLOTS);
  if (lane == 0) {  // one lane alone: checking tools mix up what several do at once
#pragma unroll 1
    for (int slot = 0; slot < slots; ++slot) barrier_init(first_barrier + slot * 8, 1);
  }
  barrier_publish();
  __syncwarp();
#else
  const unsigned first_barrier = 0;
  fetch(0, x, tokens);
  if (NORM) fetch(tokens, norm_weight, 1);
  close_group();
#endif
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) {
    if (next.unit < count) fill(next, slot, first_barrier + slot * 8);
    next.advance(stride, parts);
#if __CUDA_ARCH__ < 900
    close_group();
#endif
  }
#if __CUDA_ARCH__ >= 900
  if (NORM) fetch(tokens, norm_weight, 1);
  let_successor_start();
  wait_for_predecessor();
  fetch(0, x, tokens);
  close_group();
#endif

  // What is added to a product; up's in y.
  auto addend = [&](int unit, int token) {
    int row = begin + unit, height = height_0;
    const T* bias = bias_0;
    if (!GATED && row >= height_0) {
      row -= height_0, height = height_1, bias = bias_1;
      if (row >= height_1) row -= height_1, height = height_2, bias = bias_2;
    }
    float2 added = make_float2(0.0f, 0.0f);
    if (bias != nullptr) added.x = to_float(bias[row]);
    if (GATED && bias_1 != nullptr) added.y = to_float(bias_1[row]);
    if (!GATED && residual != nullptr) {
      added.x += to_float(__ldcg(residual + static_cast<long long>(token) * height + row));
    }
    return added;
  };
  const int batch = PARTIALS / (parts * TOKENS);  // outputs at a time
  // Of the thread's first output: it comes while x does.
  const int first_units = min(batch, count);
  float2 added = make_float2(0.0f, 0.0f);
  if (thread < first_units * tokens) added = addend(thread % first_units, thread / first_units);

#if __CUDA_ARCH__ >= 900
  wait_for_groups<0>();
#else
  wait_for_groups_but(slots);
#endif
  if constexpr (NORM) {
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      uint4* row = inputs + token * packs;
      // A thread's own copies are the ones that it may read before a barrier.
      const int start = (thread + THREADS - token * packs % THREADS) % THREADS;
      float square = 0.0f;
#pragma unroll 1
      for (int at = start; at < packs; at += THREADS) {
        const Eight eight = Eight::of(row[at], T());
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          square += eight.pairs[i].x * eight.pairs[i].x + eight.pairs[i].y * eight.pairs[i].y;
        }
      }
      square = sum_of_warp(square);
      if (lane == 0) squares[warp] = square;
      __syncthreads();
      square = 0.0f;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) square += squares[i];
      const float scale = rsqrtf(square / width + eps);
#pragma unroll 1
      for (int at = start; at < packs; at += THREADS) {
        row[at] = normalized<T>(row[at], inputs[tokens * packs + at], scale);
      }
      __syncthreads();
    }
  } else {
    __syncthreads();
  }

  int slot = 0;
  [[maybe_unused]] unsigned parity = 0;
  for (int first = 0; first < count; first += batch) {
    const int last = min(first + batch, count);
    while (place.unit < last) {
      const int piece = GATED && place.part >= pieces ? place.part - pieces : place.part;
      const int length = min(columns, width - piece * columns) / 8;
      const uint4* given = inputs + piece * (columns / 8);
      auto load = [&](uint4(&to)[STEPS], const uint4* from) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          const int at = step * 32 + lane;
          to[step] = *(at < length ? from + at : &zeros);
        }
      };
      uint4 of_input[STEPS], of_weights[STEPS];
      load(of_input, given);
#if __CUDA_ARCH__ >= 900
      barrier_wait(first_barrier + slot * 8, parity);
#else
      wait_for_groups_but(slots - 1);
#endif
      load(of_weights, reinterpret_cast<const uint4*>(ring + slot * columns));
#if __CUDA_ARCH__ >= 900
      if (next.unit < count) fence_before_copy();
#endif
      __syncwarp();
      if (next.unit < count) fill(next, slot, first_barrier + slot * 8);
#if __CUDA_ARCH__ < 900
      close_group();
#endif
      Dot dots[TOKENS];
#pragma unroll
      for (int token = 0; token < TOKENS; ++token) {
        if (token > 0) load(of_input, given + min(token, tokens - 1) * packs);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          dots[token].add(of_weights[step], of_input[step], T());
        }
      }
#pragma unroll
      for (int token = 0; token < TOKENS; ++token) {
        const float total = dots[token].total(lane);
        if (lane == 0) {
          partials[((place.unit - first) * parts + place.part) * TOKENS + token] = total;
        }
      }
      next.advance(stride, parts);
      place.advance(stride, parts);
      if (++slot == slots) slot = 0, parity ^= 1;
    }
    __syncthreads();

#pragma unroll 1
    for (int output = thread; output < (last - first) * tokens; output += THREADS) {
      const int unit = output % (last - first), token = output / (last - first);
      if (first > 0 || output >= THREADS) added = addend(first + unit, token);
      const float* partial = partials + unit * parts * TOKENS + token;
      float result = 0.0f;
#pragma unroll 1
      for (int i = 0; i < pieces; ++i) result += partial[i * TOKENS];
      result += added.x;
      if constexpr (GATED) {
        float up = 0.0f;
#pragma unroll 1
        for (int i = pieces; i < parts; ++i) up += partial[i * TOKENS];
        up += added.y;
        result = to_float(from_float<T>(result));
        result = result / (1.0f + expf(-result)) * to_float(from_float<T>(up));
      }
      int row = begin + first + unit, height = height_0;
      T* out = out_0;
      if (!GATED && row >= height_0) {
        row -= height_0, height = height_1, out = out_1;
        if (row >= height_1) row -= height_1, height = height_2, out = out_2;
      }
      out[static_cast<long long>(token) * height + row] = from_float<T>(result);
    }
    if (last < count) __syncthreads();
  }
}

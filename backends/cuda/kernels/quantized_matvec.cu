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
//   gated: out_0 = silu(x weight_0^T + bias_0) * (x weight_1^T + bias_1); both factors are rounded
//   to T first. weight_1 is as high as weight_0, height_1 and height_2 are 0.
//
// T: __half or __nv_bfloat16. A group's products with the codes are summed in float, then times its
// scale, plus its shift times the sum of its x; one rounding at the end. Grid: any number of blocks
// of 1 to 16 warps (8 for TOKENS 16), best one a multiprocessor; each takes an equal share of the
// rows. Shared memory, in bytes: warps slots 16 pitch(columns BITS / 8) + 16 (tokens + norm)
// x_pitch(width) + 4 TOKENS (width / GROUP + 16 warps batch (1 + gated)). Reference: `linear`,
// `rms_norm`, `swiglu` of backends/reference/backend.py with the weights of omnitide/dequantize.py.
//
// A block's rows are cut into tiles of 16, a tile into pieces of `columns` columns, a multiple of
// GROUP, at most 16 groups. The warps take the pieces in turn; each has `slots` (1 to 8) places of
// its own that codes are copied to asynchronously, so that no warp waits for another while weights
// flow. The tensor cores multiply a tile by 8 rows of x. A warp's sums of a tile go to shared
// memory; when a batch of `batch` tiles is done, one thread an output adds them up. Weights don't
// depend on earlier kernels: their copies start before the wait for those.
#include "copies.cuh"
#include "overlap.cuh"
#include "packs.cuh"
#include "quantized.cuh"
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int TILE = 16;  // rows
constexpr int MAX_WARPS = 16;
[[maybe_unused]] constexpr int MAX_SLOTS = 8;  // only chips with bulk copies have barriers
constexpr int READ = 8;                        // scales of a row that are read at once

// Chips with bulk copies use them, unless told not to, to test what the others do.
#if __CUDA_ARCH__ >= 900 && !defined(PLAIN_COPIES)
#define BULK_COPIES 1
#else
#define BULK_COPIES 0
#endif

// Bytes from row to row in a slot, so that the lanes that read 4 WORDS bytes each of 8 rows meet
// no bank twice.
template <int WORDS>
__device__ __forceinline__ int pitch_of(int bytes) {
  return (bytes - 16 * WORDS + 127) / 128 * 128 + 16 * WORDS;
}

// A place in a block's sequence of pieces. A segment is a tile of a matrix; tiles of weight_0 and
// weight_1 take turns where they are gated.
struct Place {
  int segment, piece;

  __device__ __forceinline__ void advance(Place by, int pieces) {
    segment += by.segment;
    piece += by.piece;
    if (piece >= pieces) piece -= pieces, ++segment;
  }
};

// Reads up to READ scales of a row, as wide as they are aligned. What lies beyond `count` is 0.
__device__ __forceinline__ uint4 read_scales(const void* from, int count, int alignment) {
  uint4 read{};
  unsigned words[4] = {};
  if (alignment == 16) {
    if (count > 0) read = *static_cast<const uint4*>(from);
    return read;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (alignment == 4) {
      if (2 * i < count) words[i] = static_cast<const unsigned*>(from)[i];
    } else {
      const unsigned short* halves = static_cast<const unsigned short*>(from) + 2 * i;
      if (2 * i < count) words[i] = halves[0];
      if (2 * i + 1 < count) words[i] |= static_cast<unsigned>(halves[1]) << 16;
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The pairs of a pack of x in the order of the codes that `Parts` gives: lower halves first.
template <int BITS>
__device__ __forceinline__ uint4 as_parts(uint4 x) {
  if (BITS == 4) {
    return make_uint4(lower_halves(x.x, x.z), upper_halves(x.x, x.z), lower_halves(x.y, x.w),
                      upper_halves(x.y, x.w));
  }
  return make_uint4(lower_halves(x.x, x.y), upper_halves(x.x, x.y), lower_halves(x.z, x.w),
                    upper_halves(x.z, x.w));
}

// sum += a tile's 8 columns a lane with a pack of x; of each row that the lane holds, the codes of
// these columns. Lane 4 g + c holds of the tile rows g and g + 8.
template <typename T, int BITS>
__device__ __forceinline__ void multiply_pack(float (&sum)[4], const Parts<T, BITS>& parts,
                                              const unsigned* upper, const unsigned* lower,
                                              uint4 x) {
  if constexpr (BITS == 4) {
    multiply_add(sum, parts.template of<0>(*upper), parts.template of<0>(*lower),
                 parts.template of<1>(*upper), parts.template of<1>(*lower), x.x, x.y, T());
    multiply_add(sum, parts.template of<2>(*upper), parts.template of<2>(*lower),
                 parts.template of<3>(*upper), parts.template of<3>(*lower), x.z, x.w, T());
  } else {
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const unsigned u = upper[word], l = lower[word];
      const unsigned first = word == 0 ? x.x : x.z, second = word == 0 ? x.y : x.w;
      multiply_add(sum, parts.template of<0>(u), parts.template of<0>(l), parts.template of<1>(u),
                   parts.template of<1>(l), first, first, T());
      multiply_add(sum, parts.template of<2>(u), parts.template of<2>(l), parts.template of<3>(u),
                   parts.template of<3>(l), second, second, T());
    }
  }
}

// total += scale * sum + shift * sum_of_x
__device__ __forceinline__ void add_group(float& total, float scale, float sum, float shift,
                                          float sum_of_x) {
  total = fmaf(scale, sum, fmaf(shift, sum_of_x, total));
}

template <typename T, int BITS, int GROUP, int TOKENS>
__global__ void __launch_bounds__(TOKENS > 8 ? 256 : 512, 1)
    quantized_matvec(const T* x, const T* norm_weight, float eps, const unsigned* codes_0,
                     const unsigned* codes_1, const unsigned* codes_2, const T* scales_0,
                     const T* scales_1, const T* scales_2, const T* shifts_0, const T* shifts_1,
                     const T* shifts_2, const T* bias_0, const T* bias_1, const T* bias_2,
                     const T* residual, T* out_0, T* out_1, T* out_2, int height_0, int height_1,
                     int height_2, int tokens, int width, int columns, int slots, int batch,
                     bool gated) {
  constexpr int FOLD = GROUP < 64 ? GROUP : 64;  // columns that four lanes read at once
  constexpr int WORDS = FOLD * BITS / 128;       // of codes of a row, a lane's share of these
  constexpr int PACKS = FOLD / 32;               // of x, the same
  constexpr int GRID_TILES = (TOKENS + 7) / 8;   // of 8 rows of x
  constexpr int FOLDS_AT_ONCE = BITS == 8 ? 1 : GROUP / FOLD;  // with more, registers spill
  // What the codes of a group were multiplied by beside themselves.
  constexpr float POWER = Parts<T, BITS>::LOWER + (BITS == 8 ? Parts<T, BITS>::UPPER : 0.0f);

  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares[TOKENS * MAX_WARPS];
  const int thread = threadIdx.x, threads = blockDim.x, warps = threads / 32;
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;

  const int pitch = pitch_of<WORDS>(columns * BITS / 8);
  unsigned char* ring = shared + warp * slots * TILE * pitch;
  uint4* inputs = reinterpret_cast<uint4*>(shared + warps * slots * TILE * pitch);
  const int packs = width / 8;  // of a row of x
  // Groups are multiplied by twos; x of one that isn't there is 0.
  const int groups = width / GROUP, even_groups = (groups + 1) / 2 * 2;
  const int even_packs = even_groups * (GROUP / 8);
  // Two tokens' packs that lanes read at once meet no bank twice.
  const int x_pitch = PACKS == 2 ? even_packs + 1 : even_packs | 4;
  float* sums = reinterpret_cast<float*>(inputs + (tokens + (norm_weight != nullptr)) * x_pitch);
  float* partials = sums + even_groups * TOKENS;

  // Some blocks have one output more than others.
  const int all = gated ? height_0 : height_0 + height_1 + height_2;
  const int grid = gridDim.x, block = blockIdx.x;
  const int begin = all / grid * block + min(block, all % grid);
  const int count = all / grid + (block < all % grid ? 1 : 0);
  const int sides = gated ? 2 : 1;
  const int tiles = (count + TILE - 1) / TILE, segments = tiles * sides;
  const int pieces = (width + columns - 1) / columns;

  // The matrix that holds a row of the block, and which of its rows that is.
  auto find = [&](int row, int side, int& local) {
    local = begin + row;
    if (gated) return side;
    if (local < height_0) return 0;
    local -= height_0;
    if (local < height_1) return 1;
    local -= height_1;
    return 2;
  };
  auto choose = [](int matrix, auto first, auto second, auto third) {
    return matrix == 0 ? first : matrix == 1 ? second : third;
  };
  auto rows_of = [&](Place place) { return min(TILE, count - place.segment / sides * TILE); };
  // Copies the codes of a place to a slot.
  auto fill = [&](Place place, int slot, [[maybe_unused]] unsigned barrier) {
    const int tile = place.segment / sides, rows = rows_of(place);
    const int first = place.piece * columns;
    const int bytes = min(columns, width - first) * BITS / 8;
    const unsigned to = shared_address(ring + slot * TILE * pitch);
    auto source = [&](int at) {
      int row;
      const int matrix = find(tile * TILE + at, place.segment % sides, row);
      const unsigned* codes = choose(matrix, codes_0, codes_1, codes_2);
      return reinterpret_cast<const unsigned char*>(codes) +
             (static_cast<long long>(row) * width + first) * BITS / 8;
    };
#if BULK_COPIES
    if (lane == 0) barrier_expect(barrier, rows * bytes);
    __syncwarp();
    if (lane < rows) copy_bulk(to + lane * pitch, source(lane), bytes, barrier, evict_first());
#else
#pragma unroll 1
    for (int at = lane / 16; at < rows; at += 2) {
      const unsigned char* from = source(at);
#pragma unroll 1
      for (int byte = lane % 16 * 16; byte < bytes; byte += 256) {
        copy_16(to + at * pitch + byte, from + byte, evict_first());
      }
    }
#endif
  };
  // Scales of row `lane` of a place, or shifts of row `lane - 16`.
  const int per_piece = columns / GROUP;
  const int alignment = per_piece % READ == 0 && groups % READ == 0 ? 16
                        : per_piece % 2 == 0 && groups % 2 == 0     ? 4
                                                                    : 2;
  auto read = [&](uint4(&to)[2], Place place) {
    const int at = lane % TILE;
    int row;
    const int matrix = find(place.segment / sides * TILE + at, place.segment % sides, row);
    const T* from = lane < TILE ? choose(matrix, scales_0, scales_1, scales_2)
                                : choose(matrix, shifts_0, shifts_1, shifts_2);
    from += static_cast<long long>(row) * groups + place.piece * per_piece;
    const int live = at < rows_of(place) ? min(per_piece, groups - place.piece * per_piece) : 0;
    to[0] = read_scales(from, live, alignment);
    to[1] = read_scales(from + READ, live - READ, alignment);
  };
  // Starts the copy of this thread's packs of some rows.
  auto fetch = [&](int to, const T* from, int rows) {
    const uint4* source = reinterpret_cast<const uint4*>(from);
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll 1
      for (int at = thread; at < packs; at += threads) {
        copy_16(shared_address(inputs + (to + row) * x_pitch + at), source + row * packs + at,
                evict_normal());
      }
    }
  };

  const Place stride{warps / pieces, warps % pieces};
  Place next{warp / pieces, warp % pieces};  // to be copied
  Place place = next;                        // to be multiplied
#if BULK_COPIES
  __shared__ __align__(8) unsigned long long barriers[MAX_WARPS * MAX_SLOTS];
  const unsigned first_barrier = shared_address(barriers + warp * MAX_SLOTS);
  if (lane < slots) barrier_init(first_barrier + lane * 8, 1);
  barrier_publish();
  __syncwarp();
#else
  const unsigned first_barrier = 0;
  let_successor_start();
  wait_for_predecessor();
  fetch(0, x, tokens);
  if (norm_weight != nullptr) fetch(tokens, norm_weight, 1);
  close_group();
#endif
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) {
    if (next.segment < segments) fill(next, slot, first_barrier + slot * 8);
    next.advance(stride, pieces);
#if !BULK_COPIES
    close_group();
#endif
  }
  uint4 upcoming[2] = {};
  if (place.segment < segments) read(upcoming, place);
#if BULK_COPIES
  if (norm_weight != nullptr) fetch(tokens, norm_weight, 1);
  let_successor_start();
  wait_for_predecessor();
  fetch(0, x, tokens);
  close_group();
  wait_for_groups<0>();
#else
  wait_for_groups_but(slots);
#endif

  // A thread's own copies are the ones that it may read before a barrier.
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
      float square = 0.0f;
      for (int i = 0; i < warps; ++i) square += squares[token * MAX_WARPS + i];
      scale = rsqrtf(square / width + eps);
    }
#pragma unroll 1
    for (int start = 0; start < even_packs; start += threads) {
      const int at = start + thread;
      float sum = 0.0f;
      if (at < even_packs) {
        uint4& held = inputs[token * x_pitch + at];
        uint4 pack = at < packs ? held : uint4{};
        if (norm_weight != nullptr && at < packs) {
          pack = normalized<T>(pack, inputs[tokens * x_pitch + at], scale);
        }
        const Eight eight = Eight::of(pack, T());
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += eight.pairs[i].x + eight.pairs[i].y;
        held = as_parts<BITS>(pack);
      }
#pragma unroll
      for (int apart = 1; apart < GROUP / 8; apart *= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, apart);
      }
      if (at < even_packs && at % (GROUP / 8) == 0) sums[at / (GROUP / 8) * TOKENS + token] = sum;
    }
  }
  __syncthreads();

  // What is added to a product; up's in y.
  auto addend = [&](int row, int token) {
    int local;
    const int matrix = find(row, 0, local);
    const T* bias = choose(matrix, bias_0, bias_1, bias_2);
    float2 added = make_float2(0.0f, 0.0f);
    if (bias != nullptr) added.x = to_float(bias[local]);
    if (gated && bias_1 != nullptr) added.y = to_float(bias_1[local]);
    if (residual != nullptr) {
      added.x += to_float(__ldcg(residual + static_cast<long long>(token) * height_0 + local));
    }
    return added;
  };

  // Tokens whose x a lane holds for the tensor cores, and of which it gets sums.
  int given[GRID_TILES];
#pragma unroll
  for (int i = 0; i < GRID_TILES; ++i) given[i] = min(8 * i + g, tokens - 1) * x_pitch;

  const Parts<T, BITS> parts;
  float total[GRID_TILES][4] = {};
  int slot = 0;
  [[maybe_unused]] unsigned parity = 0;
#pragma unroll 1
  for (int first = 0; first < tiles; first += batch) {
    const int last = min(first + batch, tiles) * sides;  // segment
#pragma unroll 1
    while (place.segment < last) {
      uint4 held[2] = {upcoming[0], upcoming[1]};
      Place after = place;
      after.advance(stride, pieces);
      if (after.segment < segments) read(upcoming, after);
#if BULK_COPIES
      barrier_wait(first_barrier + slot * 8, parity);
#else
      wait_for_groups_but(slots - 1);
      __syncwarp();
#endif
      const int first_group = place.piece * per_piece;
      const int live = min(per_piece, groups - first_group);
      const unsigned char* codes = ring + slot * TILE * pitch + g * pitch + c * WORDS * 4;
      const uint4* packs_of_x = inputs + c * PACKS + first_group * (GROUP / 8);
      const float* sums_of_x = sums + first_group * TOKENS + (TOKENS == 1 ? 0 : 2 * c);
#pragma unroll 1
      for (int start = 0; start < live; start += READ) {
        const unsigned words[4] = {held[0].x, held[0].y, held[0].z, held[0].w};
        held[0] = held[1];
#pragma unroll
        for (int group = 0; group < READ; group += 2) {
          if (start + group >= live) break;
          float2 of_rows[4];  // scales of rows g and g + 8 for both groups, then shifts
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            of_rows[i] = unpack_two(__shfl_sync(ALL_LANES, words[group / 2], 8 * i + g), T());
          }
          // Beyond the last group, scales and shifts are 0 and x is finite.
          float sum[2][GRID_TILES][4] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll FOLDS_AT_ONCE
            for (int fold = 0; fold < GROUP / FOLD; ++fold) {
              const int column = (group + half) * GROUP + fold * FOLD;
              const unsigned char* from = codes + column * BITS / 8;
              const auto upper = *reinterpret_cast<const Vector<unsigned, WORDS>*>(from);
              const auto lower =
                  *reinterpret_cast<const Vector<unsigned, WORDS>*>(from + 8 * pitch);
#pragma unroll
              for (int i = 0; i < GRID_TILES; ++i) {
#pragma unroll
                for (int pack = 0; pack < PACKS; ++pack) {
                  multiply_pack<T, BITS>(sum[half][i], parts, upper.at + pack * (BITS / 4),
                                         lower.at + pack * (BITS / 4),
                                         packs_of_x[given[i] + column / 8 + pack]);
                }
              }
            }
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float of_row[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) of_row[i] = half == 0 ? of_rows[i].x : of_rows[i].y;
            const float upper_shift = of_row[2] - POWER * of_row[0];
            const float lower_shift = of_row[3] - POWER * of_row[1];
            const float* of_x = sums_of_x + (group + half) * TOKENS;
            if constexpr (TOKENS == 1) {
              add_group(total[0][0], of_row[0], sum[half][0][0], upper_shift, *of_x);
              add_group(total[0][2], of_row[1], sum[half][0][2], lower_shift, *of_x);
            } else {
#pragma unroll
              for (int i = 0; i < GRID_TILES; ++i) {
                const float2 both = *reinterpret_cast<const float2*>(of_x + 8 * i);
                add_group(total[i][0], of_row[0], sum[half][i][0], upper_shift, both.x);
                add_group(total[i][1], of_row[0], sum[half][i][1], upper_shift, both.y);
                add_group(total[i][2], of_row[1], sum[half][i][2], lower_shift, both.x);
                add_group(total[i][3], of_row[1], sum[half][i][3], lower_shift, both.y);
              }
            }
          }
        }
        codes += READ * GROUP * BITS / 8;
        packs_of_x += READ * GROUP / 8;
        sums_of_x += READ * TOKENS;
      }
#if BULK_COPIES
      if (next.segment < segments) fence_before_copy();
#endif
      __syncwarp();
      if (next.segment < segments) fill(next, slot, first_barrier + slot * 8);
#if !BULK_COPIES
      close_group();
#endif
      next.advance(stride, pieces);
      if (after.segment != place.segment) {
        float* to = partials + ((place.segment - first * sides) * warps + warp) * TILE * TOKENS;
        if constexpr (TOKENS == 1) {
          if (c == 0) to[g] = total[0][0], to[g + 8] = total[0][2];
          total[0][0] = total[0][2] = 0.0f;
        } else {
#pragma unroll
          for (int i = 0; i < GRID_TILES; ++i) {
            float* here = to + g * TOKENS + 8 * i + 2 * c;
            *reinterpret_cast<float2*>(here) = make_float2(total[i][0], total[i][1]);
            here += 8 * TOKENS;
            *reinterpret_cast<float2*>(here) = make_float2(total[i][2], total[i][3]);
#pragma unroll
            for (int j = 0; j < 4; ++j) total[i][j] = 0.0f;
          }
        }
      }
      place = after;
      if (++slot == slots) slot = 0, parity ^= 1;
    }
    __syncthreads();

    // The sum of a segment's warps, in the order of its pieces.
    auto product = [&](int segment, int at) {
      float sum = 0.0f;
      int from = segment * pieces % warps;
#pragma unroll 1
      for (int i = min(pieces, warps); i > 0; --i) {
        sum += partials[((segment - first * sides) * warps + from) * TILE * TOKENS + at];
        if (++from == warps) from = 0;
      }
      return sum;
    };
    const int rows = min(batch * TILE, count - first * TILE);
#pragma unroll 1
    for (int output = thread; output < rows * tokens; output += threads) {
      const int row = output % rows, token = output / rows;
      const int segment = (first + row / TILE) * sides, at = row % TILE * TOKENS + token;
      const float2 added = addend(first * TILE + row, token);
      float result = product(segment, at) + added.x;
      if (gated) {
        const float up = product(segment + 1, at) + added.y;
        result = to_float(from_float<T>(result));
        result = result / (1.0f + expf(-result)) * to_float(from_float<T>(up));
      }
      int local;
      const int matrix = find(first * TILE + row, 0, local);
      T* out = choose(matrix, out_0, out_1, out_2);
      const int height = choose(matrix, height_0, height_1, height_2);
      out[static_cast<long long>(token) * height + local] = from_float<T>(result);
    }
    if (last < segments) __syncthreads();
  }
}

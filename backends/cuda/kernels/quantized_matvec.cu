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
// T: __half or __nv_bfloat16. A group's products with the codes are summed in float, then times its
// scale, plus its shift times the sum of its x; one rounding at the end. What is infinite in x may
// come out as NaN. Grid: any number of blocks of 1 to 16 warps (8 for TOKENS 16 or 8 bits). Shared
// memory, in bytes, with `groups` rounded up to an even number: warps slots (16 pitch(columns BITS
// / 8) + 512 reads) + 16 (tokens + norm) x_pitch(width) + 4 TOKENS (groups + 16 (batch (1 + gated)
// + warps - 1)) + 8 batch (1 + gated), where `reads` is columns / GROUP in eights. Reference:
// `linear`, `rms_norm`, `swiglu` of backends/reference/backend.py with the weights of
// omnitide/dequantize.py.
//
// A block's rows are cut into tiles of 16, a tile into pieces of `columns` columns, an even number
// of groups, at most 16. Of the pieces of a batch of `batch` tiles each warp takes an equal run. A
// warp has `slots` (1 to 8) places of its own that codes and scales are copied to asynchronously,
// so that no warp waits for another while weights flow. The tensor cores multiply a tile by 8 rows
// of x. A warp's sums of a tile go to shared memory; when a batch is done, one thread an output
// adds them up.
//
// Where launches overlap, all places are filled while the predecessor still runs. Then x comes in
// one bulk copy, which need not queue behind the weights' copies. Older chips ask for x first.
#include "copies.cuh"
#include "fixed_point.cuh"
#include "overlap.cuh"
#include "packs.cuh"
#include "quantized.cuh"
#include "reductions.cuh"
#include "scales.cuh"
#include "vectors.cuh"

constexpr int TILE = 16;  // rows
constexpr int MAX_WARPS = 16;
constexpr int SCALES = 32 * 2 * READ;  // bytes of a tile's scales and shifts of READ groups

// Bytes from row to row in a slot, so that the lanes that read 4 WORDS bytes each of 8 rows meet
// no bank twice.
template <int WORDS>
__device__ __forceinline__ int pitch_of(int bytes) {
  return (bytes - 16 * WORDS + 127) / 128 * 128 + 16 * WORDS;
}

// What the predecessor may have written, from the L2 cache. Stays behind `wait_for_predecessor`.
template <typename T>
__device__ __forceinline__ T load_late(const T* from) {
  unsigned short bits;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(from) : "memory");
  return *reinterpret_cast<T*>(&bits);
}

// An equal share of things in a row; the first shares hold one more.
struct Share {
  int begin, count;

  __device__ __forceinline__ static Share of(int things, int shares, int index) {
    const int each = things / shares, more = things % shares;
    return {each * index + min(index, more), each + (index < more ? 1 : 0)};
  }
};

// A place in a block's sequence of pieces, and how many are left of the warp's run. A segment is a
// tile of a matrix; tiles of weight_0 and weight_1 take turns where they are gated.
struct Place {
  int segment, piece, left;

  __device__ __forceinline__ void advance(int pieces) {
    if (++piece == pieces) piece = 0, ++segment;
    --left;
  }
};

// One of a pack's four words; i is known when this is compiled.
__device__ __forceinline__ unsigned word_of(uint4 pack, int i) {
  return i == 0 ? pack.x : i == 1 ? pack.y : i == 2 ? pack.z : pack.w;
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
__global__ void __launch_bounds__(TOKENS > 8 || (BITS == 8 && TOKENS > 1) ? 256 : 512, 1)
    quantized_matvec(const T* x, const T* norm_weight, float eps, const unsigned* codes_0,
                     const unsigned* codes_1, const unsigned* codes_2, const T* scales_0,
                     const T* scales_1, const T* scales_2, const T* shifts_0, const T* shifts_1,
                     const T* shifts_2, const T* bias_0, const T* bias_1, const T* bias_2,
                     const T* residual, T* out_0, T* out_1, T* out_2, int height_0, int height_1,
                     int height_2, int tokens, int width, int columns, int pieces, int slots,
                     int batch, int each, int more, bool gated) {
  constexpr int FOLD = GROUP < 64 ? GROUP : 64;  // columns that four lanes read at once
  constexpr int WORDS = FOLD * BITS / 128;       // of codes of a row, a lane's share of these
  constexpr int PACKS = FOLD / 32;               // of x, the same
  constexpr int GRID_TILES = (TOKENS + 7) / 8;   // of 8 rows of x
  constexpr int FOLDS_AT_ONCE = BITS == 8 ? 1 : GROUP / FOLD;  // with more, registers spill
  // What the codes of a group were multiplied by beside themselves.
  constexpr float POWER = Parts<T, BITS>::LOWER + (BITS == 8 ? Parts<T, BITS>::UPPER : 0.0f);

  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares[TOKENS * MAX_WARPS];
  __shared__ uint4 zeros;
  const int thread = threadIdx.x, threads = blockDim.x, warps = threads / 32;
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;

  const int pitch = pitch_of<WORDS>(columns * BITS / 8);
  const int per_piece = columns / GROUP;
  const int slot_bytes = TILE * pitch + (per_piece + READ - 1) / READ * SCALES;
  unsigned char* ring = shared + warp * slots * slot_bytes;
  uint4* inputs = reinterpret_cast<uint4*>(shared + warps * slots * slot_bytes);
  const int packs = width / 8;  // of a row of x
  // Groups are multiplied by twos; x of one that isn't there is 0.
  const int groups = width / GROUP, even_groups = (groups + 1) / 2 * 2;
  const int even_packs = even_groups * (GROUP / 8);
  // Two tokens' packs that lanes read at once meet no bank twice.
  const int x_pitch = PACKS == 2 ? even_packs + 1 : even_packs | 4;
  float* sums = reinterpret_cast<float*>(inputs + (tokens + (norm_weight != nullptr)) * x_pitch);
  // The first and the last warp that add to a segment, then their sums.
  const int sides = gated ? 2 : 1;
  int* owners = reinterpret_cast<int*>(sums + even_groups * (TOKENS == 1 ? 2 : TOKENS));
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
  if (thread == 0) zeros = uint4{};
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
  const int row_bytes = width / 8 * BITS;
  // A lane copies 16 bytes, a chunk, of a row; the lanes together as many rows at once as they can,
  // a power of two.
  const int whole_chunks = columns * BITS / 128;
  const int last_chunks = (width - (pieces - 1) * columns) * BITS / 128;
  const int row_shift = min(32 - __clz(whole_chunks - 1), 5);
  const int rows_at_once = 32 >> row_shift;
  const int lane_row = lane >> row_shift, lane_chunk = lane & ((1 << row_shift) - 1);
  // Of the segment that is being copied: rows; where the codes of this lane's first row begin if
  // all rows are of one matrix; and where the scales of row lane % TILE begin or, for the upper
  // half of the lanes, shifts.
  int rows = 0, located = -1;
  bool same_matrix = true;
  const unsigned char* codes_from = nullptr;
  const T* scales_from = nullptr;
  auto codes_of = [&](int matrix, int row) {
    return reinterpret_cast<const unsigned char*>(choose(matrix, codes_0, codes_1, codes_2)) +
           static_cast<long long>(row) * row_bytes;
  };
  auto locate = [&](int segment) {
    const int first = (gated ? segment / 2 : segment) * TILE, side = gated ? segment % 2 : 0;
    rows = min(TILE, count - first);
    int row;
    const int last = find(first + rows - 1, side, row);
    int matrix = find(first + min(lane % TILE, rows - 1), side, row);
    scales_from = (lane < TILE ? choose(matrix, scales_0, scales_1, scales_2)
                               : choose(matrix, shifts_0, shifts_1, shifts_2)) +
                  static_cast<long long>(row) * groups;
    matrix = find(first, side, row);
    codes_from = codes_of(matrix, row + lane_row);
    same_matrix = matrix == last;
    located = segment;
  };
  const int alignment = alignment_of_scales(groups | per_piece);
  // Copies the codes and scales of a place to a slot.
  auto fill = [&](Place place, int slot) {
    if (place.segment != located) locate(place.segment);
    unsigned char* to = ring + slot * slot_bytes;
    const int chunks = place.piece < pieces - 1 ? whole_chunks : last_chunks;
#pragma unroll 1
    for (int chunk = lane_chunk; chunk < chunks; chunk += 32) {
      const int byte = place.piece * whole_chunks * 16 + chunk * 16;
      unsigned target = shared_address(to) + lane_row * pitch + chunk * 16;
      if (same_matrix) {
        const unsigned char* source = codes_from + byte;
#pragma unroll 1
        for (int first = lane_row; first < TILE; first += 8 * rows_at_once) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (first + i * rows_at_once < rows) copy_16(target, source);
            target += rows_at_once * pitch;
            source += rows_at_once * row_bytes;
          }
        }
      } else {
#pragma unroll 1
        for (int row = lane_row; row < rows; row += rows_at_once) {
          int local;
          const int matrix = find(place.segment * TILE + row, 0, local);
          copy_16(target, codes_of(matrix, local) + byte);
          target += rows_at_once * pitch;
        }
      }
    }
    const int first_group = place.piece * per_piece;
    const int live = lane % TILE < rows ? min(per_piece, groups - first_group) : 0;
    unsigned char* scales_to = to + TILE * pitch + lane * (2 * READ);
#pragma unroll 1
    for (int start = 0; start < per_piece; start += READ) {
      copy_scales(scales_to + start / READ * SCALES,
                  scales_from + (start < live ? first_group + start : 0), live - start, alignment);
    }
    if (alignment == 2) __syncwarp();
  };
  // This warp's run in a batch of tiles.
  auto run_of = [&](int first) {
    const Share share =
        Share::of((min(first + batch, tiles) - first) * sides * pieces, warps, warp);
    return Place{first * sides + share.begin / pieces, share.begin % pieces, share.count};
  };
  // What is to be copied next, in the batch that begins with `next_first`.
  int next_first = 0;
  Place next = run_of(0);
  auto fill_next = [&](int slot) {
    while (next.left == 0 && next_first + batch < tiles) {
      next_first += batch;
      next = run_of(next_first);
    }
    if (next.left > 0) {
      fill(next, slot);
      next.advance(pieces);
    }
    close_group();
  };
  // What is added to a product: biases, up's in y, and what the predecessor may have written.
  auto biases_of = [&](int row) {
    int local;
    const int matrix = find(row, 0, local);
    const T* bias = choose(matrix, bias_0, bias_1, bias_2);
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
  for (int slot = 0; slot < slots; ++slot) fill_next(slot);
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
      if constexpr (TOKENS == 1) {
        const Eight eight = Eight::of(pack, T());
        unsigned greatest = greatest_of(eight);
#pragma unroll
        for (int apart = 1; apart < GROUP / 8; apart *= 2) {
          greatest = max(greatest, __shfl_xor_sync(ALL_LANES, greatest, apart));
        }
        const Numbers numbers = Numbers::of<BITS>(eight, inverse_of(greatest));
        int sum = numbers.sum;
#pragma unroll
        for (int apart = 1; apart < GROUP / 8; apart *= 2) {
          sum += __shfl_xor_sync(ALL_LANES, sum, apart);
        }
        __syncwarp();  // all have read what others overwrite
        if (at < even_packs) {
          uint2* to =
              reinterpret_cast<uint2*>(inputs + at / (FOLD / 8) * (FOLD / 8)) + at % (FOLD / 8);
          to[0] = numbers.upper;
          to[FOLD / 8] = numbers.lower;
          if (at % (GROUP / 8) == 0) {
            const float factor = factor_of(greatest);
            reinterpret_cast<Group*>(sums)[at / (GROUP / 8)] = {factor, factor * sum};
          }
        }
      } else {
        float sum = 0.0f;
        const Eight eight = Eight::of(pack, T());
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += eight.pairs[i].x + eight.pairs[i].y;
        if (at < even_packs) inputs[token * x_pitch + at] = as_parts<BITS>(pack);
#pragma unroll
        for (int apart = 1; apart < GROUP / 8; apart *= 2) {
          sum += __shfl_xor_sync(ALL_LANES, sum, apart);
        }
        if (at < even_packs && at % (GROUP / 8) == 0) {
          sums[at / (GROUP / 8) * TOKENS + token] = sum;
        }
      }
    }
  }
  __syncthreads();

  // Tokens whose x a lane holds for the tensor cores, and of which it gets sums.
  int given[GRID_TILES];
#pragma unroll
  for (int i = 0; i < GRID_TILES; ++i) given[i] = min(8 * i + g, tokens - 1) * x_pitch;

  const Parts<T, BITS> parts;
  const unsigned char* nothing = reinterpret_cast<const unsigned char*>(&zeros);
  float total[GRID_TILES][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int first = 0; first < tiles; first += batch) {
#pragma unroll 1
    for (Place place = run_of(first); place.left > 0;) {
      wait_for_groups_but(slots - 1);
      __syncwarp();
      const int first_group = place.piece * per_piece;
      const int live = min(per_piece, groups - first_group);
      const unsigned char* from_slot = ring + slot * slot_bytes;
      const unsigned char* codes = from_slot + g * pitch + c * WORDS * 4;
      const uint4* scales = reinterpret_cast<const uint4*>(from_slot + TILE * pitch) + g;
      const uint4* packs_of_x = inputs + c * PACKS + first_group * (GROUP / 8);
      const float* sums_of_x = sums + first_group * TOKENS + (TOKENS == 1 ? 0 : 2 * c);
      // Of one token: the bytes that this lane multiplies by, the upper or the lower ones.
      const unsigned char* numbers = reinterpret_cast<const unsigned char*>(inputs) +
                                     first_group * (2 * GROUP) + g % 2 * FOLD + c * (FOLD / 4);
      const Group* groups_of_x = reinterpret_cast<const Group*>(sums) + first_group;
#pragma unroll 1
      for (int start = 0; start < live; start += READ) {
        if constexpr (TOKENS == 1) {
          int sum[2][4] = {};  // of even and odd groups
#pragma unroll
          for (int group = 0; group < READ; group += 2) {
            if (start + group >= live) break;
            const bool mine = g / 2 == group / 2;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll FOLDS_AT_ONCE
              for (int fold = 0; fold < GROUP / FOLD; ++fold) {
                const int column = (group + half) * GROUP + fold * FOLD;
                const unsigned char* from = codes + column * BITS / 8;
                const auto upper = *reinterpret_cast<const Vector<unsigned, WORDS>*>(from);
                const auto lower =
                    *reinterpret_cast<const Vector<unsigned, WORDS>*>(from + 8 * pitch);
                const auto of_x = *reinterpret_cast<const Vector<unsigned, 2 * PACKS>*>(
                    mine ? numbers + column * 2 : nothing);
#pragma unroll
                for (int pack = 0; pack < PACKS; ++pack) {
                  multiply_codes<BITS>(sum[half], upper.at + pack * (BITS / 4),
                                       lower.at + pack * (BITS / 4), of_x.at[2 * pack],
                                       of_x.at[2 * pack + 1]);
                }
              }
            }
          }
          if (start + 2 * c < live) {
            const unsigned* words = reinterpret_cast<const unsigned*>(scales) + c;
            float2 of_rows[4];  // of both groups: scales of rows g and g + 8, then shifts
#pragma unroll
            for (int i = 0; i < 4; ++i) of_rows[i] = unpack_two(words[32 * i], T());
            const float4 of_x = *reinterpret_cast<const float4*>(groups_of_x + 2 * c);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float first = __int2float_rn(256 * sum[0][2 * i] + sum[0][2 * i + 1]);
              const float second = __int2float_rn(256 * sum[1][2 * i] + sum[1][2 * i + 1]);
              float& all = total[0][2 * i];
              add_group(all, of_rows[i].x * of_x.x, first, of_rows[2 + i].x, of_x.y);
              add_group(all, of_rows[i].y * of_x.z, second, of_rows[2 + i].y, of_x.w);
            }
          }
        } else {
          uint4 of_row[4];  // scales of rows g and g + 8, then shifts
#pragma unroll
          for (int i = 0; i < 4; ++i) of_row[i] = scales[8 * i];
#pragma unroll
          for (int group = 0; group < READ; group += 2) {
            if (start + group >= live) break;
            float2 of_rows[4];  // of both groups
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              of_rows[i] = unpack_two(word_of(of_row[i], group / 2), T());
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
              float by[4];
#pragma unroll
              for (int i = 0; i < 4; ++i) by[i] = half == 0 ? of_rows[i].x : of_rows[i].y;
              const float upper_shift = by[2] - POWER * by[0];
              const float lower_shift = by[3] - POWER * by[1];
              const float* of_x = sums_of_x + (group + half) * TOKENS;
              {
#pragma unroll
                for (int i = 0; i < GRID_TILES; ++i) {
                  const float2 both = *reinterpret_cast<const float2*>(of_x + 8 * i);
                  add_group(total[i][0], by[0], sum[half][i][0], upper_shift, both.x);
                  add_group(total[i][1], by[0], sum[half][i][1], upper_shift, both.y);
                  add_group(total[i][2], by[1], sum[half][i][2], lower_shift, both.x);
                  add_group(total[i][3], by[1], sum[half][i][3], lower_shift, both.y);
                }
              }
            }
          }
        }
        codes += READ * GROUP * BITS / 8;
        scales += 32;
        packs_of_x += READ * GROUP / 8;
        sums_of_x += READ * TOKENS;
        numbers += READ * GROUP * 2;
        groups_of_x += READ;
      }
      __syncwarp();
      fill_next(slot);
      const int segment = place.segment - first * sides;
      const bool ends = place.piece == pieces - 1;
      if (lane == 0 && place.piece == 0) owners[2 * segment] = warp;
      if (lane == 0 && ends) owners[2 * segment + 1] = warp;
      place.advance(pieces);
      if (ends || place.left == 0) {
        float* to = partials + (segment + warp) * (TILE * TOKENS);
        if constexpr (TOKENS == 1) {
#pragma unroll
          for (int apart = 1; apart < 4; apart *= 2) {
            total[0][0] += __shfl_xor_sync(ALL_LANES, total[0][0], apart);
            total[0][2] += __shfl_xor_sync(ALL_LANES, total[0][2], apart);
          }
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
      if (++slot == slots) slot = 0;
    }
    __syncthreads();

    // A segment's sum, in the order of its pieces. Of every two neighbours in (segment, warp) one
    // number is greater, so that both numbers' sum tells them apart.
    const int last = min(first + batch, tiles);
    auto product = [&](int segment, int at) {
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
      float result = product(segment, at) + (added.x + to_float(added_residual));
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
    if (last < tiles) __syncthreads();
  }
}

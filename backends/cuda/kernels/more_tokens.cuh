// Up to TOKENS rows of x in 16 bits, and their product with a warp's tiles.
//
// Codes become 16-bit numbers (quantized.cuh), to which a power of two is still added; it goes from
// a group's product by way of the sum of the group's x. The tensor cores multiply a tile by 8 rows
// of x.
#pragma once

#include "packs.cuh"
#include "quantized.cuh"
#include "reductions.cuh"
#include "ring.cuh"
#include "vectors.cuh"

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

template <typename T, int BITS, int GROUP, int TOKENS>
struct MoreTokens {
  using ThisFold = Fold<BITS, GROUP>;
  static constexpr int SUMS = TOKENS;            // floats of a group of x
  static constexpr int GRID_TILES = TOKENS / 8;  // of 8 rows of x
  // What the codes of a group are multiplied by beside themselves.
  static constexpr float POWER = Parts<T, BITS>::LOWER + (BITS == 8 ? Parts<T, BITS>::UPPER : 0.0f);

  // In shared memory: rows of packs, `pitch` apart, and each group's sums of x, a token each.
  uint4* const x;
  float* const sums;
  const int pitch;
  const int g, c;  // lane 4 g + c
  // Where the rows of x begin that this lane holds for the tensor cores. Those that aren't there
  // are the last one's, and their sums nobody asks for.
  int given[GRID_TILES];
  const Parts<T, BITS> parts;
  // Of each 8 rows of x: 2 c and 2 c + 1 with row g of the tile, then with row g + 8.
  float total[GRID_TILES][4] = {};

  // A barrier follows `prepare` before the first `multiply`.
  __device__ __forceinline__ MoreTokens(uint4* x, int pitch, float* sums, int lane, int tokens)
      : x(x), sums(sums), pitch(pitch), g(lane / 4), c(lane % 4) {
#pragma unroll
    for (int i = 0; i < GRID_TILES; ++i) given[i] = min(8 * i + g, tokens - 1) * pitch;
  }

  // Takes pack `at` of a row of x, 0 if it isn't there. The lanes of a warp hold neighbours.
  __device__ __forceinline__ void prepare(int token, int at, int packs, uint4 pack) {
    float sum = 0.0f;
    const Eight eight = Eight::of(pack, T());
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += eight.pairs[i].x + eight.pairs[i].y;
    if (at < packs) x[token * pitch + at] = as_parts<BITS>(pack);
#pragma unroll
    for (int apart = 1; apart < GROUP / 8; apart *= 2) {
      sum += __shfl_xor_sync(ALL_LANES, sum, apart);
    }
    if (at < packs && at % (GROUP / 8) == 0) sums[at / (GROUP / 8) * TOKENS + token] = sum;
  }

  // Multiplies `live` groups of a slot, of which the first is number `first` of a row.
  __device__ __forceinline__ void multiply(const Slot& slot, int first, int live) {
    const unsigned char* codes = slot.codes + g * slot.pitch + c * ThisFold::WORDS * 4;
    const uint4* scales = reinterpret_cast<const uint4*>(slot.scales()) + g;
    const uint4* packs = x + c * ThisFold::PACKS + first * (GROUP / 8);
    const float* sums_of_x = sums + first * TOKENS + 2 * c;
#pragma unroll 1
    for (int start = 0; start < live; start += READ) {
      uint4 of_row[4];  // scales of rows g and g + 8, then shifts
#pragma unroll
      for (int i = 0; i < 4; ++i) of_row[i] = scales[8 * i];
#pragma unroll
      for (int group = 0; group < READ; group += 2) {
        if (start + group >= live) break;
        float2 of_rows[4];  // of both groups
#pragma unroll
        for (int i = 0; i < 4; ++i) of_rows[i] = unpack_two(word_of(of_row[i], group / 2), T());
        // Beyond the last group, scales and shifts are 0 and x is finite.
        float sum[2][GRID_TILES][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_group(sum[half], codes, slot.pitch, packs, group + half);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float by[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) by[i] = half == 0 ? of_rows[i].x : of_rows[i].y;
          add_sums(sum[half], by, sums_of_x + (group + half) * TOKENS);
        }
      }
      codes += READ * GROUP * BITS / 8;
      scales += SCALES / sizeof(uint4);
      packs += READ * GROUP / 8;
      sums_of_x += READ * TOKENS;
    }
  }

  // Writes the sums of a tile's rows, TILE x TOKENS floats, and begins anew.
  __device__ __forceinline__ void hand_over(float* to) {
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

 private:
  // sum += a group's codes with x.
  __device__ __forceinline__ void multiply_group(float (&sum)[GRID_TILES][4],
                                                 const unsigned char* codes, int pitch_of_codes,
                                                 const uint4* packs, int group) const {
#pragma unroll ThisFold::AT_ONCE
    for (int fold = 0; fold < ThisFold::OF_GROUP; ++fold) {
      const int column = group * GROUP + fold * ThisFold::COLUMNS;
      const unsigned char* from = codes + column * BITS / 8;
      const auto upper = *reinterpret_cast<const Vector<unsigned, ThisFold::WORDS>*>(from);
      const auto lower =
          *reinterpret_cast<const Vector<unsigned, ThisFold::WORDS>*>(from + 8 * pitch_of_codes);
#pragma unroll
      for (int i = 0; i < GRID_TILES; ++i) {
#pragma unroll
        for (int pack = 0; pack < ThisFold::PACKS; ++pack) {
          multiply_pack<T, BITS>(sum[i], parts, upper.at + pack * (BITS / 4),
                                 lower.at + pack * (BITS / 4), packs[given[i] + column / 8 + pack]);
        }
      }
    }
  }

  // Adds a group, with `by`: scales of rows g and g + 8, then shifts.
  __device__ __forceinline__ void add_sums(const float (&sum)[GRID_TILES][4], const float (&by)[4],
                                           const float* of_x) {
    const float upper_shift = by[2] - POWER * by[0];
    const float lower_shift = by[3] - POWER * by[1];
#pragma unroll
    for (int i = 0; i < GRID_TILES; ++i) {
      const float2 both = *reinterpret_cast<const float2*>(of_x + 8 * i);
      add_group(total[i][0], by[0], sum[i][0], upper_shift, both.x);
      add_group(total[i][1], by[0], sum[i][1], upper_shift, both.y);
      add_group(total[i][2], by[1], sum[i][2], lower_shift, both.x);
      add_group(total[i][3], by[1], sum[i][3], lower_shift, both.y);
    }
  }
};

// One row of x in whole numbers (fixed_point.cuh), and its product with a warp's tiles.
//
// The tensor cores multiply a tile by 8 columns: of four groups the upper bytes of x and the lower.
// So one accumulator serves four groups; lanes whose column is another group's multiply by 0. Of
// READ groups, the even ones share an accumulator, and the odd ones.
#pragma once

#include "fixed_point.cuh"
#include "reductions.cuh"
#include "ring.cuh"
#include "vectors.cuh"

template <typename T, int BITS, int GROUP>
struct OneToken {
  using ThisFold = Fold<BITS, GROUP>;
  static constexpr int FOLD = ThisFold::COLUMNS;
  static constexpr int SUMS = 2;  // floats of a group of x: a `Group`

  // In shared memory: first x as it came, then, of each fold, the upper bytes of all its numbers
  // and the lower ones, in the same room. The last pack of `pitch` is none of x.
  uint4* const x;
  Group* const groups;
  const int g, c;                      // lane 4 g + c
  const unsigned char* const nothing;  // zeros, a pack
  float total[2] = {};                 // of this lane's groups: rows g and g + 8

  // All threads of the block call it; a barrier follows `prepare` before the first `multiply`.
  __device__ __forceinline__ OneToken(uint4* x, int pitch, float* sums, int lane, int)
      : x(x),
        groups(reinterpret_cast<Group*>(sums)),
        g(lane / 4),
        c(lane % 4),
        nothing(reinterpret_cast<const unsigned char*>(x + pitch - 1)) {
    if (threadIdx.x == 0) x[pitch - 1] = uint4{};
  }

  // Takes pack `at` of x, 0 if it isn't there. The lanes of a warp hold neighbours, and have read
  // them all before they write.
  __device__ __forceinline__ void prepare(int, int at, int packs, uint4 pack) {
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
    if (at < packs) {
      uint2* to = reinterpret_cast<uint2*>(x + at / (FOLD / 8) * (FOLD / 8)) + at % (FOLD / 8);
      to[0] = numbers.upper;
      to[FOLD / 8] = numbers.lower;
      if (at % (GROUP / 8) == 0) {
        const float factor = factor_of(greatest);
        groups[at / (GROUP / 8)] = {factor, factor * sum};
      }
    }
  }

  // Multiplies `live` groups of a slot, of which the first is number `first` of a row.
  __device__ __forceinline__ void multiply(const Slot& slot, int first, int live) {
    const unsigned char* codes = slot.codes + g * slot.pitch + c * ThisFold::WORDS * 4;
    const unsigned* scales = reinterpret_cast<const unsigned*>(slot.scales()) + 4 * g + c;
    // The bytes that this lane multiplies by, upper or lower ones.
    const unsigned char* numbers = reinterpret_cast<const unsigned char*>(x) + first * (2 * GROUP) +
                                   g % 2 * FOLD + c * (FOLD / 4);
    const Group* of_x = groups + first + 2 * c;
#pragma unroll 1
    for (int start = 0; start < live; start += READ) {
      int sum[2][4] = {};
#pragma unroll
      for (int group = 0; group < READ; group += 2) {
        if (start + group >= live) break;
        const bool mine = g / 2 == group / 2;
        multiply_group(sum[0], codes, slot.pitch, numbers, mine, group);
        multiply_group(sum[1], codes, slot.pitch, numbers, mine, group + 1);
      }
      if (start + 2 * c < live) add_groups(sum, scales, of_x);
      codes += READ * GROUP * BITS / 8;
      scales += SCALES / sizeof(unsigned);
      numbers += READ * GROUP * 2;
      of_x += READ;
    }
  }

  // Writes the sums of a tile's rows, TILE floats, and begins anew.
  __device__ __forceinline__ void hand_over(float* to) {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      total[0] += __shfl_xor_sync(ALL_LANES, total[0], apart);
      total[1] += __shfl_xor_sync(ALL_LANES, total[1], apart);
    }
    if (c == 0) to[g] = total[0], to[g + 8] = total[1];
    total[0] = total[1] = 0.0f;
  }

 private:
  // sum += a group's codes with this lane's bytes of x, or with 0 if the group is not the lane's.
  __device__ __forceinline__ void multiply_group(int (&sum)[4], const unsigned char* codes,
                                                 int pitch, const unsigned char* numbers, bool mine,
                                                 int group) const {
#pragma unroll ThisFold::AT_ONCE
    for (int fold = 0; fold < ThisFold::OF_GROUP; ++fold) {
      const int column = group * GROUP + fold * FOLD;
      const unsigned char* from = codes + column * BITS / 8;
      const auto upper = *reinterpret_cast<const Vector<unsigned, ThisFold::WORDS>*>(from);
      const auto lower =
          *reinterpret_cast<const Vector<unsigned, ThisFold::WORDS>*>(from + 8 * pitch);
      const auto of_x = *reinterpret_cast<const Vector<unsigned, 2 * ThisFold::PACKS>*>(
          mine ? numbers + column * 2 : nothing);
#pragma unroll
      for (int pack = 0; pack < ThisFold::PACKS; ++pack) {
        multiply_codes<BITS>(sum, upper.at + pack * (BITS / 4), lower.at + pack * (BITS / 4),
                             of_x.at[2 * pack], of_x.at[2 * pack + 1]);
      }
    }
  }

  // Adds two neighbouring groups: of each, `sum` holds the sums of upper and of lower bytes of row
  // g, then of row g + 8.
  __device__ __forceinline__ void add_groups(const int (&sum)[2][4], const unsigned* scales,
                                             const Group* of_x) {
    float2 of_rows[4];  // of both groups: scales of rows g and g + 8, then shifts
#pragma unroll
    for (int i = 0; i < 4; ++i) of_rows[i] = unpack_two(scales[32 * i], T());
    const float4 both = *reinterpret_cast<const float4*>(of_x);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = __int2float_rn(256 * sum[0][2 * i] + sum[0][2 * i + 1]);
      const float second = __int2float_rn(256 * sum[1][2 * i] + sum[1][2 * i + 1]);
      add_group(total[i], of_rows[i].x * both.x, first, of_rows[2 + i].x, both.y);
      add_group(total[i], of_rows[i].y * both.z, second, of_rows[2 + i].y, both.w);
    }
  }
};

// x as whole numbers: those of a group share a power of two, and each has 16 bits, sign included,
// in two bytes. Codes of 4 and 8 bits are whole numbers already, so that the tensor cores multiply
// both as they are, and exactly.
//
// Be P the least power of two of which 255/256 are above the greatest magnitude in the group, or
// 2^-111 where that is less. A number is off by 2^-16 P at most; those of at least P / 256 are
// exact in bfloat16, those of at least P / 32 in float16. Where P would be 2^129, all are NaN:
// where x is infinite, no number, or the greatest that bfloat16 has.
#pragma once

#include "packs.cuh"

// A group of x: x is about `factor` times its numbers, whose sum times `factor` is `sum`.
struct Group {
  float factor, sum;
};

// The exponent, as floats have it, of P / 2; the greatest magnitude is given as bits of a float. Of
// whole numbers the greatest is 32639, as the lower byte is signed, too: what would come near
// 32768 takes the next power.
__device__ __forceinline__ unsigned exponent_of(unsigned greatest) {
  return max((greatest + 0x10000u) >> 23, 15u);
}

// What whole numbers are times, P / 32768; or NaN.
__device__ __forceinline__ float factor_of(unsigned greatest) {
  const unsigned exponent = exponent_of(greatest);
  return __uint_as_float(exponent >= 255 ? 0x7fffffffu : (exponent - 14) << 23);
}

// 1 / factor_of.
__device__ __forceinline__ float inverse_of(unsigned greatest) {
  return __uint_as_float((268 - min(exponent_of(greatest), 254u)) << 23);
}

__device__ __forceinline__ unsigned greatest_of(const Eight& x) {
  unsigned greatest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    greatest = max(greatest, __float_as_uint(x.pairs[i].x) & 0x7fffffffu);
    greatest = max(greatest, __float_as_uint(x.pairs[i].y) & 0x7fffffffu);
  }
  return greatest;
}

// The whole numbers of a pack: their upper bytes and their lower, which are signed, too, in the
// order that codes of BITS have in a word; and their sum.
struct Numbers {
  uint2 upper, lower;
  int sum;

  template <int BITS>
  __device__ __forceinline__ static Numbers of(const Eight& x, float inverse) {
    // Adding 1.5 * 2^23 leaves the nearest whole number in a float's lowest bits. The upper byte
    // is that of the number plus 128, as the lower one is signed.
    constexpr float MAGIC = 12582912.0f;
    constexpr unsigned BITS_OF_MAGIC = 0x4b400000;
    unsigned plain[8], more[8];
    unsigned sum = 0u - 8u * BITS_OF_MAGIC;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float value = i % 2 == 0 ? x.pairs[i / 2].x : x.pairs[i / 2].y;
      plain[i] = __float_as_uint(fmaf(value, inverse, MAGIC));
      more[i] = __float_as_uint(__uint_as_float(plain[i]) + 128.0f);
      sum += plain[i];
    }
    constexpr int STEP = BITS == 4 ? 2 : 1, SECOND = BITS == 4 ? 1 : 4;
    auto bytes = [](const unsigned (&of)[8], int first, int which) {
      const unsigned pair = which == 0 ? 0x0040 : 0x0051;
      return __byte_perm(__byte_perm(of[first], of[first + STEP], pair),
                         __byte_perm(of[first + 2 * STEP], of[first + 3 * STEP], pair), 0x5410);
    };
    return {make_uint2(bytes(more, 0, 1), bytes(more, SECOND, 1)),
            make_uint2(bytes(plain, 0, 0), bytes(plain, SECOND, 0)), static_cast<int>(sum)};
  }
};

// sum += a b; a 16x32 of unsigned bytes, b 32x8 of signed ones. Lane (g, c) holds of a: rows g and
// g + 8 in columns 4c to 4c + 3 (a0, a1) and 4c + 16 on (a2, a3); of b: column g in rows likewise;
// of the sum: columns 2c and 2c + 1 of row g, then of row g + 8.
__device__ __forceinline__ void multiply_add(int (&sum)[4], unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// sum += the codes of 8 columns of rows g and g + 8 with a pack of numbers.
template <int BITS>
__device__ __forceinline__ void multiply_codes(int (&sum)[4], const unsigned* upper,
                                               const unsigned* lower, unsigned first,
                                               unsigned second) {
  if constexpr (BITS == 4) {
    constexpr unsigned EVEN = 0x0f0f0f0fu;
    multiply_add(sum, *upper & EVEN, *lower & EVEN, *upper >> 4 & EVEN, *lower >> 4 & EVEN, first,
                 second);
  } else {
    multiply_add(sum, upper[0], lower[0], upper[1], lower[1], first, second);
  }
}

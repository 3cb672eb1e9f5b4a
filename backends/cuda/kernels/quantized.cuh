// Codes of quantised weights, as pairs of 16-bit numbers for tensor cores. A word holds 8 codes of
// 4 bits or 4 of 8 bits, the first in the lowest bits.
//
// No code is converted: it becomes the mantissa of a power of two by one LOP3, and the power goes
// by a subtraction, which is exact.
#pragma once

#include "mma.cuh"
#include "types.cuh"

// a * b + c of two numbers each, rounded once.
__device__ __forceinline__ unsigned fuse_two(unsigned a, unsigned b, unsigned c, __half) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ unsigned fuse_two(unsigned a, unsigned b, unsigned c, __nv_bfloat16) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// A constant that the assembler can't know, as blocks are one thread high: it would move a known
// one to a register anew before most of its uses.
__device__ __forceinline__ unsigned kept(unsigned constant) { return constant + blockDim.y - 1; }

// Parts of the codes of a word: nibbles I and I + 4, as numbers. Those of 4 bits are codes. Of 8
// bits, I even gives the lower halves of codes I / 2 and I / 2 + 2, I odd their upper halves, times
// 16: a code is the sum of its halves. `of` gives parts with a power added, LOWER for even I and
// UPPER for odd, `exact` without.
template <typename T, int BITS>
struct Parts;

template <int BITS>
struct Parts<__nv_bfloat16, BITS> {
  const unsigned mask = kept(0x000f000fu);

  static constexpr unsigned ONE = 0x3f803f80u;
  static constexpr float LOWER = 128.0f, UPPER = BITS == 8 ? 2048.0f : 128.0f;

  template <int I>
  __device__ __forceinline__ unsigned of(unsigned word) const {
    constexpr unsigned POWER = BITS == 8 && I % 2 == 1 ? 0x45004500u : 0x43004300u;
    return ((word >> (4 * I)) & mask) | POWER;
  }

  template <int I>
  __device__ __forceinline__ unsigned exact(unsigned word) const {
    constexpr unsigned MINUS = BITS == 8 && I % 2 == 1 ? 0xc500c500u : 0xc300c300u;
    return fuse_two(of<I>(word), ONE, MINUS, __nv_bfloat16());
  }
};

// A half has room for two nibbles beside the power, so the odd ones need no shift. Its power, 1024,
// is taken away at once: it would cost the sums ten bits.
template <int BITS>
struct Parts<__half, BITS> {
  const unsigned lower_mask = kept(0x000f000fu), upper_mask = kept(0x00f000f0u);

  static constexpr unsigned ONE = 0x3c003c00u;
  static constexpr float LOWER = 0.0f, UPPER = 0.0f;

  template <int I>
  __device__ __forceinline__ unsigned of(unsigned word) const {
    const unsigned mask = I % 2 == 1 ? upper_mask : lower_mask;
    constexpr bool BY_16 = I % 2 == 1 && BITS == 4;
    const unsigned nibbles = ((word >> (I / 2 * 8)) & mask) | 0x64006400u;
    return fuse_two(nibbles, BY_16 ? 0x2c002c00u : ONE, BY_16 ? 0xd400d400u : 0xe400e400u,
                    __half());
  }

  template <int I>
  __device__ __forceinline__ unsigned exact(unsigned word) const {
    return of<I>(word);
  }
};

// The values of a word, code * scale + shift, rounded once, in order, two a register; scale and
// shift stand twice in theirs.
template <typename T, int BITS>
__device__ __forceinline__ void dequantize_word(unsigned (&values)[16 / BITS],
                                                const Parts<T, BITS>& parts_of, unsigned word,
                                                unsigned scale, unsigned shift) {
  constexpr unsigned ONE = Parts<T, BITS>::ONE;
  const unsigned parts[4] = {parts_of.template exact<0>(word), parts_of.template exact<1>(word),
                             parts_of.template exact<2>(word), parts_of.template exact<3>(word)};
  if constexpr (BITS == 4) {
    unsigned held[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) held[i] = fuse_two(parts[i], scale, shift, T());
    values[0] = lower_halves(held[0], held[1]);
    values[1] = lower_halves(held[2], held[3]);
    values[2] = upper_halves(held[0], held[1]);
    values[3] = upper_halves(held[2], held[3]);
  } else {
    const unsigned even = fuse_two(parts[0], ONE, parts[1], T());
    const unsigned odd = fuse_two(parts[2], ONE, parts[3], T());
    const unsigned first = fuse_two(even, scale, shift, T());
    const unsigned second = fuse_two(odd, scale, shift, T());
    values[0] = lower_halves(first, second);
    values[1] = upper_halves(first, second);
  }
}

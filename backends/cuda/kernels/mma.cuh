// Warp-wide matrix products of 16-bit types, and the register moves around them. A lane's place in
// a fragment is (g, c) = (lane / 4, lane % 4).
#pragma once

#include "types.cuh"

// d += a b; a 16x16, b 16x8, d 16x8. Lane (g, c) holds of a: rows g and g + 8 in columns 2c, 2c + 1
// (a0, a1) and 2c + 8, 2c + 9 (a2, a3); of b: column g in rows 2c, 2c + 1 (b0) and 2c + 8, 2c + 9
// (b1); of d: columns 2c, 2c + 1 of row g (d[0], d[1]) and of row g + 8 (d[2], d[3]).
__device__ __forceinline__ void multiply_add(float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1, __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The lower halves of two registers, and the upper halves; that of x comes first.
__device__ __forceinline__ unsigned lower_halves(unsigned x, unsigned y) {
  return __byte_perm(x, y, 0x5410);
}
__device__ __forceinline__ unsigned upper_halves(unsigned x, unsigned y) {
  return __byte_perm(x, y, 0x7632);
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

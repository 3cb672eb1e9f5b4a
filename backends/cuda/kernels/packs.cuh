// Packs: eight neighbours of a 16-bit type, in 16 bytes.
#pragma once

#include "types.cuh"

__device__ __forceinline__ float2 unpack_two(unsigned pair, __half) {
  return __half22float2(*reinterpret_cast<__half2*>(&pair));
}
__device__ __forceinline__ float2 unpack_two(unsigned pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Eight neighbours as they lie in memory, and in float.
struct Eight {
  float2 pairs[4];

  template <typename T>
  __device__ __forceinline__ static Eight of(uint4 bits, T) {
    return {unpack_two(bits.x, T()), unpack_two(bits.y, T()), unpack_two(bits.z, T()),
            unpack_two(bits.w, T())};
  }
};

template <typename T>
__device__ __forceinline__ uint4 normalized(uint4 bits, uint4 weights, float scale) {
  const Eight x = Eight::of(bits, T()), by = Eight::of(weights, T());
  unsigned out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] =
        pack_two(x.pairs[i].x * scale * by.pairs[i].x, x.pairs[i].y * scale * by.pairs[i].y, T());
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

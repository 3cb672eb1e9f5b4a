// Rotary embedding of one pair (i, i + head_dim / 2), in float. Written as fixed multiply-adds, so
// that a key turned when it is appended and one turned again later have equal bits.
#pragma once

__device__ __forceinline__ void turn_pair(float& first, float& second, float cosine, float sine) {
  const float low = first, high = second;
  first = fmaf(low, cosine, -__fmul_rn(high, sine));
  second = fmaf(high, cosine, __fmul_rn(low, sine));
}

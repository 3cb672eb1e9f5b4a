// The rounding of fixed_point.cuh on the CPU, with CUDA's own headers of 16-bit types.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include <algorithm>

using std::max;
using std::min;

// What the device has and the host has not.
static unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selectors >> (4 * i) & 7;
    bytes |= static_cast<unsigned>(both >> (8 * which) & 0xff) << (8 * i);
  }
  return bytes;
}

#include "fixed_point.cuh"

// x (groups, 8 packs) of 16-bit bits. Writes the bytes as a pack has them, (groups, 8 packs) each,
// a sum for each pack, and for each group its factor.
template <typename T, int BITS>
static void round_groups(const uint4* x, int groups, int packs, uint2* upper, uint2* lower,
                         int* sums, float* factors) {
  for (int group = 0; group < groups; ++group) {
    unsigned greatest = 0;
    for (int pack = 0; pack < packs; ++pack) {
      greatest = max(greatest, greatest_of(Eight::of(x[group * packs + pack], T())));
    }
    factors[group] = factor_of(greatest);
    for (int pack = 0; pack < packs; ++pack) {
      const int at = group * packs + pack;
      const Numbers numbers = Numbers::of<BITS>(Eight::of(x[at], T()), inverse_of(greatest));
      upper[at] = numbers.upper;
      lower[at] = numbers.lower;
      sums[at] = numbers.sum;
    }
  }
}

extern "C" void round_bfloat16(int bits, const void* x, int groups, int packs, void* upper,
                               void* lower, int* sums, float* factors) {
  auto round = bits == 4 ? round_groups<__nv_bfloat16, 4> : round_groups<__nv_bfloat16, 8>;
  round(static_cast<const uint4*>(x), groups, packs, static_cast<uint2*>(upper),
        static_cast<uint2*>(lower), sums, factors);
}

extern "C" void round_float16(int bits, const void* x, int groups, int packs, void* upper,
                              void* lower, int* sums, float* factors) {
  auto round = bits == 4 ? round_groups<__half, 4> : round_groups<__half, 8>;
  round(static_cast<const uint4*>(x), groups, packs, static_cast<uint2*>(upper),
        static_cast<uint2*>(lower), sums, factors);
}

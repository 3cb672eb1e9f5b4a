// Sums and maxima over a warp or a block; every thread gets the result. The order of the additions
// is fixed by the shape of the block, so equal inputs give equal bits.
#pragma once

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int apart = WARP / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL_LANES, x, apart);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int apart = WARP / 2; apart > 0; apart /= 2) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, apart));
  }
  return x;
}

// All threads of a block of whole warps take part. May be called again at once.
__device__ __forceinline__ float block_sum(float x) {
  __shared__ float sums[WARP];
  const int lane = threadIdx.x % WARP;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) sums[threadIdx.x / WARP] = x;
  __syncthreads();
  return warp_sum(lane < blockDim.x / WARP ? sums[lane] : 0.0f);
}

__device__ __forceinline__ float block_max(float x) {
  __shared__ float maxima[WARP];
  const int lane = threadIdx.x % WARP;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) maxima[threadIdx.x / WARP] = x;
  __syncthreads();
  return warp_max(lane < blockDim.x / WARP ? maxima[lane] : -infinity());
}

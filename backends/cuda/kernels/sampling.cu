// What sampling needs of the logits, each in two launches: partial results of up to THREADS
// blocks, then their sum.
//
// log_softmax  softmax_parts: of each block the greatest logit and the sum of exp(logit -
// greatest);
//              log_softmax: out = logit - greatest - log(sum) of all, float (size,)
// argmax       argmax_parts, argmax: index of the greatest value, the lowest of equals; -1 if any
//              value is NaN. out int32 (1,)
//
// logits, x    T (size,); greatest, sums  float (blocks,); indices  int32 (blocks,)
// Grid: up to THREADS blocks that stride over the array; argmax itself is one block.
// Numerics: float. The order of the additions is fixed. A NaN among the logits makes all of `out`
// NaN.
// WIDTH elements are 16 bytes, or 1 where something is not aligned to that.
// Reference: omnitide/sampling.py.
#include "overlap.cuh"
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    softmax_parts(const T* logits, float* greatest, float* sums, int size) {
  let_successor_start();
  wait_for_predecessor();
  const int first = (blockIdx.x * THREADS + threadIdx.x) * WIDTH;
  const int stride = gridDim.x * THREADS * WIDTH;
  float held[WIDTH];
  float most = -infinity();
  for (int at = first; at < size; at += stride) {
    load(held, logits + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) most = fmaxf(most, held[i]);
  }
  most = block_max(most);
  const float shift = most == -infinity() ? 0.0f : most;  // -inf - -inf is NaN
  float sum = 0.0f;
  for (int at = first; at < size; at += stride) {
    load(held, logits + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += expf(held[i] - shift);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    greatest[blockIdx.x] = most;
    sums[blockIdx.x] = sum;
  }
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    log_softmax(const T* logits, const float* greatest, const float* sums, float* out, int parts,
                int size) {
  let_successor_start();
  wait_for_predecessor();
  const bool has_part = threadIdx.x < parts;
  const float part = has_part ? greatest[threadIdx.x] : -infinity();
  const float most = block_max(part);
  const float shift = most == -infinity() ? 0.0f : most;
  const float sum = block_sum(has_part ? sums[threadIdx.x] * expf(part - shift) : 0.0f);
  const float log_sum = logf(sum);
  const int stride = gridDim.x * THREADS * WIDTH;
  for (int at = (blockIdx.x * THREADS + threadIdx.x) * WIDTH; at < size; at += stride) {
    float held[WIDTH];
    load(held, logits + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) held[i] = held[i] - shift - log_sum;
    store(out + at, held);
  }
}

struct Best {
  float value;
  int index;  // -1: there was a NaN
};

__device__ __forceinline__ Best no_value() { return {-infinity(), 0x7fffffff}; }

__device__ __forceinline__ Best better(Best a, Best b) {
  if (a.index < 0 || b.index < 0) return {0.0f, -1};
  const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
  return second ? b : a;
}

// The best of a block, in its first thread.
__device__ __forceinline__ Best block_best(Best best) {
  __shared__ Best bests[WARP];
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int apart = WARP / 2; apart > 0; apart /= 2) {
    best = better(best, {__shfl_xor_sync(ALL_LANES, best.value, apart),
                         __shfl_xor_sync(ALL_LANES, best.index, apart)});
  }
  if (lane == 0) bests[threadIdx.x / WARP] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < THREADS / WARP; ++warp) best = better(best, bests[warp]);
  }
  return best;
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    argmax_parts(const T* x, float* greatest, int* indices, int size) {
  let_successor_start();
  wait_for_predecessor();
  Best best = no_value();
  const int stride = gridDim.x * THREADS * WIDTH;
  for (int at = (blockIdx.x * THREADS + threadIdx.x) * WIDTH; at < size; at += stride) {
    float held[WIDTH];
    load(held, x + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      best = better(best, {held[i], isnan(held[i]) ? -1 : at + i});
    }
  }
  best = block_best(best);
  if (threadIdx.x == 0) {
    greatest[blockIdx.x] = best.value;
    indices[blockIdx.x] = best.index;
  }
}

__global__ void __launch_bounds__(THREADS)
    argmax(const float* greatest, const int* indices, int* out, int parts) {
  let_successor_start();
  wait_for_predecessor();
  Best best = no_value();
  if (threadIdx.x < parts) best = {greatest[threadIdx.x], indices[threadIdx.x]};
  best = block_best(best);
  if (threadIdx.x == 0) out[0] = best.index;
}

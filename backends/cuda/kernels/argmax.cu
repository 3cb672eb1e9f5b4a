// The index of each row's largest value.
//
//   logits (rows, width) T
//   out    (rows,) int: the lowest index among equals; -1 where the row holds a NaN
//
// T: __half, __nv_bfloat16 or float. Compared in float. Grid: rows blocks of 1024 threads.
// Reference: numpy.argmax, which gives the index of a NaN instead.
#include "overlap.cuh"
#include "types.cuh"

constexpr int THREADS = 1024;
constexpr int NAN_INDEX = -1;

struct Best {
  float value;
  int index;

  // -1 beats every index, then the larger value, then the lower index.
  __device__ __forceinline__ void meet(float other, int at) {
    const bool wins = other > value || (other == value && at < index);
    if (at == NAN_INDEX || (index != NAN_INDEX && wins)) value = other, index = at;
  }
};

__device__ __forceinline__ Best of_warp(Best best) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(0xffffffff, best.value, offset);
    const int index = __shfl_xor_sync(0xffffffff, best.index, offset);
    best.meet(value, index);
  }
  return best;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) argmax(const T* logits, int* out, int width) {
  __shared__ Best found[THREADS / 32];
  const int thread = threadIdx.x;
  let_successor_start();
  wait_for_predecessor();

  constexpr int PACK = 16 / sizeof(T);
  const T* row = logits + static_cast<long long>(blockIdx.x) * width;
  Best best{__int_as_float(0xff800000), 0x7fffffff};  // minus infinity
  auto meet = [&](T element, int at) {
    const float value = to_float(element);
    best.meet(value, value == value ? at : NAN_INDEX);
  };
  // Rows of an odd width start anywhere: elements before the first whole 16 bytes come by
  // themselves.
  const int odd = static_cast<int>(reinterpret_cast<unsigned long long>(row) % 16 / sizeof(T));
  const int head = min(width, odd == 0 ? 0 : PACK - odd);
  const int packs = (width - head) / PACK;
  if (thread < head) meet(row[thread], thread);
#pragma unroll 4
  for (int pack = thread; pack < packs; pack += THREADS) {
    const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(row + head) + pack);
    T elements[PACK];
    memcpy(elements, &bits, 16);
#pragma unroll
    for (int i = 0; i < PACK; ++i) meet(elements[i], head + pack * PACK + i);
  }
  for (int at = head + packs * PACK + thread; at < width; at += THREADS) meet(row[at], at);

  best = of_warp(best);
  if (thread % 32 == 0) found[thread / 32] = best;
  __syncthreads();
  if (thread < 32) {
    best = of_warp(found[thread]);
    if (thread == 0) out[blockIdx.x] = best.index;
  }
}

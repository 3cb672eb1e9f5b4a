// The index of each row's largest value.
//
//   logits  (rows, width) T
//   found   (rows, PARTS) of 8 bytes, workspace
//   arrived (rows,) unsigned, workspace: 0 before the first launch ever, 0 again after each
//   out     (rows,) int: the lowest index among equals; -1 where the row holds a NaN
//
// T: __half, __nv_bfloat16 or float. Compared in float. Grid: (PARTS, rows) blocks of 256 threads.
// Reference: numpy.argmax, which gives the index of a NaN instead.
//
// Each block finds the best of its part; the last of a row's blocks to arrive, the best of the
// parts.
#include "overlap.cuh"
#include "types.cuh"

constexpr int THREADS = 256;
constexpr int PARTS = 32;
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
__global__ void __launch_bounds__(THREADS)
    argmax(const T* logits, float2* found, unsigned* arrived, int* out, int width) {
  constexpr int WARPS = THREADS / 32;
  constexpr int PACK = 16 / sizeof(T);
  __shared__ Best bests[WARPS];
  __shared__ bool is_last;
  const int thread = threadIdx.x, lane = thread % 32;
  let_successor_start();
  wait_for_predecessor();

  const T* row = logits + static_cast<long long>(blockIdx.y) * width;
  Best best{__int_as_float(0xff800000), 0x7fffffff};  // minus infinity
  auto meet = [&](T element, int at) {
    const float value = to_float(element);
    best.meet(value, value == value ? at : NAN_INDEX);
  };
  // A row of an odd width starts anywhere: elements before the first whole 16 bytes come singly.
  const int odd = static_cast<int>(reinterpret_cast<unsigned long long>(row) % 16 / sizeof(T));
  const int head = min(width, odd == 0 ? 0 : PACK - odd);
  const int packs = (width - head) / PACK;
  const int first = blockIdx.x * THREADS + thread;
  if (first < head) meet(row[first], first);
#pragma unroll 2
  for (int pack = first; pack < packs; pack += PARTS * THREADS) {
    const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(row + head) + pack);
    T elements[PACK];
    memcpy(elements, &bits, 16);
#pragma unroll
    for (int i = 0; i < PACK; ++i) meet(elements[i], head + pack * PACK + i);
  }
  const int tail = head + packs * PACK + first;
  if (tail < width) meet(row[tail], tail);

  best = of_warp(best);
  if (lane == 0) bests[thread / 32] = best;
  __syncthreads();
  float2* parts = found + blockIdx.y * PARTS;
  if (thread == 0) {
    for (int i = 1; i < WARPS; ++i) best.meet(bests[i].value, bests[i].index);
    parts[blockIdx.x] = make_float2(best.value, __int_as_float(best.index));
    __threadfence();
    is_last = atomicInc(arrived + blockIdx.y, PARTS - 1) == PARTS - 1;
    __threadfence();
  }
  __syncthreads();
  if (!is_last || thread >= 32) return;
  const float2 part = __ldcg(parts + lane);
  best = of_warp({part.x, __float_as_int(part.y)});
  if (lane == 0) out[blockIdx.y] = best.index;
}

// Norms over the last axis.
//
// rms_norm    out = x / sqrt(mean(x^2) + eps) * weight. With ADDS, x becomes x + addend first, is
//             rounded to T and written to `sum`; the norm is that of the rounded sum.
// layer_norm  out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//
// x, addend, sum, out  T (rows, columns); weight, bias  T (columns,)
// Grid: one block a row, of whole warps. Dynamic shared memory: columns floats; a row is read once.
// Numerics: float throughout, rounded once. The variance is taken of differences from the mean.
// WIDTH elements are 16 bytes, or 1 where something is not aligned to that.
// Reference: omnitide/backends/reference/backend.py, rms_norm and layer_norm.
#include "overlap.cuh"
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int MAX_THREADS = 1024;

// The row as floats. A thread touches only its own columns, so no barrier is needed.
__device__ __forceinline__ float* shared_row() {
  extern __shared__ float4 row[];
  return reinterpret_cast<float*>(row);
}

template <typename T, int WIDTH, bool ADDS>
__global__ void __launch_bounds__(MAX_THREADS)
    rms_norm(const T* x, const T* addend, const T* weight, T* sum, T* out, int columns, float eps) {
  let_successor_start();
  wait_for_predecessor();
  const long long row = static_cast<long long>(blockIdx.x) * columns;
  const int first = threadIdx.x * WIDTH, stride = blockDim.x * WIDTH;
  float* held = shared_row();
  float squares = 0.0f;
  for (int at = first; at < columns; at += stride) {
    float values[WIDTH];
    load(values, x + row + at);
    if constexpr (ADDS) {
      float more[WIDTH];
      load(more, addend + row + at);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) values[i] = to_float(from_float<T>(values[i] + more[i]));
      store(sum + row + at, values);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) squares = fmaf(values[i], values[i], squares);
    store(held + at, values);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares) / columns + eps);
  for (int at = first; at < columns; at += stride) {
    float values[WIDTH], scale[WIDTH];
    load(values, held + at);
    load(scale, weight + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) values[i] = values[i] * factor * scale[i];
    store(out + row + at, values);
  }
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(MAX_THREADS)
    layer_norm(const T* x, const T* weight, const T* bias, T* out, int columns, float eps) {
  let_successor_start();
  wait_for_predecessor();
  const long long row = static_cast<long long>(blockIdx.x) * columns;
  const int first = threadIdx.x * WIDTH, stride = blockDim.x * WIDTH;
  float* held = shared_row();
  float total = 0.0f;
  for (int at = first; at < columns; at += stride) {
    float values[WIDTH];
    load(values, x + row + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) total += values[i];
    store(held + at, values);
  }
  const float mean = block_sum(total) / columns;
  float squares = 0.0f;
  for (int at = first; at < columns; at += stride) {
    float values[WIDTH];
    load(values, held + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) squares = fmaf(values[i] - mean, values[i] - mean, squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares) / columns + eps);
  for (int at = first; at < columns; at += stride) {
    float values[WIDTH], scale[WIDTH], shift[WIDTH];
    load(values, held + at);
    load(scale, weight + at);
    load(shift, bias + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
      values[i] = fmaf((values[i] - mean) * factor, scale[i], shift[i]);
    store(out + row + at, values);
  }
}

// Operations on one element, pair or row at a time.
//
// swiglu    out = gate / (1 + exp(-gate)) * up; gate, up T (rows, columns), rows gate_stride and
//           up_stride elements apart; out T (rows, columns)
// gelu      out = 0.5 x erfc(-x / sqrt(2)): exact, and nothing cancels below 0; T, `size` elements
// gelu_tanh out = x / (1 + exp(-2 y)), y = sqrt(2 / pi) (x + 0.044715 x^3), which is
//           0.5 x (1 + tanh(y)); T, `size` elements
// relu      out = max(x, 0), NaN where x is; T, `size` elements
// add       out = a + b; T, `size` elements
// add_bias  x += bias, and += residual with ADDS, in place; x, residual T (rows, columns), bias T
//           (columns,)
// rotate    out = x with pairs (i, i + head_dim / 2) turned; x T (tokens, heads, head_dim), tokens
//           x_stride apart; cosines, sines float (tokens, head_dim / 2); out T, as x
// take      out[i] = array[rows[i]]; array, out in Units, row_size Units a row; rows int32
//
// Grid: THREADS accesses of WIDTH elements a block. Where there are rows, `blocks` blocks for each.
// Numerics: float, rounded once. `take` moves bits.
// WIDTH elements are 16 bytes, or 1 where something is not aligned to that. Unit: uint4 or
// unsigned short.
// Reference: omnitide/backends/reference/backend.py.
#include "overlap.cuh"
#include "rotation.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;

// Where a thread works in rows of which each takes `blocks` blocks.
struct RowPlace {
  long long row, column;

  __device__ __forceinline__ RowPlace(int blocks, int width)
      : row(blockIdx.x / blocks),
        column((static_cast<long long>(blockIdx.x % blocks) * THREADS + threadIdx.x) * width) {}
};

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    swiglu(const T* gate, const T* up, T* out, int blocks, long long columns, long long gate_stride,
           long long up_stride) {
  let_successor_start();
  wait_for_predecessor();
  const RowPlace at(blocks, WIDTH);
  if (at.column >= columns) return;
  float g[WIDTH], u[WIDTH];
  load(g, gate + at.row * gate_stride + at.column);
  load(u, up + at.row * up_stride + at.column);
  // The quick division is right to 2 units in the last place, and 0 where exp overflows.
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) g[i] = __fdividef(g[i], 1.0f + expf(-g[i])) * u[i];
  store(out + at.row * columns + at.column, g);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) gelu(const T* x, T* out, long long size) {
  let_successor_start();
  wait_for_predecessor();
  const long long at = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
  if (at >= size) return;
  float held[WIDTH];
  load(held, x + at);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) held[i] = 0.5f * held[i] * erfcf(held[i] * -0.70710678118654752f);
  store(out + at, held);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) gelu_tanh(const T* x, T* out, long long size) {
  let_successor_start();
  wait_for_predecessor();
  const long long at = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
  if (at >= size) return;
  float held[WIDTH];
  load(held, x + at);
  // The quick division is right to 2 units in the last place, and 0 where exp overflows.
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    const float twice = 1.5957691216057308f * held[i] * fmaf(0.044715f * held[i], held[i], 1.0f);
    held[i] = __fdividef(held[i], 1.0f + expf(-twice));
  }
  store(out + at, held);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) relu(const T* x, T* out, long long size) {
  let_successor_start();
  wait_for_predecessor();
  const long long at = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
  if (at >= size) return;
  float held[WIDTH];
  load(held, x + at);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) held[i] = held[i] < 0.0f ? 0.0f : held[i];
  store(out + at, held);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) add(const T* a, const T* b, T* out, long long size) {
  let_successor_start();
  wait_for_predecessor();
  const long long at = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
  if (at >= size) return;
  float held[WIDTH], more[WIDTH];
  load(held, a + at);
  load(more, b + at);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) held[i] += more[i];
  store(out + at, held);
}

template <typename T, int WIDTH, bool ADDS>
__global__ void __launch_bounds__(THREADS)
    add_bias(T* x, const T* bias, const T* residual, int blocks, long long columns) {
  let_successor_start();
  wait_for_predecessor();
  const RowPlace at(blocks, WIDTH);
  if (at.column >= columns) return;
  const long long here = at.row * columns + at.column;
  float held[WIDTH], more[WIDTH];
  load(held, x + here);
  load(more, bias + at.column);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) held[i] += more[i];
  if constexpr (ADDS) {
    load(more, residual + here);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) held[i] += more[i];
  }
  store(x + here, held);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    rotate(const T* x, const float* cosines, const float* sines, T* out, long long x_stride,
           int num_tokens, int num_heads, int head_dim) {
  let_successor_start();
  wait_for_predecessor();
  const int half = head_dim / 2;
  const int chunks = half / WIDTH;
  const long long item = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  const int dim = item % chunks * WIDTH;
  const int head = item / chunks % num_heads;
  const long long token = item / chunks / num_heads;
  if (token >= num_tokens) return;
  const T* from = x + token * x_stride + static_cast<long long>(head) * head_dim + dim;
  T* to = out + (token * num_heads + head) * head_dim + dim;
  const long long angle = token * half + dim;
  float first[WIDTH], second[WIDTH], cosine[WIDTH], sine[WIDTH];
  load(first, from);
  load(second, from + half);
  load(cosine, cosines + angle);
  load(sine, sines + angle);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) turn_pair(first[i], second[i], cosine[i], sine[i]);
  store(to, first);
  store(to + half, second);
}

template <typename Unit>
__global__ void __launch_bounds__(THREADS)
    take(const Unit* array, const int* rows, Unit* out, int blocks, long long row_size) {
  let_successor_start();
  wait_for_predecessor();
  const RowPlace at(blocks, 1);
  if (at.column >= row_size) return;
  out[at.row * row_size + at.column] = array[rows[at.row] * row_size + at.column];
}

// The values of quantised weights, of a whole matrix or of chosen rows.
//
// dequantize         code * scale + shift, MLX's mode "affine"; scales, shifts T (rows, groups)
// dequantize_float4  a float of 4 bits (E2M1) times scale; "mxfp4" (GROUP 32, scales E8M0: a power
//                    of two) and "nvfp4" (GROUP 16, scales E4M3), uint8 (rows, groups)
//
//   codes  unsigned (rows of the matrix, columns BITS / 32), the first code in the lowest bits
//   rows   int32 (rows of out,), or null: all in order
//   out    T (rows of out, columns); T: __half, __nv_bfloat16, float
//   columns  a multiple of 32
//
// Grid: THREADS packs of 8 values, packs_of_row in a row, UNROLL times a block. Numerics: float,
// rounded once; product and sum are separate, as NumPy has them. Reference:
// omnitide/dequantize.py.
#include "exact.cuh"
#include "overlap.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int UNROLL = 4;

// Eight values of a row, where they are stored.
template <int BITS>
struct Pack {
  static constexpr int WORDS = BITS / 4;
  Vector<unsigned, WORDS> words;

  __device__ __forceinline__ int code(int i) const {
    constexpr int PER_WORD = 32 / BITS;
    return words.at[i / PER_WORD] >> (i % PER_WORD * BITS) & ((1 << BITS) - 1);
  }
};

// Calls `make(pack of the matrix, values)` for each pack of the block, all reads before all writes.
template <int BITS, typename T, typename Make>
__device__ __forceinline__ void each_pack(const unsigned* codes, const int* rows, T* out,
                                          long long size, int packs_of_row, Make make) {
  let_successor_start();
  wait_for_predecessor();
  const long long first = static_cast<long long>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
  Pack<BITS> packs[UNROLL];
  long long from[UNROLL];
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    const long long at = first + i * THREADS;
    from[i] = at;
    if (at >= size) continue;
    if (rows != nullptr) {
      from[i] = static_cast<long long>(rows[at / packs_of_row]) * packs_of_row + at % packs_of_row;
    }
    packs[i] = reinterpret_cast<const Pack<BITS>*>(codes)[from[i]];
  }
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    const long long at = first + i * THREADS;
    if (at >= size) continue;
    float values[8];
    make(packs[i], from[i], values);
    store(out + at * 8, values);
  }
}

template <typename T, int BITS>
__global__ void __launch_bounds__(THREADS)
    dequantize(const unsigned* codes, const T* scales, const T* shifts, const int* rows, T* out,
               long long size, int packs_of_row, int group_shift) {
  auto make = [&](const Pack<BITS>& pack, long long from, float (&values)[8]) {
    const long long group = from * 8 >> group_shift;
    const float scale = to_float(scales[group]), shift = to_float(shifts[group]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = sum_of(product_of(static_cast<float>(pack.code(i)), scale), shift);
    }
  };
  each_pack<BITS>(codes, rows, out, size, packs_of_row, make);
}

// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same below 0.
__device__ __forceinline__ float float4_value(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const float size =
      exponent == 0 ? 0.5f * mantissa : __int_as_float((126 + exponent) << 23 | mantissa << 22);
  return code & 8 ? -size : size;
}

// 2 to the power of code - 127; infinity for 255, as the float has it.
__device__ __forceinline__ float power_value(int code) {
  return __int_as_float(code == 0 ? 1 << 22 : code << 23);
}

// E4M3: no infinity, NaN for 127 and 255.
__device__ __forceinline__ float float8_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float size = exponent == 0 ? mantissa * 0.001953125f
                             : __int_as_float((120 + exponent) << 23 | mantissa << 20);
  if ((code & 127) == 127) size = __int_as_float(0x7fffffff);
  return code & 128 ? -size : size;
}

template <typename T, int GROUP>
__global__ void __launch_bounds__(THREADS)
    dequantize_float4(const unsigned* codes, const unsigned char* scales, const int* rows, T* out,
                      long long size, int packs_of_row) {
  auto make = [&](const Pack<4>& pack, long long from, float (&values)[8]) {
    const int code = scales[from * 8 / GROUP];
    const float scale = GROUP == 32 ? power_value(code) : float8_value(code);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = product_of(float4_value(pack.code(i)), scale);
  };
  each_pack<4>(codes, rows, out, size, packs_of_row, make);
}

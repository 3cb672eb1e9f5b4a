// Arithmetic rounded once, with denormals, as NumPy and MLX have it. Kernels are compiled to flush
// them.
#pragma once

__device__ __forceinline__ float product_of(float a, float b) {
  float c;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float sum_of(float a, float b) {
  float c;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float quotient_of(float a, float b) {
  float c;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// NaN if either is.
__device__ __forceinline__ float greater_of(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float magnitude_of(float a) {
  return __int_as_float(__float_as_int(a) & 0x7fffffff);
}

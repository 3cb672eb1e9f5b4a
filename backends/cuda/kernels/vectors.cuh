// WIDTH neighbours read or written at once: 16 bytes at most in one access, where the host found
// everything aligned, else one by one (WIDTH 1).
#pragma once

#include "types.cuh"

template <typename T, int SIZE>
struct alignas(sizeof(T) * SIZE) Vector {
  T at[SIZE];
};

// Elements of one access.
template <typename T, int WIDTH>
constexpr int ACCESS_SIZE = WIDTH * sizeof(T) > 16 ? 16 / sizeof(T) : WIDTH;

template <int WIDTH, typename T>
__device__ __forceinline__ void load(float (&to)[WIDTH], const T* from) {
  constexpr int SIZE = ACCESS_SIZE<T, WIDTH>;
#pragma unroll
  for (int first = 0; first < WIDTH; first += SIZE) {
    const auto read = *reinterpret_cast<const Vector<T, SIZE>*>(from + first);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) to[first + i] = to_float(read.at[i]);
  }
}

template <int WIDTH, typename T>
__device__ __forceinline__ void store(T* to, const float (&from)[WIDTH]) {
  constexpr int SIZE = ACCESS_SIZE<T, WIDTH>;
#pragma unroll
  for (int first = 0; first < WIDTH; first += SIZE) {
    Vector<T, SIZE> written;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) written.at[i] = from_float<T>(from[first + i]);
    *reinterpret_cast<Vector<T, SIZE>*>(to + first) = written;
  }
}

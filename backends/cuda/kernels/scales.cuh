// Copies of scales to shared memory, READ groups of a row at a time, as wide as they are aligned.
#pragma once

#include "copies.cuh"

constexpr int READ = 8;

// Bytes that scales are aligned to where a row has so many groups, and parts of a row, whose size
// may be joined to it by an "or", begin at multiples of it: 16 at most.
__device__ __forceinline__ int alignment_of_scales(int groups) {
  const int low = groups & -groups;
  return low >= READ ? 2 * READ : 2 * low;
}

template <int BYTES>
__device__ __forceinline__ void copy_scales_by(unsigned to, const void* from, int live) {
#pragma unroll
  for (int at = 0; at < READ * 2; at += BYTES) {
    const bool there = at / 2 < live;
    const char* source = static_cast<const char*>(from) + (there ? at : 0);
    copy_or_clear<BYTES>(to + at, source, there);
  }
}

// Copies the first `live` of READ scales and writes 0 for the others; `from` may be read if live is
// 0. Copies are asynchronous, except of scales that are aligned to 2 bytes: these are written when
// it returns, for other lanes after a barrier.
template <typename T>
__device__ __forceinline__ void copy_scales(unsigned char* to, const T* from, int live,
                                            int alignment) {
  if (alignment == 16) {
    copy_scales_by<16>(shared_address(to), from, live);
  } else if (alignment == 8) {
    copy_scales_by<8>(shared_address(to), from, live);
  } else if (alignment == 4) {
    copy_scales_by<4>(shared_address(to), from, live);
  } else {
#pragma unroll
    for (int at = 0; at < READ; ++at) {
      reinterpret_cast<unsigned short*>(to)[at] =
          at < live ? reinterpret_cast<const unsigned short*>(from)[at] : 0;
    }
  }
}

// Hopper's own instructions (sm_90a): barriers in shared memory, the copy engine, matrix products
// of a warpgroup. Shared memory is addressed by 32-bit shared-window addresses throughout.
#pragma once

#include "types.cuh"

// A tensor map as the driver encodes it; passed by value to a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// -- barriers -------------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the last init, before other threads use them (and a barrier of the block between).
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The present phase ends only after `bytes` more have been copied, and all have arrived.
__device__ __forceinline__ void expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of that parity has ended. A fresh barrier counts as past parity 1.
__device__ __forceinline__ void wait_phase(unsigned barrier, int parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

__device__ __forceinline__ void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_named(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Makes this thread's ordinary writes to shared memory visible to the tensor cores.
__device__ __forceinline__ void fence_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// -- copies ---------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The map's box at (column, row) to shared memory; its bytes count on `barrier`.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap& map, int column, int row,
                                         unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// 16 bytes, or 16 bytes of zeros without reading.
__device__ __forceinline__ void copy_or_clear(unsigned to, const void* from, bool copy) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(copy ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void store_shared(unsigned to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(unsigned to, unsigned x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

__device__ __forceinline__ uint4 load_shared(unsigned from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

// -- matrix products ------------------------------------------------------------------------------

// Operands in shared memory are rows of 128 bytes, eight rows a swizzle group: 16-byte chunk c of
// row r lies at chunk c ^ (r % 8). `leading` is the distance of two runs of 64 elements where the
// operand is read across its rows (the values), and unused where it is read along them.
__device__ __forceinline__ unsigned long long describe(unsigned address, unsigned leading) {
  return static_cast<unsigned long long>(1u << 30 | 1024 >> 4) << 32 | (leading >> 4) << 16 |
         address >> 4;
}

// The operand `bytes` further on.
__device__ __forceinline__ unsigned long long advance(unsigned long long descriptor,
                                                      unsigned bytes) {
  const unsigned low = static_cast<unsigned>(descriptor) + (bytes >> 4);
  return (descriptor & 0xffffffff00000000ull) | low;
}

#define ACC8(d, i)                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC32(d) ACC8(d, 0), ACC8(d, 8), ACC8(d, 16), ACC8(d, 24)
#define ACC64(d) ACC32(d), ACC8(d, 32), ACC8(d, 40), ACC8(d, 48), ACC8(d, 56)
#define NAMES32                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES64                                                                                  \
  NAMES32                                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d (64 x 128) = a b^T, or d += a b^T; a (64 x 16) and b (128 x 16) in shared memory.
#define KEYS_PRODUCT(TYPE)                                                      \
  asm volatile(                                                                 \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                              \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" NAMES64 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}"                                          \
      : ACC64(d)                                                                \
      : "l"(a), "l"(b), "n"(ADD))

template <int ADD>
__device__ __forceinline__ void multiply(float (&d)[64], unsigned long long a, unsigned long long b,
                                         __half) {
  KEYS_PRODUCT("f16");
}
template <int ADD>
__device__ __forceinline__ void multiply(float (&d)[64], unsigned long long a, unsigned long long b,
                                         __nv_bfloat16) {
  KEYS_PRODUCT("bf16");
}

// d (64 x columns) += a b; a (64 x 16) in registers, b (16 x columns) in shared memory, read across
// its rows.
#define VALUES_PRODUCT(COLUMNS, TYPE, NAMES, ACCUMULATORS, A, B)                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES \
               "}, " A ", " B ", 1, 1, 1, 1;"                                                  \
               : ACCUMULATORS(d)                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

__device__ __forceinline__ void multiply_add(float (&d)[64], const unsigned* a,
                                             unsigned long long b, __half) {
  VALUES_PRODUCT("128", "f16", NAMES64, ACC64, "{%64, %65, %66, %67}", "%68");
}
__device__ __forceinline__ void multiply_add(float (&d)[64], const unsigned* a,
                                             unsigned long long b, __nv_bfloat16) {
  VALUES_PRODUCT("128", "bf16", NAMES64, ACC64, "{%64, %65, %66, %67}", "%68");
}
__device__ __forceinline__ void multiply_add(float (&d)[32], const unsigned* a,
                                             unsigned long long b, __half) {
  VALUES_PRODUCT("64", "f16", NAMES32, ACC32, "{%32, %33, %34, %35}", "%36");
}
__device__ __forceinline__ void multiply_add(float (&d)[32], const unsigned* a,
                                             unsigned long long b, __nv_bfloat16) {
  VALUES_PRODUCT("64", "bf16", NAMES32, ACC32, "{%32, %33, %34, %35}", "%36");
}

// Pins registers: what was written to them before is written by here, what is read later is read
// later.
__device__ __forceinline__ void pin(float (&d)[64]) { asm volatile("" : ACC64(d)::"memory"); }
__device__ __forceinline__ void pin(float (&d)[32]) { asm volatile("" : ACC32(d)::"memory"); }
template <int COUNT>
__device__ __forceinline__ void pin(unsigned (&a)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// Before products whose registers other instructions wrote or read; pin those first.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `PENDING` committed groups are unfinished. The accumulators are named so that
// no read of them moves before the wait.
template <int PENDING>
__device__ __forceinline__ void wait_products(float (&d)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;" : ACC64(d) : "n"(PENDING) : "memory");
}
template <int PENDING>
__device__ __forceinline__ void wait_products(float (&d)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : ACC32(d) : "n"(PENDING) : "memory");
}

// Asynchronous copies from device memory to shared memory, 16 bytes (cp.async) or a whole run
// (bulk, from compute capability 9.0) at a time, and the barrier that the latter complete on.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// How the second-level cache treats what is read once: it leaves first.
__device__ __forceinline__ unsigned long long evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Without a policy: where the places in shared memory lie a block-wide step apart, the assembler
// (CUDA 13) puts the step into the register that holds the policy, and the copy traps.
__device__ __forceinline__ void copy_16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Copies 4, 8 or 16 bytes, or writes as many zero bytes and reads nothing.
template <int BYTES>
__device__ __forceinline__ void copy_or_clear(unsigned to, const void* from, bool live) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "as cp.async has it");
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(live ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(live ? BYTES : 0)
                 : "memory");
  }
}

__device__ __forceinline__ void close_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING groups of this thread are still under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits until at most `slots` groups of this thread are under way.
__device__ __forceinline__ void wait_for_groups_but(int slots) {
  switch (slots) {
    case 0:
      return wait_for_groups<0>();
    case 1:
      return wait_for_groups<1>();
    case 2:
      return wait_for_groups<2>();
    case 3:
      return wait_for_groups<3>();
    default:
      return wait_for_groups<4>();
  }
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void barrier_publish() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once; the barrier's phase then also waits for so many bytes of copies.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra out;\n"
      "bra again;\n"
      "out:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes,
                                          unsigned barrier, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// The same for what others read too.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Before a bulk copy over shared memory that this thread has read or written itself: such copies
// keep no order with ordinary accesses. If another thread starts the copy, a barrier follows.
__device__ __forceinline__ void fence_before_copy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

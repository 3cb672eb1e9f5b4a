// Blocks of a cluster (compute capability 9.0 and newer) that write into each other's shared
// memory.
#pragma once

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster arrive, then wait until all have. Orders nothing in memory.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ unsigned shared_address(const void* x) {
  return static_cast<unsigned>(__cvta_generic_to_shared(x));
}

// A barrier in shared memory that `bytes` sent by `send_async` will complete. One thread prepares
// it before it arrives at the cluster; nothing is sent before the cluster was waited for.
__device__ __forceinline__ void expect_bytes(unsigned long long* barrier, unsigned bytes) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Acquires at the scope of the cluster: the default, that of the block, doesn't reach the senders.
__device__ __forceinline__ void wait_for_bytes(unsigned long long* barrier) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again; }" ::"r"(shared_address(barrier))
      : "memory");
}

// Where an address of this block's shared memory lies in the block of a rank.
__device__ __forceinline__ unsigned remote_address(const void* local, unsigned rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(shared_address(local)), "r"(rank));
  return remote;
}
__device__ __forceinline__ void send_async(unsigned address, float4 x, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void send_async(unsigned address, float2 x, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(address),
      "f"(x.x), "f"(x.y), "r"(barrier)
      : "memory");
}
#endif

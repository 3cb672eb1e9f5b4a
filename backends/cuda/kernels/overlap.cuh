// Programmatic dependent launch: a kernel may start while its predecessor in the stream still runs.
//
// Before `wait_for_predecessor` a kernel may read what no kernel of the chain writes (weights) and
// may write nothing to device memory. The wait returns when the predecessor has ended and its
// writes are visible; since the predecessor waited for its own predecessor before it ended, all
// earlier kernels have ended too. That holds only if EVERY kernel of the chain executes the wait,
// in every block. On chips below 9.0 kernels never overlap and both functions do nothing.
#pragma once

__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The successor's blocks may start as soon as all blocks have called this and there is room for
// them.
__device__ __forceinline__ void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

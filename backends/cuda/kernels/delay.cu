// Occupies the stream for a time, so that the host can queue work behind it before it starts.
//
// Grid: one thread. Numerics: none. Reference: none; used for measuring only.
#include "overlap.cuh"

extern "C" __global__ void delay(unsigned long long nanoseconds) {
  wait_for_predecessor();
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

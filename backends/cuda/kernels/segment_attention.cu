// Full attention inside each of consecutive segments, none across them (encoders).
//
// q, out       (num_tokens, num_heads, D), T
// k, v         (num_keys, num_heads, D), T
// work         (num_items, 5), int: a segment's first token, its number of tokens, the first of the
//              ROWS tokens of the segment whose queries a block takes, the segment's first key and
//              its number of keys
// T is __half or __nv_bfloat16; D a multiple of 8, padded to one of 16 in shared memory.
//
// Grid: (num_items, num_heads). Block: 32 * WARPS; ROWS = 16 * FRAGMENTS * WARPS.
// Shared memory: ROWS query rows, then a K and a V tile of 64 rows for each stage; as many stages
// as the segment with most keys has tiles are enough.
//
// A tile is 64 keys of the segment; rows past its end are zeros and hidden.
// Numerics: attention_tile.cuh.
// Reference: backends/reference/attention.py `segment_attention`.

#include "attention_tile.cuh"

// Starts copying rows `first` and on of one head; those from `stop` on become zeros.
template <int D, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void load_rows(unsigned to, const T* from, long long token_stride,
                                          int first, int stop) {
  const RowCopy<D, THREADS> copy(threadIdx.x);
  const T* source = from + (first + copy.row) * token_stride + 8 * copy.chunk;
  const int rest = copy.chunk < D / 8 ? stop - first - static_cast<int>(copy.row) : 0;
  copy.template each<ROWS>([&](int i, unsigned offset) {
    // A dead row is not read, but its address has to be one that can be.
    copy_async(to + offset, i < rest ? source + i * token_stride : from, i < rest);
  });
}

template <typename T, int D, int WARPS, int FRAGMENTS, int STAGES, int MIN_BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    segment_attention(const T* q, const T* k, const T* v, const int* work, T* out, int num_heads,
                      float scale) {
  using Rows = SharedRows<D>;
  constexpr int ROWS = 16 * FRAGMENTS * WARPS;
  constexpr int THREADS = 32 * WARPS;
  constexpr bool HELD = MIN_BLOCKS == 1 && CAN_HOLD<D, FRAGMENTS>;
  constexpr int AHEAD = STAGES == 1 ? 1 : STAGES - 1;  // tiles that are loaded ahead
  constexpr int STAGE = 2 * CELLS * Rows::STRIDE;      // bytes: K, then V

  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned query_rows = shared_address(shared);
  const unsigned stages = query_rows + ROWS * Rows::STRIDE;

  const int* item = work + 5 * blockIdx.x;
  const int length = item[1], first_row = item[2], num_keys = item[4];
  const long long token_stride = static_cast<long long>(num_heads) * D;
  const long long offset = item[0] * token_stride + blockIdx.y * D;  // of the segment and head
  const long long key_offset = item[3] * token_stride + blockIdx.y * D;
  const int lane = threadIdx.x % 32;
  const int warp_rows = threadIdx.x / 32 * 16 * FRAGMENTS;  // first row of this warp in the block
  const int num_tiles = STAGES == 1 ? 1 : (num_keys + CELLS - 1) / CELLS;

  const auto load = [&](int tile, int stage) {
    const unsigned to = stages + stage * STAGE;
    load_rows<D, CELLS, THREADS>(to, k + key_offset, token_stride, tile * CELLS, num_keys);
    load_rows<D, CELLS, THREADS>(to + STAGE / 2, v + key_offset, token_stride, tile * CELLS,
                                 num_keys);
  };
  load_rows<D, ROWS, THREADS>(query_rows, q + offset, token_stride, first_row, length);
#pragma unroll
  for (int ahead = 0; ahead < AHEAD; ++ahead) {
    if (ahead < num_tiles) load(ahead, ahead);
    commit_copies();
  }

  WarpAttention<T, D, FRAGMENTS, HELD> warp;
  warp.start();
  const unsigned query_base = query_rows + warp_rows * Rows::STRIDE;
  int stage = 0;
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_copies<AHEAD - 1>();
    __syncthreads();
    if (tile + AHEAD < num_tiles) load(tile + AHEAD, stage == 0 ? STAGES - 1 : stage - 1);
    commit_copies();
    if (tile == 0) warp.hold(query_base);

    const unsigned keys = stages + stage * STAGE;
    float scores[FRAGMENTS][CELLS / 8][4];
    warp.score(scores, query_base, keys);
    const int rest = num_keys - tile * CELLS;
    if (rest < CELLS) {
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int n = 0; n < CELLS / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (8 * n + 2 * (lane % 4) + i % 2 >= rest) scores[f][n][i] = NOTHING;
    }
    warp.weigh(scores, scale);
    warp.mix(scores, keys + STAGE / 2);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  warp.finish();

  // Each warp writes over its own queries, which no other reads.
  unsigned char* rows = shared + warp_rows * Rows::STRIDE;
  __syncwarp();
  warp.settle(rows);
  for (int index = lane; index < 16 * FRAGMENTS * (D / 8); index += 32) {
    const int row = index / (D / 8), chunk = index % (D / 8);
    if (first_row + warp_rows + row >= length) break;
    T* to = out + offset + (first_row + warp_rows + row) * token_stride + 8 * chunk;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(rows + Rows::at(row, chunk));
  }
}

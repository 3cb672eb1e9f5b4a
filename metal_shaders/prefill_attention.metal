// Attention of many new tokens over the live tiles of a history, in parts; decode_reduce of
// decode_attention.metal merges them.
//
// prefill_attention
//   q          T [num_queries][kv_heads * GROUP][D], not rotated
//   turned     T [num_tiles][kv_heads][32][D], turned keys of the tiles, 0 in dead rows: what
//              rotate.metal makes
//   values     T [page][kv_heads][64][D]
//   subblocks  int32 [num_tiles], subblock ids (slot / 32)
//   masks      uint32 [num_tiles], live rows of each
//   least, greatest  int32 [num_tiles], of the orders of a tile's live rows
//   orders     int32 [num_tiles][32], order of each row, -1 where dead
//   query_orders    int32 [num_queries]; query i sees the live rows of order <= its own
//   query_cos, query_sin  float32 [num_queries][D / 2], pairs (i, i + D / 2)
//   num_tiles  int32
//   scale      float32
//   parts        float32 [num_parts][kv_heads][num_queries * GROUP][D], sums of weighted values
//   part_ranges  float32 [num_parts][kv_heads][num_queries * GROUP][2]: greatest score in powers of
//                two, and sum of weights, both of a part
//
// Grid (128 kv_heads, row blocks, num_parts), threadgroups of 128: four simdgroups, the last rows
// first, because they see most. A row is a query head of one KV head, query * GROUP + head; a block
// takes 32, a simdgroup 8 of them, and all four see the same tiles at about the same time. A part
// takes every num_parts-th tile.
//
// A simdgroup holds its queries and its output in registers, as 8 x 8 matrices, and takes two tiles
// it sees at a time, 64 keys: scores = Q K^T, weights by the rising maximum, out += P V. Keys and
// values go from memory to registers; there is no barrier in the loop. Scores are only masked in
// tiles with dead rows or with cells that some row of the block doesn't see. A value of a dead row
// is made 0 before it is multiplied.
// Numerics: turned queries and keys are rounded to T; scores, weights, sums are float32.
// Threadgroup memory: 32 D sizeof(T), at most 16 KiB.
// Device traffic, read, for each KV head and row block: 2 * 32 D sizeof(T) bytes a tile, and 12;
// 128 more for a tile that is masked. Tiles that no row of the block sees cost 4. The row blocks of
// a KV head read the same, mostly from the cache. Written: 4 (D + 2) bytes a part, KV head and row.
//
// Instances: T half, bfloat or float; D 64, 80, 96 or 128; GROUP 1 or more.
// Reference: backends/reference/attention.py, paged_attention. Twin: prefill_attention.cu.

constant constexpr int SIMDGROUPS = 4;
constant constexpr int BLOCK_ROWS = 8 * SIMDGROUPS;
constant constexpr int COLUMNS = TILE_ROWS / 8;  // matrices across a tile

// kernel: prefill_attention
// inputs: q turned values subblocks masks least greatest orders query_orders query_cos query_sin
// inputs: num_tiles scale
// outputs: parts part_ranges
// template: T D GROUP
  constexpr int HALF = D / 2;
  constexpr int CHUNKS = D / 8;  // matrices across a row
  threadgroup T queries[BLOCK_ROWS * D];

  const uint head = threadgroup_position_in_grid.x, kv_heads = threadgroups_per_grid.x;
  const int first = (threadgroups_per_grid.y - 1 - threadgroup_position_in_grid.y) * BLOCK_ROWS;
  const int num_rows = q_shape[0] * GROUP;
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;

  // The queries, turned; rows beyond the last are 0.
  for (int i = thread_index_in_threadgroup; i < BLOCK_ROWS * HALF; i += 32 * SIMDGROUPS) {
    const int row = i / HALF, pair = i % HALF, query = (first + row) / GROUP;
    float x = 0, y = 0;
    if (first + row < num_rows) {
      const size_t at = size_t(query * kv_heads + head) * GROUP + (first + row) % GROUP;
      const float a = float(q[at * D + pair]), b = float(q[at * D + HALF + pair]);
      const float c = query_cos[query * HALF + pair], s = query_sin[query * HALF + pair];
      x = a * c - b * s;
      y = b * c + a * s;
    }
    queries[row * D + pair] = T(x);
    queries[row * D + HALF + pair] = T(y);
  }
  // What the block's rows see: at least, at most, and the row that this lane has a share of.
  const bool exists = first + int(lane) < num_rows;  // BLOCK_ROWS is the number of lanes
  const int of_lane = exists ? query_orders[(first + lane) / GROUP] : 0;
  const int earliest = simd_min(exists ? of_lane : 0x7fffffff);
  const int latest = simd_max(exists ? of_lane : -1);
  const int row = first + simdgroup * 8 + matrix_row(lane), column = matrix_column(lane);
  const int limit = row < num_rows ? query_orders[row / GROUP] : -1;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  simdgroup_matrix<T, 8, 8> turned_query[CHUNKS];
  simdgroup_matrix<float, 8, 8> out[CHUNKS];
#pragma clang loop unroll(full)
  for (int d = 0; d < CHUNKS; ++d) {
    simdgroup_load(turned_query[d], queries + simdgroup * 8 * D + 8 * d, D);
    out[d] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  float most = LOWEST, sum = 0;

  const int step = threadgroups_per_grid.z;
  int next = threadgroup_position_in_grid.z;
  while (true) {
    // The next two tiles that some row of the block sees; -1: there is none.
    int tiles[2] = {-1, -1};
    for (; next < num_tiles && tiles[1] < 0; next += step) {
      if (least[next] > latest) continue;
      if (tiles[0] < 0) {
        tiles[0] = next;
      } else {
        tiles[1] = next;
      }
    }
    if (tiles[0] < 0) break;

    simdgroup_matrix<float, 8, 8> scores[2 * COLUMNS];
#pragma clang loop unroll(full)
    for (int part = 0; part < 2; ++part) {
      const int tile = tiles[part];
      const bool is_masked = tile < 0 || masks[tile] != ~0u || greatest[tile] > earliest;
#pragma clang loop unroll(full)
      for (int n = 0; n < COLUMNS; ++n) {
        simdgroup_matrix<float, 8, 8> product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        if (tile >= 0) {
          const device T* from =
              turned + ((size_t(tile) * kv_heads + head) * TILE_ROWS + 8 * n) * D;
#pragma clang loop unroll(full)
          for (int d = 0; d < CHUNKS; ++d) {
            simdgroup_matrix<T, 8, 8> key;
            simdgroup_load(key, from + 8 * d, D, 0, true);
            simdgroup_multiply_accumulate(product, turned_query[d], key, product);
          }
        }
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; ++i) {
          float score = product.thread_elements()[i] * (scale * LOG2_E);
          if (is_masked) {
            const int order = tile < 0 ? -1 : orders[tile * TILE_ROWS + 8 * n + column + i];
            if (order < 0 || order > limit) score = LOWEST;
          }
          product.thread_elements()[i] = score;
        }
        scores[part * COLUMNS + n] = product;
      }
    }

    float greatest_score = most;
#pragma clang loop unroll(full)
    for (int n = 0; n < 2 * COLUMNS; ++n)
      for (int i = 0; i < 2; ++i)
        greatest_score = max(greatest_score, scores[n].thread_elements()[i]);
    greatest_score = max(greatest_score, simd_shuffle_xor(greatest_score, 1));
    greatest_score = max(greatest_score, simd_shuffle_xor(greatest_score, 8));
    const float factor = fast::exp2(most - greatest_score);
    most = greatest_score;
    float more = 0;
#pragma clang loop unroll(full)
    for (int n = 0; n < 2 * COLUMNS; ++n)
      for (int i = 0; i < 2; ++i) {
        const float score = scores[n].thread_elements()[i];
        const float weight = score == LOWEST ? 0.0f : fast::exp2(score - most);
        scores[n].thread_elements()[i] = weight;
        more += weight;
      }
    more += simd_shuffle_xor(more, 1);
    more += simd_shuffle_xor(more, 8);
    sum = sum * factor + more;
#pragma clang loop unroll(full)
    for (int d = 0; d < CHUNKS; ++d)
      for (int i = 0; i < 2; ++i) out[d].thread_elements()[i] *= factor;

#pragma clang loop unroll(full)
    for (int part = 0; part < 2; ++part) {
      const int tile = tiles[part];
      if (tile < 0) continue;
      const uint live = masks[tile];
      const size_t first_row = first_row_of(subblocks[tile], head, kv_heads);
#pragma clang loop unroll(full)
      for (int n = 0; n < COLUMNS; ++n) {
        const bool is_live = live >> (8 * n + matrix_row(lane)) & 1;
        const device T* from = values + (first_row + 8 * n) * D;
#pragma clang loop unroll(full)
        for (int d = 0; d < CHUNKS; ++d) {
          simdgroup_matrix<T, 8, 8> value;
          simdgroup_load(value, from + 8 * d, D);
          if (!is_live) {
            value.thread_elements()[0] = T(0);
            value.thread_elements()[1] = T(0);
          }
          simdgroup_multiply_accumulate(out[d], scores[part * COLUMNS + n], value, out[d]);
        }
      }
    }
  }

  if (row < num_rows) {
    const size_t at =
        size_t(threadgroup_position_in_grid.z * kv_heads + head) * num_rows + row;
#pragma clang loop unroll(full)
    for (int d = 0; d < CHUNKS; ++d) {
      vec<float, 2> x;
      for (int i = 0; i < 2; ++i) x[i] = out[d].thread_elements()[i];
      *(device vec<float, 2>*)(parts + at * D + 8 * d + column) = x;
    }
    if (column == 0) {
      part_ranges[at * 2] = most;
      part_ranges[at * 2 + 1] = sum;
    }
  }

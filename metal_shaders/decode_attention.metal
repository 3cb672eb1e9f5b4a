// Attention of a few queries over the live tiles of a history, in parts, and what merges the parts.
//
// decode_attention
//   q          T [num_queries][kv_heads * GROUP][D], not rotated
//   keys       T [page][kv_heads][64][D], not rotated
//   values     T [page][kv_heads][64][D]
//   subblocks  int32 [num_tiles], subblock ids (slot / 32)
//   masks      uint32 [num_tiles], live rows of each
//   orders     int32 [num_tiles][32], order of each row
//   cells      int32 [num_tiles][32], cell of each row, -1 where dead
//   cosines, sines  float32 [num_cells][D / 2], pairs (i, i + D / 2) of each cell
//   query_orders    int32 [num_queries]; query i sees the live rows of order <= its own
//   query_cos, query_sin  float32 [num_queries][D / 2]
//   num_tiles  int32
//   scale      float32
//   written    anything that was computed after the last write to the pools; not read
//   parts        float32 [splits][kv_heads][num_queries * GROUP][D], sums of weighted values
//   part_ranges  float32 [splits][kv_heads][num_queries * GROUP][2]: greatest score in powers of
//                two, and sum of weights, both of a part
//
//   Grid (128 splits, kv_heads, 1), threadgroups of 128: four simdgroups. A row is a query head of
//   one KV head, query * GROUP + head. A threadgroup takes all ROWS of them, so they share what is
//   read. A simdgroup takes every (4 splits)th tile.
//
//   Of a tile the live cells are listed first, so a dead one costs neither bytes nor time. Keys: 8
//   lanes a cell and 4 cells at once; each is turned in registers and multiplied by all ROWS
//   queries. Then a lane is a cell: weights by the rising maximum, which lane r holds for row r.
//   Values: four cells at a time (D = 64: eight), 4 columns of each a lane. The simdgroups are
//   merged in the memory that the queries have left.
//   Registers, counted: 5 ROWS (4 sums and a score a row) and about 32 more, 112 for 16 rows.
//   Numerics: everything but what is read and the result is float32.
//   Threadgroup memory: at most 17.6 KiB (D = 128, 16 rows; 9.4 for 8).
//   Device traffic, read, for each live cell and KV head: 2 D sizeof(T) bytes of keys and values,
//   each once, and 4 D + 8 of angles, order and cell; 8 a tile. D = 128 in 16 bits: 512 + 520, where
//   the latter are the same for all KV heads and mostly come from the cache. Nothing of dead rows or
//   tiles. Written: 4 (D + 2) bytes for each split, KV head and row.
//
// decode_reduce
//   parts, part_ranges  as above, also of prefill_attention
//   out        T [num_queries][kv_heads * GROUP][D]; 0 for a query that sees nothing
//
//   Grid (D / 4, num_queries * GROUP, kv_heads): a thread merges 4 columns of a row in all parts.
//   Device traffic: the parts once; the ranges, which are D / 2 times smaller, twice.
//
// Instances: T half, bfloat or float; D 64, 80, 96 or 128; GROUP 1 to 16 (decode_reduce: 1 or more);
// ROWS num_queries * GROUP, at most 16.
// Reference: backends/reference/attention.py, paged_attention. Twin: decode_attention.cu.

constant constexpr int SIMDGROUPS = 4;

// Floats that a block needs beside its list: queries and weights, later half of the sums.
constexpr int decode_space(int rows, int head_dim) {
  return rows * head_dim + SIMDGROUPS * TILE_ROWS * (rows | 1) > 2 * rows * head_dim
             ? rows * head_dim + SIMDGROUPS * TILE_ROWS * (rows | 1)
             : 2 * rows * head_dim;
}

// kernel: decode_attention
// inputs: q keys values subblocks masks orders cells cosines sines query_orders query_cos query_sin
// inputs: num_tiles scale written
// outputs: parts part_ranges
// template: T D GROUP ROWS
  constexpr int HALF = D / 2;
  constexpr int KEY_LANES = 8;                       // that share a key
  constexpr int VALUE_LANES = D <= 64 ? 16 : 32;     // that share a value; D / 4 of them work
  constexpr int VALUES = 4;                          // that a lane asks for at once
  constexpr int PITCH = ROWS | 1;                    // odd: lanes write to different banks
  threadgroup float space[decode_space(ROWS, D)];
  threadgroup float ranges[SIMDGROUPS * ROWS * 2];
  threadgroup int limits[ROWS];
  threadgroup int lists[SIMDGROUPS * TILE_ROWS];

  const uint split = threadgroup_position_in_grid.x, head = threadgroup_position_in_grid.y;
  const uint splits = threadgroups_per_grid.x, kv_heads = threadgroups_per_grid.y;
  const uint simdgroup = simdgroup_index_in_threadgroup;
  const uint lane = thread_index_in_simdgroup;
  threadgroup float* queries = space;
  threadgroup float* weights = space + ROWS * D + simdgroup * TILE_ROWS * PITCH;
  threadgroup int* list = lists + simdgroup * TILE_ROWS;

  // The queries, turned and scaled.
  for (int i = thread_index_in_threadgroup; i < ROWS * HALF; i += 32 * SIMDGROUPS) {
    const int row = i / HALF, pair = i % HALF, query = row / GROUP;
    const size_t at = size_t(query * kv_heads + head) * GROUP + row % GROUP;
    const float a = float(q[at * D + pair]), b = float(q[at * D + HALF + pair]);
    const float c = query_cos[query * HALF + pair], s = query_sin[query * HALF + pair];
    queries[row * D + pair] = (a * c - b * s) * (scale * LOG2_E);
    queries[row * D + HALF + pair] = (b * c + a * s) * (scale * LOG2_E);
    if (pair == 0) limits[row] = query_orders[query];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float most = LOWEST, sum = 0;  // of row `lane`
  float out[ROWS][4];
#pragma clang loop unroll(full)
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < 4; ++i) out[r][i] = 0;

  for (int tile = split * SIMDGROUPS + simdgroup; tile < num_tiles;
       tile += splits * SIMDGROUPS) {
    const uint live = masks[tile];
    const int count = popcount(live);
    const size_t first_row = first_row_of(subblocks[tile], head, kv_heads);
    if (live >> lane & 1) list[popcount(live & ((1u << lane) - 1))] = lane;
    simdgroup_barrier(mem_flags::mem_threadgroup);

    for (int base = 0; base < count; base += 32 / KEY_LANES) {
      const int nth = base + lane / KEY_LANES;
      float scores[ROWS];
#pragma clang loop unroll(full)
      for (int r = 0; r < ROWS; ++r) scores[r] = 0;
      if (nth < count) {
        const int row = list[nth];
        const device T* key = keys + (first_row + row) * D;
        const size_t angle = size_t(cells[tile * TILE_ROWS + row]) * HALF;
        for (int pair = 4 * (lane % KEY_LANES); pair < HALF; pair += 4 * KEY_LANES) {
          const vec<T, 4> a = *(const device vec<T, 4>*)(key + pair);
          const vec<T, 4> b = *(const device vec<T, 4>*)(key + HALF + pair);
          const vec<float, 4> c = *(const device vec<float, 4>*)(cosines + angle + pair);
          const vec<float, 4> s = *(const device vec<float, 4>*)(sines + angle + pair);
#pragma clang loop unroll(full)
          for (int i = 0; i < 4; ++i) {
            const float x = float(a[i]) * c[i] - float(b[i]) * s[i];
            const float y = float(b[i]) * c[i] + float(a[i]) * s[i];
#pragma clang loop unroll(full)
            for (int r = 0; r < ROWS; ++r)
              scores[r] += x * queries[r * D + pair + i] + y * queries[r * D + HALF + pair + i];
          }
        }
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < ROWS; ++r) {
        float score = scores[r];
        for (int step = 1; step < KEY_LANES; step *= 2) score += simd_shuffle_xor(score, step);
        if (nth < count && lane % KEY_LANES == 0) weights[nth * PITCH + r] = score;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);

    const bool listed = int(lane) < count;
    const int order = listed ? orders[tile * TILE_ROWS + list[lane]] : 0;
#pragma clang loop unroll(full)
    for (int r = 0; r < ROWS; ++r) {
      const bool seen = listed && order <= limits[r];
      const float score = seen ? weights[lane * PITCH + r] : LOWEST;
      const float before = simd_broadcast(most, r);
      const float greatest = max(before, simd_max(score));
      const float weight = seen ? fast::exp2(score - greatest) : 0.0f;
      const float factor = fast::exp2(before - greatest), more = simd_sum(weight);
      if (int(lane) == r) {
        most = greatest;
        sum = sum * factor + more;
      }
      for (int i = 0; i < 4; ++i) out[r][i] *= factor;
      if (listed) weights[lane * PITCH + r] = weight;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);

    const int column = 4 * (lane % VALUE_LANES);
    for (int base = 0; base < count; base += VALUES * 32 / VALUE_LANES) {
      const int nth = base + lane / VALUE_LANES;
      vec<T, 4> value[VALUES];
#pragma clang loop unroll(full)
      for (int v = 0; v < VALUES; ++v) {
        const int at = nth + v * 32 / VALUE_LANES;
        if (at < count && column < D)
          value[v] = *(const device vec<T, 4>*)(values + (first_row + list[at]) * D + column);
      }
#pragma clang loop unroll(full)
      for (int v = 0; v < VALUES; ++v) {
        const int at = nth + v * 32 / VALUE_LANES;
        if (at < count && column < D) {
#pragma clang loop unroll(full)
          for (int r = 0; r < ROWS; ++r) {
            const float weight = weights[at * PITCH + r];
            for (int i = 0; i < 4; ++i) out[r][i] += weight * float(value[v][i]);
          }
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);  // the list and the weights are free again
  }

  // Merge: all to the greatest maximum, then half of the simdgroups to the other half, twice.
  const bool has_row = lane < ROWS;
  threadgroup float* range = ranges + 2 * lane;
  if (has_row) {
    range[simdgroup * ROWS * 2] = most;
    range[simdgroup * ROWS * 2 + 1] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float greatest = LOWEST, total = 0;
  if (has_row) {
    for (int i = 0; i < SIMDGROUPS; ++i) greatest = max(greatest, range[i * ROWS * 2]);
    for (int i = 0; i < SIMDGROUPS; ++i)
      total += range[i * ROWS * 2 + 1] * fast::exp2(range[i * ROWS * 2] - greatest);
  }
  const float share = fast::exp2(most - greatest);
#pragma clang loop unroll(full)
  for (int r = 0; r < ROWS; ++r) {
    const float factor = simd_broadcast(share, r);
    for (int i = 0; i < 4; ++i) {
      out[r][i] *= factor;
      if (VALUE_LANES == 16) out[r][i] += simd_shuffle_xor(out[r][i], 16);
    }
  }
  const int column = 4 * (lane % VALUE_LANES);
  const bool holds = lane < D / 4;
  for (uint group = SIMDGROUPS / 2; group > 0; group /= 2) {
    if (holds && simdgroup >= group && simdgroup < 2 * group) {
#pragma clang loop unroll(full)
      for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < 4; ++i)
          space[((simdgroup - group) * ROWS + r) * D + column + i] = out[r][i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (holds && simdgroup < group) {
#pragma clang loop unroll(full)
      for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < 4; ++i) out[r][i] += space[(simdgroup * ROWS + r) * D + column + i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const size_t at = size_t(split * kv_heads + head) * ROWS;
  if (holds && simdgroup == 0) {
#pragma clang loop unroll(full)
    for (int r = 0; r < ROWS; ++r) {
      vec<float, 4> x;
      for (int i = 0; i < 4; ++i) x[i] = out[r][i];
      *(device vec<float, 4>*)(parts + (at + r) * D + column) = x;
    }
  }
  if (has_row && simdgroup == 0) {
    part_ranges[(at + lane) * 2] = greatest;
    part_ranges[(at + lane) * 2 + 1] = total;
  }

// kernel: decode_reduce
// inputs: parts part_ranges
// outputs: out
// template: T D GROUP
  const uint column = 4 * thread_position_in_grid.x, row = thread_position_in_grid.y;
  const uint head = thread_position_in_grid.z;
  const uint num_rows = threads_per_grid.y, kv_heads = threads_per_grid.z;
  const int num_parts = parts_shape[0];
  const size_t first = size_t(head) * num_rows + row, stride = size_t(kv_heads) * num_rows;
  float greatest = LOWEST;
  for (int part = 0; part < num_parts; ++part)
    greatest = max(greatest, part_ranges[(first + part * stride) * 2]);
  float total = 0, x[4] = {0, 0, 0, 0};
  for (int part = 0; part < num_parts; ++part) {
    const size_t at = first + part * stride;
    const float factor = fast::exp2(part_ranges[at * 2] - greatest);
    const vec<float, 4> from = *(const device vec<float, 4>*)(parts + at * D + column);
    total += factor * part_ranges[at * 2 + 1];
    for (int i = 0; i < 4; ++i) x[i] += factor * from[i];
  }
  // Not `total > 0`: a sum that is no number has to come through.
  const float share = total == 0 ? 0.0f : 1 / total;
  const size_t at = size_t(row / GROUP * kv_heads + head) * GROUP + row % GROUP;
  vec<T, 4> result;
  for (int i = 0; i < 4; ++i) result[i] = T(x[i] * share);
  *(device vec<T, 4>*)(out + at * D + column) = result;

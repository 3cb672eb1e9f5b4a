// Turned keys of the live tiles of one layer, one after the other, for prefill_attention.
//
// rotate
//   keys       T [page][kv_heads][64][D], not rotated
//   subblocks  int32 [num_tiles], subblock ids (slot / 32)
//   masks      uint32 [num_tiles], live rows of each
//   cells      int32 [num_tiles][32], cell of each row, -1 where dead
//   cosines, sines  float32 [num_cells][D / 2], pairs (i, i + D / 2) of each cell
//   written    anything that was computed after the last write to the pools; not read
//   turned     T [num_tiles][kv_heads][32][D]; 0 in dead rows, which are not read
//
// Grid (D / 8, 32 kv_heads, num_tiles): a thread turns 4 pairs of a row of one KV head.
// Numerics: turned in float32, then rounded to T.
// Device traffic: read for each live row 4 D + 4 bytes of angles and cell, and D sizeof(T) of its key
// a KV head;// written 32 D sizeof(T) a tile and KV head.
//
// Instances: T half, bfloat or float; D 64, 80, 96 or 128.
// Reference: backends/reference/attention.py, rotate. Twin: `turn` in append.cu.

// kernel: rotate
// inputs: keys subblocks masks cells cosines sines written
// outputs: turned
// template: T D
  constexpr int HALF = D / 2;
  const uint pair = 4 * thread_position_in_grid.x, tile = thread_position_in_grid.z;
  const uint row = thread_position_in_grid.y % TILE_ROWS;
  const uint head = thread_position_in_grid.y / TILE_ROWS;
  const uint kv_heads = threads_per_grid.y / TILE_ROWS;
  vec<T, 4> x, y;
  for (int i = 0; i < 4; ++i) x[i] = y[i] = T(0);
  if (masks[tile] >> row & 1) {
    const size_t key = (first_row_of(subblocks[tile], head, kv_heads) + row) * D + pair;
    const size_t angle = size_t(cells[tile * TILE_ROWS + row]) * HALF + pair;
    const vec<T, 4> a = *(const device vec<T, 4>*)(keys + key);
    const vec<T, 4> b = *(const device vec<T, 4>*)(keys + key + HALF);
    const vec<float, 4> c = *(const device vec<float, 4>*)(cosines + angle);
    const vec<float, 4> s = *(const device vec<float, 4>*)(sines + angle);
    for (int i = 0; i < 4; ++i) {
      x[i] = T(float(a[i]) * c[i] - float(b[i]) * s[i]);
      y[i] = T(float(b[i]) * c[i] + float(a[i]) * s[i]);
    }
  }
  const size_t to = ((size_t(tile) * kv_heads + head) * TILE_ROWS + row) * D + pair;
  *(device vec<T, 4>*)(turned + to) = x;
  *(device vec<T, 4>*)(turned + to + HALF) = y;

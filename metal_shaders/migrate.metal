// Rows of cells moved within one layer's pools: all are read before any is written.
//
// gather_rows
//   keys, values  T [page][kv_heads][64][D]
//   slots      int32 [num_rows], what to read
//   written    anything that was computed after the last write to the pools; not read
//   moved      T [2][num_rows][kv_heads][D]: keys, then values
//
// scatter_rows
//   moved      as above
//   slots      int32 [num_rows], distinct, where to write
//   keys, values  T [page][kv_heads][64][D], written in place as by append.metal, see there
//   written    int32 [1]: 0. Who reads the pools afterwards takes it as an input
//
// Grid (D / 4, kv_heads, num_rows): a thread copies 4 columns of a key and of a value.
// Numerics: bits are moved.
// Device traffic: 2 D sizeof(T) bytes read and written for each row and KV head, and its slot.
//
// Instances: T half, bfloat or float; D a multiple of 4.
// Reference: backends/reference/backend.py, migrate. Twin: migrate.cu.

// kernel: gather_rows
// inputs: keys values slots written
// outputs: moved
// template: T D
  const uint column = 4 * thread_position_in_grid.x, head = thread_position_in_grid.y;
  const uint row = thread_position_in_grid.z, kv_heads = threads_per_grid.y;
  const uint num_rows = threads_per_grid.z;
  const size_t from = row_of(slots[row], head, kv_heads) * D + column;
  const size_t to = (size_t(row) * kv_heads + head) * D + column;
  const size_t values_of = size_t(num_rows) * kv_heads * D;
  *(device vec<T, 4>*)(moved + to) = *(const device vec<T, 4>*)(keys + from);
  *(device vec<T, 4>*)(moved + values_of + to) = *(const device vec<T, 4>*)(values + from);

// kernel: scatter_rows
// inputs: moved slots keys values
// outputs: written
// template: T D
  const uint column = 4 * thread_position_in_grid.x, head = thread_position_in_grid.y;
  const uint row = thread_position_in_grid.z, kv_heads = threads_per_grid.y;
  const uint num_rows = threads_per_grid.z;
  const size_t from = (size_t(row) * kv_heads + head) * D + column;
  const size_t to = row_of(slots[row], head, kv_heads) * D + column;
  const size_t values_of = size_t(num_rows) * kv_heads * D;
  *(device vec<T, 4>*)(keys + to) = *(const device vec<T, 4>*)(moved + from);
  *(device vec<T, 4>*)(values + to) = *(const device vec<T, 4>*)(moved + values_of + from);
  if (column == 0 && head == 0 && row == 0) written[0] = 0;

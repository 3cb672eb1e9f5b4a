// Keys and values of new tokens into one layer's pools, in place.
//
// append
//   k, v       T [num_queries][kv_heads][D], keys not rotated
//   slots      int32 [num_queries], distinct
//   keys, values  T [page][kv_heads][64][D], written at `slots`
//   read       anything that was computed after the last read of the pools; not read here
//   written    int32 [1]: 0. Who reads the pools afterwards takes it as an input
//
// Grid (D / 4, kv_heads, num_queries): a thread copies 4 columns of a key and of a value.
// Numerics: bits are moved.
// Device traffic: 2 D sizeof(T) bytes read and written for each token and KV head, and its slot.
//
// MLX has no outputs that exist already, so the pools are inputs, and const is cast away. MLX can't
// see the writes: `written` stands for them, and backends/mlx/write_through.py sees to it that
// nothing reads the pools without it. Only used where a self-test has shown that it works.
//
// Instances: T half, bfloat or float; D a multiple of 4.
// Reference: backends/reference/backend.py, append. Twin: append.cu, which turns keys as well.

// kernel: append
// inputs: k v slots keys values read
// outputs: written
// template: T D
  const uint column = 4 * thread_position_in_grid.x, head = thread_position_in_grid.y;
  const uint token = thread_position_in_grid.z, kv_heads = threads_per_grid.y;
  const size_t from = (size_t(token) * kv_heads + head) * D + column;
  const size_t to = row_of(slots[token], head, kv_heads) * D + column;
  *(device vec<T, 4>*)(keys + to) = *(const device vec<T, 4>*)(k + from);
  *(device vec<T, 4>*)(values + to) = *(const device vec<T, 4>*)(v + from);
  if (column == 0 && head == 0 && token == 0) written[0] = 0;

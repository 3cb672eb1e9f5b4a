// Products of quantised weights with more rows of x than `quantized_matvec` takes.
//
// quantized_matmul  out = x weight^T, or its parts over columns
//   x           (tokens, width) T; width a multiple of 32
//   codes_0..2  (height_i, width BITS / 32) unsigned: up to three matrices; height 0: not there
//   scales_0..2, shifts_0..2 (height_i, width >> group_shift) T: weight = code * scale + shift
//   bias_0..2   (height_i,) T or null
//   residual    (tokens, height_0) T or null, added to out_0
//   out_0..2    (tokens, height_i) T
//   parts       (gridDim.z, tokens, height_0 + height_1 + height_2) float or null; if not null,
//               sums over part_columns columns each go there, and to nothing else
//   Grid: ROWS rows of a matrix, TOKENS rows of x, and part_columns columns (a multiple of 8 groups
//   and of 64) a block of 128 threads. Shared memory: the constant STAGE for each of STAGES stages,
//   and 8 ROWS READ bytes for scales. Weights are rounded to T before they are multiplied, as if
//   they had been stored so; sums in float.
// join_parts  out_i = the sum of the parts + bias_i (+ residual), rounded once
//   Grid: THREADS outputs of a token a block, tokens.
//
// T: __half or __nv_bfloat16. Reference: `linear` of backends/reference/backend.py with the weights
// of omnitide/dequantize.py.
//
// A warp makes the weights of its 32 rows in registers, in the order in which the tensor cores take
// them, and multiplies them by all TOKENS rows of x; nobody else needs them.
#include "copies.cuh"
#include "overlap.cuh"
#include "quantized.cuh"
#include "scales.cuh"
#include "vectors.cuh"

constexpr int THREADS = 128;
constexpr int ROWS = 128;                  // of the weights, a block
constexpr int COLUMNS = 64;                // a stage
constexpr int X_PITCH = 2 * COLUMNS + 16;  // bytes from row to row of x; no bank is met twice

template <int BITS>
constexpr int STAGES = BITS == 4 ? 4 : 3;
template <int BITS>
constexpr int PITCH = COLUMNS * BITS / 8;  // bytes from row to row of codes
template <int BITS, int TOKENS>
constexpr int STAGE = ROWS * PITCH<BITS> + TOKENS * X_PITCH;

// A matrix of up to three.
template <typename T>
struct Chosen {
  const unsigned* codes;
  const T* scales;
  const T* shifts;
  const T* bias;
  T* out;
  int height, before;  // and the rows of those before it
};

template <typename T, int BITS, int TOKENS>
__global__ void __launch_bounds__(THREADS, 2)
    quantized_matmul(const T* x, const unsigned* codes_0, const unsigned* codes_1,
                     const unsigned* codes_2, const T* scales_0, const T* scales_1,
                     const T* scales_2, const T* shifts_0, const T* shifts_1, const T* shifts_2,
                     const T* bias_0, const T* bias_1, const T* bias_2, const T* residual, T* out_0,
                     T* out_1, T* out_2, float* parts, int height_0, int height_1, int height_2,
                     int tokens, int width, int group_shift, int part_columns) {
  constexpr int WORDS = COLUMNS * BITS / 128;  // of codes of a row, a lane's share
  constexpr int WORDS_OF_PACK = BITS / 4;
  constexpr int GRID_TILES = TOKENS / 8;
  constexpr int LATER = STAGES<BITS> - 1;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* scales_at = shared + STAGES<BITS> * STAGE<BITS, TOKENS>;

  let_successor_start();
  wait_for_predecessor();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4,
            c = lane % 4;
  Chosen<T> matrix{codes_0, scales_0, shifts_0, bias_0, out_0, height_0, 0};
  int tile = blockIdx.x;
  const int tiles_0 = (height_0 + ROWS - 1) / ROWS, tiles_1 = (height_1 + ROWS - 1) / ROWS;
  if (tile >= tiles_0 + tiles_1) {
    tile -= tiles_0 + tiles_1;
    matrix = {codes_2, scales_2, shifts_2, bias_2, out_2, height_2, height_0 + height_1};
  } else if (tile >= tiles_0) {
    tile -= tiles_0;
    matrix = {codes_1, scales_1, shifts_1, bias_1, out_1, height_1, height_0};
  }
  const int first_row = tile * ROWS, first_token = blockIdx.y * TOKENS;
  const int first_column = blockIdx.z * part_columns;
  const int end = min(first_column + part_columns, width);
  const int steps = (end - first_column + COLUMNS - 1) / COLUMNS;
  const int groups = width >> group_shift, alignment = alignment_of_scales(groups);
  const int steps_of_read = (READ << group_shift) / COLUMNS;

  // A thread copies the scales of one row, and of codes and x what is `thread` chunks on.
  const long long scale_row = min(first_row + thread, matrix.height - 1);
  auto copy_row_of_scales = [&](int step) {
    const int group = (first_column + step * COLUMNS) >> group_shift;
    const int live = groups - group, buffer = step / steps_of_read % 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const T* from = (i == 0 ? matrix.scales : matrix.shifts) + scale_row * groups + group;
      unsigned char* to = scales_at + ((buffer * 2 + i) * ROWS + thread) * READ * 2;
      copy_scales(to, from, live, alignment);
    }
  };
  constexpr int CHUNKS = PITCH<BITS> / 16, X_CHUNKS = COLUMNS / 8;  // of 16 bytes, of a row
  const int codes_row = thread / CHUNKS, codes_at = thread % CHUNKS * 16;
  const int x_row = thread / X_CHUNKS, x_at = thread % X_CHUNKS * 8;
  const int code_bytes = width / 8 * BITS;  // of a row
  const unsigned char* codes_from =
      reinterpret_cast<const unsigned char*>(matrix.codes) + first_column / 8 * BITS + codes_at;
  const T* x_from = x + static_cast<long long>(first_token + x_row) * width + first_column + x_at;
  auto copy_stage = [&](int step) {
    const unsigned stage = shared_address(shared) + step % STAGES<BITS> * STAGE<BITS, TOKENS>;
    const bool codes_there = first_column + step * COLUMNS + codes_at / BITS * 8 < width;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; ++i) {
      const int row = codes_row + i * (THREADS / CHUNKS);
      const long long live_row = min(first_row + row, matrix.height - 1);
      const unsigned char* from = codes_from + live_row * code_bytes + step * PITCH<BITS>;
      copy_or_clear<16>(stage + row * PITCH<BITS> + codes_at,
                        codes_there ? from : static_cast<const void*>(matrix.codes), codes_there);
    }
    const bool x_there = first_column + step * COLUMNS + x_at < width;
    const T* from = x_from + step * COLUMNS;
#pragma unroll
    for (int i = 0; i < TOKENS * X_CHUNKS / THREADS; ++i) {
      const int row = x_row + i * (THREADS / X_CHUNKS);
      const bool there = x_there && first_token + row < tokens;
      copy_or_clear<16>(stage + ROWS * PITCH<BITS> + row * X_PITCH + x_at * 2, there ? from : x,
                        there);
      from += static_cast<long long>(THREADS / X_CHUNKS) * width;
    }
    if (step % steps_of_read == 0) copy_row_of_scales(step);
  };

#pragma unroll 1
  for (int step = 0; step < LATER; ++step) {
    if (step < steps) copy_stage(step);
    close_group();
  }
  const Parts<T, BITS> parts_of;
  float total[2][GRID_TILES][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_groups<LATER - 1>();
    __syncthreads();
    if (step + LATER < steps) copy_stage(step + LATER);
    close_group();

    const unsigned char* stage = shared + step % STAGES<BITS> * STAGE<BITS, TOKENS>;
    const unsigned char* of_x = stage + ROWS * PITCH<BITS> + g * X_PITCH + c * 32;
    // The lane's 16 columns lie in one group.
    const int group = (first_column + step * COLUMNS + 16 * c) >> group_shift;
    const unsigned short* scales = reinterpret_cast<const unsigned short*>(scales_at) +
                                   (step / steps_of_read % 2 * 2 * ROWS + warp * 32 + g) * READ +
                                   group % READ;
    Vector<unsigned, WORDS> codes[4];  // of rows g, g + 8, g + 16, g + 24
    unsigned scale[4], shift[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 32 + 8 * i + g;
      codes[i] = *reinterpret_cast<const Vector<unsigned, WORDS>*>(stage + row * PITCH<BITS> +
                                                                   c * WORDS * 4);
      scale[i] = scales[8 * i * READ] * 0x10001u;
      shift[i] = scales[(ROWS + 8 * i) * READ] * 0x10001u;
    }
#pragma unroll
    for (int pack = 0; pack < 2; ++pack) {
      unsigned weights[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int word = 0; word < WORDS_OF_PACK; ++word) {
          unsigned values[16 / BITS];
          dequantize_word<T, BITS>(values, parts_of, codes[i].at[pack * WORDS_OF_PACK + word],
                                   scale[i], shift[i]);
#pragma unroll
          for (int j = 0; j < 16 / BITS; ++j) weights[i][word * (16 / BITS) + j] = values[j];
        }
      }
#pragma unroll
      for (int i = 0; i < GRID_TILES; ++i) {
        const uint4 xs = *reinterpret_cast<const uint4*>(of_x + i * 8 * X_PITCH + pack * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned (&upper)[4] = weights[2 * half], (&lower)[4] = weights[2 * half + 1];
          multiply_add(total[half][i], upper[0], lower[0], upper[2], lower[2], xs.x, xs.z, T());
          multiply_add(total[half][i], upper[1], lower[1], upper[3], lower[3], xs.y, xs.w, T());
        }
      }
    }
  }

  const int all = height_0 + height_1 + height_2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + warp * 32 + 8 * i + g;
    if (row >= matrix.height) continue;
    const float bias = matrix.bias == nullptr ? 0.0f : to_float(matrix.bias[row]);
#pragma unroll
    for (int j = 0; j < 2 * GRID_TILES; ++j) {
      const int token = first_token + j / 2 * 8 + 2 * c + j % 2;
      if (token >= tokens) continue;
      float sum = total[i / 2][j / 2][i % 2 * 2 + j % 2];
      if (parts != nullptr) {
        parts[(static_cast<long long>(blockIdx.z) * tokens + token) * all + matrix.before + row] =
            sum;
        continue;
      }
      sum += bias;
      if (residual != nullptr) {
        sum += to_float(residual[static_cast<long long>(token) * height_0 + row]);
      }
      matrix.out[static_cast<long long>(token) * matrix.height + row] = from_float<T>(sum);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    join_parts(const float* parts, const T* bias_0, const T* bias_1, const T* bias_2,
               const T* residual, T* out_0, T* out_1, T* out_2, int height_0, int height_1,
               int height_2, int num_parts) {
  let_successor_start();
  wait_for_predecessor();
  const int all = height_0 + height_1 + height_2;
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= all) return;
  const long long token = blockIdx.y, size = static_cast<long long>(gridDim.y) * all;
  float sum = 0.0f;
#pragma unroll 4
  for (int part = 0; part < num_parts; ++part) sum += parts[part * size + token * all + at];
  int row = at, height = height_0;
  const T* bias = bias_0;
  T* out = out_0;
  if (at >= height_0 + height_1) {
    row -= height_0 + height_1, height = height_2, bias = bias_2, out = out_2;
  } else if (at >= height_0) {
    row -= height_0, height = height_1, bias = bias_1, out = out_1;
  }
  if (bias != nullptr) sum += to_float(bias[row]);
  if (residual != nullptr) sum += to_float(residual[token * height + row]);
  out[token * height + row] = from_float<T>(sum);
}

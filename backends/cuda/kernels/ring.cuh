// A warp's ring: slots in shared memory that pieces of quantised matrices are copied to, codes and
// scales. A warp copies what it multiplies itself, so that no warp waits for another while weights
// flow.
#pragma once

#include "matrices.cuh"
#include "runs.cuh"
#include "scales.cuh"

constexpr int SCALES = 32 * 2 * READ;  // bytes of a tile's scales and shifts of READ groups

// What four lanes read of a row at once.
template <int BITS, int GROUP>
struct Fold {
  static constexpr int COLUMNS = GROUP < 64 ? GROUP : 64;
  static constexpr int WORDS = COLUMNS * BITS / 128;  // of codes, a lane's share
  static constexpr int PACKS = COLUMNS / 32;          // of x, the same
  static constexpr int OF_GROUP = GROUP / COLUMNS;
  static constexpr int AT_ONCE = BITS == 8 ? 1 : OF_GROUP;  // with more, registers spill
};

// total += scale * sum + shift * sum_of_x
__device__ __forceinline__ void add_group(float& total, float scale, float sum, float shift,
                                          float sum_of_x) {
  total = fmaf(scale, sum, fmaf(shift, sum_of_x, total));
}

// Bytes from row to row in a slot, so that the lanes that read 4 WORDS bytes each of 8 rows meet
// no bank twice.
template <int WORDS>
__device__ __forceinline__ int pitch_of(int bytes) {
  return (bytes - 16 * WORDS + 127) / 128 * 128 + 16 * WORDS;
}

// The codes of TILE rows, `pitch` bytes apart. For each READ groups follow the scales of all rows,
// 16 bytes a row, and their shifts.
struct Slot {
  unsigned char* codes;
  int pitch;

  __device__ __forceinline__ unsigned char* scales() const { return codes + TILE * pitch; }
};

template <typename T, int BITS, int GROUP>
struct Ring {
  const Matrices<T> matrices;
  const Outputs outputs;
  const Runs runs;
  unsigned char* const slots;
  const int lane, row_bytes, groups, per_piece, pitch, slot_bytes, alignment;
  // A lane copies 16 bytes, a chunk, of a row; the lanes together as many rows at once as they can,
  // a power of two.
  const int whole_chunks, last_chunks, row_shift, rows_at_once, lane_row, lane_chunk;
  // Of the segment that is being copied: rows; where the codes of this lane's first row begin if
  // all rows are of one matrix; and where the scales of row lane % TILE begin or, for the upper
  // half of the lanes, shifts.
  int rows = 0, located = -1;
  bool same_matrix = true;
  const unsigned char* codes_from = nullptr;
  const T* scales_from = nullptr;
  // What is to be copied next, in the batch that begins with tile `next_first`.
  int next_first = 0;
  Run next;

  // For one warp, with `slots` its own room; a piece has `columns` columns, the last one of a row
  // what is left of `width`.
  __device__ __forceinline__ Ring(const Matrices<T>& matrices, const Outputs& outputs,
                                  const Runs& runs, unsigned char* slots, int lane, int width,
                                  int columns)
      : matrices(matrices),
        outputs(outputs),
        runs(runs),
        slots(slots),
        lane(lane),
        row_bytes(width / 8 * BITS),
        groups(width / GROUP),
        per_piece(columns / GROUP),
        pitch(pitch_of<Fold<BITS, GROUP>::WORDS>(columns * BITS / 8)),
        slot_bytes(bytes_of_slot(columns)),
        alignment(alignment_of_scales(groups | per_piece)),
        whole_chunks(columns * BITS / 128),
        last_chunks((width - (runs.pieces - 1) * columns) * BITS / 128),
        row_shift(min(32 - __clz(whole_chunks - 1), 5)),
        rows_at_once(32 >> row_shift),
        lane_row(lane >> row_shift),
        lane_chunk(lane & ((1 << row_shift) - 1)),
        next(runs.of(0)) {}

  __device__ __forceinline__ static int bytes_of_slot(int columns) {
    return TILE * pitch_of<Fold<BITS, GROUP>::WORDS>(columns * BITS / 8) +
           (columns / GROUP + READ - 1) / READ * SCALES;
  }

  __device__ __forceinline__ Slot slot(int index) const {
    return {slots + index * slot_bytes, pitch};
  }

  // Starts the copies of the warp's next piece, if there is one, and closes a group of copies.
  __device__ __forceinline__ void fill_next(int index) {
    while (next.left == 0 && next_first + runs.batch < runs.tiles) {
      next_first += runs.batch;
      next = runs.of(next_first);
    }
    if (next.left > 0) {
      if (next.segment != located) locate();
      const Slot to = slot(index);
      copy_codes(to);
      copy_scales_and_shifts(to);
      next.advance(runs.pieces);
    }
    close_group();
  }

 private:
  __device__ __forceinline__ const unsigned char* codes_of(int matrix, int row) const {
    return reinterpret_cast<const unsigned char*>(matrices.codes.of(matrix)) +
           static_cast<long long>(row) * row_bytes;
  }

  __device__ __forceinline__ void locate() {
    const bool gated = outputs.gated;
    const int first = (gated ? next.segment / 2 : next.segment) * TILE;
    const int side = gated ? next.segment % 2 : 0;
    rows = min(TILE, outputs.count - first);
    int row;
    const int last = outputs.find(first + rows - 1, side, row);
    int matrix = outputs.find(first + min(lane % TILE, rows - 1), side, row);
    scales_from = (lane < TILE ? matrices.scales.of(matrix) : matrices.shifts.of(matrix)) +
                  static_cast<long long>(row) * groups;
    matrix = outputs.find(first, side, row);
    codes_from = codes_of(matrix, row + lane_row);
    same_matrix = matrix == last;
    located = next.segment;
  }

  __device__ __forceinline__ void copy_codes(const Slot& to) const {
    const int chunks = next.piece < runs.pieces - 1 ? whole_chunks : last_chunks;
#pragma unroll 1
    for (int chunk = lane_chunk; chunk < chunks; chunk += 32) {
      const int byte = next.piece * whole_chunks * 16 + chunk * 16;
      unsigned target = shared_address(to.codes) + lane_row * pitch + chunk * 16;
      if (same_matrix) {
        const unsigned char* source = codes_from + byte;
#pragma unroll 1
        for (int first = lane_row; first < TILE; first += 8 * rows_at_once) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (first + i * rows_at_once < rows) copy_16(target, source);
            target += rows_at_once * pitch;
            source += rows_at_once * row_bytes;
          }
        }
      } else {
        // Never gated: gated matrices are equally high.
#pragma unroll 1
        for (int row = lane_row; row < rows; row += rows_at_once) {
          int local;
          const int matrix = outputs.find(next.segment * TILE + row, 0, local);
          copy_16(target, codes_of(matrix, local) + byte);
          target += rows_at_once * pitch;
        }
      }
    }
  }

  __device__ __forceinline__ void copy_scales_and_shifts(const Slot& to) const {
    const int first_group = next.piece * per_piece;
    const int live = lane % TILE < rows ? min(per_piece, groups - first_group) : 0;
    unsigned char* scales_to = to.scales() + lane * (2 * READ);
#pragma unroll 1
    for (int start = 0; start < per_piece; start += READ) {
      copy_scales(scales_to + start / READ * SCALES,
                  scales_from + (start < live ? first_group + start : 0), live - start, alignment);
    }
    if (alignment == 2) __syncwarp();
  }
};

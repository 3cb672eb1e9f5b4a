// Up to three quantised matrices side by side, and the outputs that a block has in them.
#pragma once

// One thing for each matrix.
template <typename A>
struct Three {
  A first, second, third;

  __device__ __forceinline__ A of(int matrix) const {
    return matrix == 0 ? first : matrix == 1 ? second : third;
  }
};

template <typename T>
struct Matrices {
  Three<const unsigned*> codes;
  Three<const T*> scales, shifts;
};

// `count` outputs of a block, from `begin` on; an output is a row of a matrix. Of gated matrices an
// output has a row in the first and, at side 1, one in the second.
struct Outputs {
  int begin, count, height_0, height_1;
  bool gated;

  // The matrix that holds an output of the block, and which of its rows that is.
  __device__ __forceinline__ int find(int output, int side, int& row) const {
    row = begin + output;
    if (gated) return side;
    if (row < height_0) return 0;
    row -= height_0;
    if (row < height_1) return 1;
    row -= height_1;
    return 2;
  }
};

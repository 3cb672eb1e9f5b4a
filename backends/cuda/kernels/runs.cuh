// How the warps of a block share its work: its outputs are cut into tiles, a tile into pieces, and
// of the pieces of a batch of tiles each warp takes an equal run.
#pragma once

constexpr int TILE = 16;  // rows

// An equal share of things in a row; the first shares hold one more.
struct Share {
  int begin, count;

  __device__ __forceinline__ static Share of(int things, int shares, int index) {
    const int each = things / shares, more = things % shares;
    return {each * index + min(index, more), each + (index < more ? 1 : 0)};
  }
};

// Where a warp is in a block's sequence of pieces, and how many are left of its run. A segment is a
// tile of a matrix; tiles of weight_0 and weight_1 take turns where they are gated.
struct Run {
  int segment, piece, left;

  __device__ __forceinline__ void advance(int pieces) {
    if (++piece == pieces) piece = 0, ++segment;
    --left;
  }
};

// The runs of a warp.
struct Runs {
  int tiles, batch, sides, pieces, warps, warp;

  // In the batch that begins with tile `first`.
  __device__ __forceinline__ Run of(int first) const {
    const int segments = (min(first + batch, tiles) - first) * sides;
    const Share share = Share::of(segments * pieces, warps, warp);
    return {first * sides + share.begin / pieces, share.begin % pieces, share.count};
  }
};

// Decides which tiles of the scores the attention kernels compute, which of them need a mask, and
// where a warp's lanes hold their elements. Plain arithmetic, shared by the kernels and a CPU test.
#pragma once

#include <algorithm>

namespace muster::kernels::cuda {

inline constexpr int kTile = 64;     // rows of a tile in shared memory, columns of the scores
inline constexpr int kWarps = 4;     // warps per block
inline constexpr int kHalf = 32;     // columns of scores that the derivatives hold at once
inline constexpr int kProduct = 16;  // rows of one product on tensor cores

// Which keys each query sees. Query t sees the keys before VisibleKeys(t), except those that a mask
// hides.
struct Causality {
  int queries;
  int keys;
  bool causal;  // query t sees keys up to t + keys - queries; otherwise all keys

  constexpr int VisibleKeys(int t) const {
    return causal ? std::clamp(t + keys - queries + 1, 0, keys) : keys;
  }
  // The first query that sees the key. `queries` or more: no query does.
  constexpr int FirstQuery(int key) const {
    return causal ? std::max(key - (keys - queries), 0) : 0;
  }
};

// The tiles [begin, end) along one side of the scores. Those in [open_begin, open_end) need no
// mask: every element counts.
struct Tiles {
  int begin = 0, end = 0;
  int open_begin = 0, open_end = 0;

  constexpr bool IsOpen(int tile) const { return tile >= open_begin && tile < open_end; }
};

// Tiles of the keys that queries [first, first + rows) see.
constexpr Tiles KeyTiles(const Causality& c, int first, int rows) {
  if (first >= c.queries) return {};
  const int last = std::min(first + rows, c.queries) - 1;
  return {.begin = 0,
          .end = (c.VisibleKeys(last) + kTile - 1) / kTile,
          .open_begin = 0,
          .open_end = c.VisibleKeys(first) / kTile};
}

// Tiles of the queries that see keys [first, first + rows). Queries beyond the last one need no
// mask: the kernel gives them a probability of 0.
constexpr Tiles QueryTiles(const Causality& c, int first, int rows) {
  const int end = (c.queries + kTile - 1) / kTile;
  if (first >= c.keys) return {.begin = end, .end = end, .open_begin = end, .open_end = end};
  const int last = std::min(first + rows, c.keys) - 1;
  return {.begin = std::min(c.FirstQuery(first) / kTile, end),
          .end = end,
          .open_begin = (c.FirstQuery(last) + kTile - 1) / kTile,
          .open_end = end};
}

// Returns where element e of 4 of a lane is in a 16 x 8 product of tensor cores (tensor_core.cuh).
constexpr int RowOf(int lane, int e) { return lane / 4 + e / 2 * 8; }
constexpr int ColumnOf(int lane, int e) { return lane % 4 * 2 + e % 2; }

// The row and first column that a lane names to load four 8 x 8 matrices from a tile.
struct TilePlace {
  int row, column;
};

// A left operand: rows r .. r + 15, columns k .. k + 15.
constexpr TilePlace LeftOperand(int lane, int r, int k) {
  return {r + lane % 16, k + lane / 16 * 8};
}

// A right operand that is stored transposed: its columns n .. n + 15 are rows of the tile, its rows
// k .. k + 15 are columns. Registers 0 and 1 hold the first 8 columns, 2 and 3 the others.
constexpr TilePlace TransposedOperand(int lane, int n, int k) {
  return {n + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8};
}

// A right operand that is not stored transposed; the load transposes its matrices: rows k .. k +
// 15, columns n .. n + 15.
constexpr TilePlace RightOperand(int lane, int k, int n) {
  return {k + lane % 8 + lane / 8 % 2 * 8, n + lane / 16 * 8};
}

}  // namespace muster::kernels::cuda

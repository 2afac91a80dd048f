// Where the values of an image tensor lie, for the kernels that go through them themselves.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace muster::kernels {

// Value (b, c, p) of a tensor [B, C, pixels] lies at ((b blocks + c / lanes) pixels + p) lanes + c
// % lanes: row-major with one lane, channels last with C lanes. What the last block has beyond C is
// zero. A plane is the values of one b and one block.
struct ImageOrder {
  int64_t blocks;
  int64_t lanes;

  static ImageOrder Of(const Layout& layout, int64_t channels);

  int64_t channels() const { return blocks * lanes; }  // those beyond C included
};

// The layout of that order for x[B, C, H, W].
Layout ImageLayout(const ImageOrder& order, int64_t batch, int64_t channels, int64_t height,
                   int64_t width);

}  // namespace muster::kernels

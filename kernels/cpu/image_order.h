// The order of an image tensor's values in memory, for kernels that iterate over them directly.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace muster::kernels {

// Value (b, c, p) of a tensor [B, C, pixels] is at
//   ((b * blocks + c / lanes) * pixels + p) * lanes + c % lanes.
// With one lane that is row-major, with C lanes it is channels last. In the last block the
// lanes beyond C are zero. A plane is the values of one b and one block.
struct ImageOrder {
  int64_t blocks;
  int64_t lanes;

  static ImageOrder Of(const Layout& layout, int64_t channels);

  int64_t channels() const { return blocks * lanes; }  // including those beyond C
};

// Returns the layout of that order for x[B, C, H, W].
Layout ImageLayout(const ImageOrder& order, int64_t batch, int64_t channels, int64_t height,
                   int64_t width);

}  // namespace muster::kernels

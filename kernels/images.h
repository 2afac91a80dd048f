// Image tensors in the layouts of the kernels, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/comparison.h"
#include "kernels/cpu/image_order.h"
#include "kernels/layout.h"

namespace muster::kernels {

struct ImageSize {
  int64_t batch;
  int64_t channels;
  int64_t height;
  int64_t width;
};

// Returns four layouts: row-major, channels in blocks of 16, in blocks of 8, and channels last.
inline std::vector<Layout> ImageLayouts(const ImageSize& s) {
  std::vector<Layout> layouts;
  for (int64_t lanes : {int64_t{1}, int64_t{16}, int64_t{8}, s.channels}) {
    const ImageOrder order{.blocks = (s.channels + lanes - 1) / lanes, .lanes = lanes};
    layouts.push_back(ImageLayout(order, s.batch, s.channels, s.height, s.width));
  }
  return layouts;
}

inline int64_t FloatsIn(const Layout& layout, int64_t elements) {
  return layout.bytes(elements * sizeof(float)) / sizeof(float);
}

inline Floats ToLayout(const Floats& row_major, const Layout& layout) {
  if (layout.is_row_major()) return row_major;
  Floats values(FloatsIn(layout, row_major.size()), NAN);
  Reorder(Layout(), layout).Run(values.data(), row_major.data());
  return values;
}

inline Floats FromLayout(const Floats& values, const Layout& layout, int64_t elements) {
  if (layout.is_row_major()) return values;
  Floats row_major(elements, NAN);
  Reorder(layout, Layout()).Run(row_major.data(), values.data());
  return row_major;
}

// Scratch memory that is filled with NaNs and 64-byte aligned.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : chunks_((bytes + sizeof(Chunk) - 1) / sizeof(Chunk)) {
    std::memset(chunks_.data(), 0xFF, chunks_.size() * sizeof(Chunk));
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(chunks_.data()); }

 private:
  struct alignas(64) Chunk {
    std::byte bytes[64];
  };
  std::vector<Chunk> chunks_;
};

}  // namespace muster::kernels

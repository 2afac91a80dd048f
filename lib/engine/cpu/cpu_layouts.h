// Numbers the layouts of images in CPU memory.
#pragma once

#include <vector>

#include "kernels/layout.h"
#include "lib/engine/kernel.h"

namespace muster {

class CpuLayouts {
 public:
  CpuLayouts() : layouts_(1) {}

  const kernels::Layout& operator[](Layout layout) const {
    return layouts_[static_cast<int>(layout)];
  }
  Layout Number(const kernels::Layout& layout);

  // Returns the number of a tensor's elements, including the gaps between them.
  int64_t Places(const TensorType& type, Layout layout) const;

 private:
  std::vector<kernels::Layout> layouts_;  // the first is row-major
};

}  // namespace muster

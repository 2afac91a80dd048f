#include "kernels/layout.h"

#include <algorithm>

#include "kernels/cpu/primitive.h"

namespace muster::kernels {
namespace {

// Returns oneDNN's descriptor of `layout`. A row-major layout has none, so it gets the dimensions
// of `other`. Requires: at least one of the two layouts has a descriptor.
dnnl_memory_desc_t DescriptorOf(const Layout& layout, const Layout& other) {
  return layout.is_row_major() ? DescribeRowMajor(other.descriptor()->value)
                               : layout.descriptor()->value;
}

}  // namespace

Layout::Layout(const MemoryDescriptor& descriptor)
    : descriptor_(std::make_shared<const MemoryDescriptor>(descriptor)) {}

int64_t Layout::bytes(int64_t row_major_bytes) const {
  return is_row_major() ? row_major_bytes : dnnl_memory_desc_get_size(&descriptor_->value);
}

bool Layout::is_padded() const {
  if (is_row_major()) return false;
  const dnnl_memory_desc_t& d = descriptor_->value;
  return !std::equal(d.dims, d.dims + d.ndims, d.padded_dims);
}

bool Layout::operator==(const Layout& other) const {
  if (is_row_major() || other.is_row_major()) return is_row_major() == other.is_row_major();
  return dnnl_memory_desc_equal(&descriptor_->value, &other.descriptor_->value) != 0;
}

Reorder::Reorder(const Layout& from, const Layout& to)
    : primitive_(std::make_unique<Primitive>(
          PrimitiveDescriptor(DescriptorOf(from, to), DescriptorOf(to, from)),
          std::vector<int>{DNNL_ARG_FROM, DNNL_ARG_TO})) {}

Reorder::~Reorder() = default;
Reorder::Reorder(Reorder&&) noexcept = default;

// Copies of f32 need no scratchpad.
void Reorder::Run(float* to, const float* from) { primitive_->Execute({from, to}, nullptr); }

}  // namespace muster::kernels

#include "kernels/cpu/image_order.h"

#include "kernels/cpu/primitive.h"

namespace muster::kernels {
namespace {

dnnl_format_tag_t TagOf(const ImageOrder& order) {
  switch (order.lanes) {
    case 4:
      return dnnl_nChw4c;
    case 8:
      return dnnl_nChw8c;
    case 16:
      return dnnl_nChw16c;
  }
  return dnnl_nhwc;
}

}  // namespace

ImageOrder ImageOrder::Of(const Layout& layout, int64_t channels) {
  if (layout.is_row_major()) return {.blocks = channels, .lanes = 1};
  const dnnl_memory_desc_t& descriptor = layout.descriptor()->value;
  const dnnl_blocking_desc_t& blocking = descriptor.format_desc.blocking;
  const int64_t lanes = blocking.inner_nblks == 0 ? channels : blocking.inner_blks[0];
  return {.blocks = (channels + lanes - 1) / lanes, .lanes = lanes};
}

Layout ImageLayout(const ImageOrder& order, int64_t batch, int64_t channels, int64_t height,
                   int64_t width) {
  if (order.lanes == 1) return Layout();
  return LayoutOf(Describe({batch, channels, height, width}, TagOf(order)));
}

}  // namespace muster::kernels

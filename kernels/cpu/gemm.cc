#include "kernels/cpu/gemm.h"

#include <dnnl.h>

#include <cstdio>
#include <cstdlib>

namespace muster::kernels {

void Gemm(float* c, int64_t c_stride, MatrixView a, MatrixView b, GemmShape shape, GemmMode mode) {
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', shape.rows, shape.columns,
                 shape.inner, 1.0f, a.data, a.stride, b.data, b.stride,
                 mode == GemmMode::kAccumulate ? 1.0f : 0.0f, c, c_stride);
  if (status != dnnl_success) {  // A wrong stride of ours, or no memory for its packing buffers.
    std::fprintf(stderr, "dnnl_sgemm: status %d\n", static_cast<int>(status));
    std::abort();
  }
}

}  // namespace muster::kernels

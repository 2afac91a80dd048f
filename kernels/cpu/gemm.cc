#include "kernels/cpu/gemm.h"

#include <dnnl.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/cpu/parallel.h"

// Functions of the OpenMP runtime that oneDNN is linked with.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int threads);
}

namespace muster::kernels {
namespace {

// Makes oneDNN run on the calling thread alone while an object of this class exists.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) {
    if (threads_ > 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (threads_ > 1) omp_set_num_threads(threads_);
  }

 private:
  const int threads_;
};

}  // namespace

void SerialGemm(float* c, int64_t c_stride, MatrixView a, MatrixView b, GemmShape shape,
                GemmMode mode) {
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', shape.rows, shape.columns,
                 shape.inner, 1.0f, a.data, a.stride, b.data, b.stride,
                 mode == GemmMode::kAccumulate ? 1.0f : 0.0f, c, c_stride);
  // The call fails if we passed a wrong argument, such as a stride, or if oneDNN has no memory for
  // its packing buffers.
  if (status != dnnl_success) {
    std::fprintf(stderr, "dnnl_sgemm: status %d\n", static_cast<int>(status));
    std::abort();
  }
}

void Gemm(float* c, int64_t c_stride, MatrixView a, MatrixView b, GemmShape shape, GemmMode mode) {
  ForEachTile(shape, [&](const GemmTile& tile) {
    SerialGemm(c + tile.row * c_stride + tile.column, c_stride, a.FromRow(tile.row),
               b.FromColumn(tile.column), tile.shape, mode);
  });
}

}  // namespace muster::kernels

#include "kernels/softmax.h"

#include "kernels/cpu/simd_level.h"
#include "kernels/cpu/softmax_rows.h"

namespace muster::kernels {
namespace {

// Calls row(offset) with the offset of each row's first element.
template <typename F>
void ForEachRow(SoftmaxShape shape, F row) {
  ParallelFor(shape.rows, SoftmaxGrain(shape.classes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r * shape.classes);
  });
}

}  // namespace

const SoftmaxLoops& Softmaxes() {
  return ForThisProcessor(baseline::kSoftmaxLoops, avx2::kSoftmaxLoops, avx512::kSoftmaxLoops);
}

void Softmax(float* y, const float* x, SoftmaxShape shape) {
  ForEachRow(shape, [=](int64_t at) { Softmaxes().softmax(y + at, x + at, shape.classes); });
}

void LogSoftmax(float* y, const float* x, SoftmaxShape shape) {
  ForEachRow(shape, [=, &loops = Softmaxes()](int64_t at) {
    const float lse = loops.log_sum_exp(x + at, shape.classes);
    loops.subtract(y + at, x + at, lse, shape.classes);
  });
}

void SoftmaxGrad(float* dx, const float* dy, const float* y, SoftmaxShape shape) {
  ForEachRow(shape, [=](int64_t at) {
    Softmaxes().softmax_grad(dx + at, dy + at, y + at, shape.classes);
  });
}

void LogSoftmaxGrad(float* dx, const float* dy, const float* y, SoftmaxShape shape) {
  ForEachRow(shape, [=](int64_t at) {
    Softmaxes().log_softmax_grad(dx + at, dy + at, y + at, shape.classes);
  });
}

}  // namespace muster::kernels

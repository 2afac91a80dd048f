// Patches side by side (im2col) and one matrix product per sample. oneDNN's own convolution would
// keep primitives and reordered weights between calls and allocate in each; this is a function of
// its arguments alone.
#include "kernels/convolution.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {
namespace {

// Calls segment(patch_row, y, input_row, first, last) for each row y of output pixels that patch
// row (c, i, j) of the column matrix draws from input row `input_row` of channel c: pixels [first,
// last) of it lie inside the image. A row outside has first == last == 0.
template <typename F>
void ForEachSegment(const Conv2dShape& s, F segment) {
  const int64_t out_width = s.output_width();
  int64_t patch_row = 0;
  for (int64_t c = 0; c < s.channels; ++c) {
    for (int64_t i = 0; i < s.kernel; ++i) {
      for (int64_t j = 0; j < s.kernel; ++j, ++patch_row) {
        const int64_t shift = j - s.padding;  // input column of output pixel p: p * stride + shift
        const int64_t first =
            std::min(out_width, shift >= 0 ? 0 : (-shift + s.stride - 1) / s.stride);
        const int64_t last = std::clamp(
            s.width > shift ? (s.width - shift + s.stride - 1) / s.stride : 0, first, out_width);
        for (int64_t y = 0; y < s.output_height(); ++y) {
          const int64_t row = y * s.stride + i - s.padding;
          const bool inside = row >= 0 && row < s.height;
          segment(patch_row, y, (c * s.height + row) * s.width + shift, inside ? first : 0,
                  inside ? last : 0);
        }
      }
    }
  }
}

// columns[C K K, H' W'] of one sample x[C, H, W].
void GatherPatches(float* columns, const float* x, const Conv2dShape& s) {
  const int64_t out_width = s.output_width();
  ForEachSegment(s, [&](int64_t patch_row, int64_t y, int64_t origin, int64_t first, int64_t last) {
    float* out = columns + patch_row * s.pixels() + y * out_width;
    std::fill(out, out + first, 0.0f);
    if (s.stride == 1) {
      std::copy(x + origin + first, x + origin + last, out + first);
    } else {
      for (int64_t p = first; p < last; ++p) out[p] = x[origin + p * s.stride];
    }
    std::fill(out + last, out + out_width, 0.0f);
  });
}

// The transpose: adds columns[C K K, H' W'] to one sample dx[C, H, W].
void ScatterPatches(float* dx, const float* columns, const Conv2dShape& s) {
  const int64_t out_width = s.output_width();
  const VectorKernels& vectors = Vectors();
  ForEachSegment(s, [&](int64_t patch_row, int64_t y, int64_t origin, int64_t first, int64_t last) {
    const float* in = columns + patch_row * s.pixels() + y * out_width;
    float* out = dx + origin;
    if (s.stride == 1) {
      vectors.add(out + first, out + first, in + first, last - first);
    } else {
      for (int64_t p = first; p < last; ++p) out[p * s.stride] += in[p];
    }
  });
}

int64_t InputSize(const Conv2dShape& s) { return s.channels * s.height * s.width; }
int64_t OutputSize(const Conv2dShape& s) { return s.outputs * s.pixels(); }

}  // namespace

void Conv2d(float* y, const float* x, const float* w, const float* bias, float* workspace,
            const Conv2dShape& shape) {
  const int64_t pixels = shape.pixels();
  const GemmMode mode = bias == nullptr ? GemmMode::kAssign : GemmMode::kAccumulate;
  for (int64_t b = 0; b < shape.batch; ++b) {
    float* out = y + b * OutputSize(shape);
    if (bias != nullptr) {
      for (int64_t o = 0; o < shape.outputs; ++o) std::fill_n(out + o * pixels, pixels, bias[o]);
    }
    GatherPatches(workspace, x + b * InputSize(shape), shape);
    Gemm(out, pixels, {w, shape.patch()}, {workspace, pixels},
         {shape.outputs, pixels, shape.patch()}, mode);
  }
}

void Conv2dGradInput(float* dx, const float* dy, const float* w, float* workspace,
                     const Conv2dShape& shape) {
  const int64_t pixels = shape.pixels();
  std::fill_n(dx, shape.batch * InputSize(shape), 0.0f);
  for (int64_t b = 0; b < shape.batch; ++b) {
    Gemm(workspace, pixels, MatrixView{w, shape.patch()}.T(), {dy + b * OutputSize(shape), pixels},
         {shape.patch(), pixels, shape.outputs});
    ScatterPatches(dx + b * InputSize(shape), workspace, shape);
  }
}

void Conv2dGradWeight(float* dw, const float* dy, const float* x, float* workspace,
                      const Conv2dShape& shape) {
  const int64_t pixels = shape.pixels();
  for (int64_t b = 0; b < shape.batch; ++b) {
    GatherPatches(workspace, x + b * InputSize(shape), shape);
    Gemm(dw, shape.patch(), {dy + b * OutputSize(shape), pixels}, MatrixView{workspace, pixels}.T(),
         {shape.outputs, shape.patch(), pixels},
         b == 0 ? GemmMode::kAssign : GemmMode::kAccumulate);
  }
}

void Conv2dGradBias(float* db, const float* dy, const Conv2dShape& shape) {
  const VectorKernels& vectors = Vectors();
  const int64_t pixels = shape.pixels();
  std::fill_n(db, shape.outputs, 0.0f);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t o = 0; o < shape.outputs; ++o) {
      db[o] += vectors.sum(dy + b * OutputSize(shape) + o * pixels, pixels);
    }
  }
}

}  // namespace muster::kernels

#include "kernels/convolution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "kernels/activation.h"
#include "kernels/cpu/image_order.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/plane_loops.h"
#include "kernels/cpu/primitive.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/transpose.h"

namespace muster::kernels {
namespace {

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// oneDNN's direct convolutions. Every tensor has the order that the primitive prefers.
class Operation {
 public:
  explicit Operation(const Conv2dShape& s)
      : x_(Any({s.batch, s.channels, s.height, s.width})),
        w_(s.groups == 1 ? Any({s.outputs, s.channels, s.kernel[0], s.kernel[1]})
                         : Any({s.groups, s.outputs / s.groups, s.channels / s.groups, s.kernel[0],
                                s.kernel[1]})),
        bias_(Describe({s.outputs}, dnnl_x)),
        y_(Any({s.batch, s.outputs, s.output_height(), s.output_width()})),
        strides_{s.strides[0], s.strides[1]},
        gaps_{s.dilations[0] - 1, s.dilations[1] - 1},
        before_{s.padding[0], s.padding[1]},
        after_{s.padding[2], s.padding[3]} {}

  PrimitiveDescriptor Forward(bool bias) const {
    dnnl_convolution_desc_t operation;
    CheckDnnl(dnnl_dilated_convolution_forward_desc_init(
                  &operation, dnnl_forward_training, dnnl_convolution_direct, &x_, &w_,
                  bias ? &bias_ : nullptr, &y_, strides_, gaps_, before_, after_),
              "dnnl_dilated_convolution_forward_desc_init");
    return PrimitiveDescriptor(&operation);
  }

  PrimitiveDescriptor GradInput() const {
    dnnl_convolution_desc_t operation;
    CheckDnnl(
        dnnl_dilated_convolution_backward_data_desc_init(
            &operation, dnnl_convolution_direct, &x_, &w_, &y_, strides_, gaps_, before_, after_),
        "dnnl_dilated_convolution_backward_data_desc_init");
    const PrimitiveDescriptor forward = Forward(/*bias=*/false);
    return PrimitiveDescriptor(&operation, &forward);
  }

  PrimitiveDescriptor GradWeight() const {
    dnnl_convolution_desc_t operation;
    CheckDnnl(dnnl_dilated_convolution_backward_weights_desc_init(
                  &operation, dnnl_convolution_direct, &x_, &w_, /*diff_bias=*/nullptr, &y_,
                  strides_, gaps_, before_, after_),
              "dnnl_dilated_convolution_backward_weights_desc_init");
    const PrimitiveDescriptor forward = Forward(/*bias=*/false);
    return PrimitiveDescriptor(&operation, &forward);
  }

 private:
  static dnnl_memory_desc_t Any(const std::vector<int64_t>& dimensions) {
    return Describe(dimensions, dnnl_format_tag_any);
  }

  dnnl_memory_desc_t x_;
  dnnl_memory_desc_t w_;
  dnnl_memory_desc_t bias_;
  dnnl_memory_desc_t y_;
  dnnl_dims_t strides_;
  dnnl_dims_t gaps_;
  dnnl_dims_t before_;
  dnnl_dims_t after_;
};

// Returns whether `w` has oneDNN's AVX-512 layout: [O/16, C/16, taps, 16 c, 16 o].
bool IsInTilesOfInputs(const dnnl_memory_desc_t& w) {
  const dnnl_blocking_desc_t& blocking = w.format_desc.blocking;
  if (w.ndims != 4 || w.dims[0] % 16 != 0 || w.dims[1] % 16 != 0 || blocking.inner_nblks != 2 ||
      blocking.inner_blks[0] != 16 || blocking.inner_idxs[0] != 1 || blocking.inner_blks[1] != 16 ||
      blocking.inner_idxs[1] != 0) {
    return false;
  }
  const int64_t tile = 256, row = w.dims[3] * tile, taps = w.dims[2] * row;
  return blocking.strides[3] == tile && blocking.strides[2] == row && blocking.strides[1] == taps &&
         blocking.strides[0] == w.dims[1] / 16 * taps;
}

}  // namespace

// A primitive with row-major weights (or their gradient) and images in its own layouts. The
// workspace holds the weights in the primitive's order if that differs, then scratch memory.
class WeightedPrimitive {
 public:
  WeightedPrimitive(const PrimitiveDescriptor& descriptor, int weights,
                    const std::vector<int>& arguments)
      : primitive_(descriptor, arguments) {
    const dnnl_memory_desc_t& own = descriptor.Argument(weights);
    const dnnl_memory_desc_t given = DescribeRowMajor(own);
    if (!dnnl_memory_desc_equal(&own, &given)) {
      weight_bytes_ = Aligned(dnnl_memory_desc_get_size(&own));
      const bool is_output = weights == DNNL_ARG_DIFF_WEIGHTS;
      if (is_output && IsInTilesOfInputs(own)) {
        tiles_ = {own.dims[0] / 16, own.dims[1] / 16, own.dims[2] * own.dims[3], 16, 16};
      } else {
        reorder_.emplace(
            is_output ? PrimitiveDescriptor(own, given) : PrimitiveDescriptor(given, own),
            std::vector<int>{DNNL_ARG_FROM, DNNL_ARG_TO});
      }
    }
  }

  int64_t workspace_bytes() const { return weight_bytes_ + primitive_.scratchpad_bytes(); }

  // Returns the weights in the primitive's order.
  const void* Weights(const float* w, std::byte* workspace) {
    if (!reorder_) return w;
    reorder_->Execute({w, workspace}, nullptr);
    return workspace;
  }

  void Execute(std::initializer_list<const void*> memory, std::byte* workspace) {
    primitive_.Execute(memory, workspace + weight_bytes_);
  }

  // WeightGradient() returns the memory to which the primitive writes the gradient of the weights.
  // StoreWeightGradient() copies it to dw.
  void* WeightGradient(float* dw, std::byte* workspace) const {
    return weight_bytes_ == 0 ? static_cast<void*>(dw) : workspace;
  }
  void StoreWeightGradient(float* dw, std::byte* workspace) {
    if (tiles_) {  // up to four times as fast as oneDNN's reorder
      constexpr std::array<int64_t, 5> kRowMajor = {0, 4, 1, 3, 2};
      Transpose(dw, workspace, *tiles_, kRowMajor, sizeof(float));
    } else if (reorder_) {
      reorder_->Execute({workspace, dw}, nullptr);
    }
  }

 private:
  Primitive primitive_;
  int64_t weight_bytes_ = 0;
  std::optional<Primitive> reorder_;
  std::optional<std::array<int64_t, 5>> tiles_;
};

Conv2d::Conv2d(const Conv2dShape& shape, const Options& options)
    : bias_(options.bias), epilogue_(options.epilogue) {
  const PrimitiveDescriptor descriptor = Operation(shape).Forward(options.bias);
  x_layout_ = LayoutOf(descriptor.Argument(DNNL_ARG_SRC));
  y_layout_ = LayoutOf(descriptor.Argument(DNNL_ARG_DST));
  y_bytes_ = dnnl_memory_desc_get_size(&descriptor.Argument(DNNL_ARG_DST));
  std::vector<int> arguments = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
  if (options.bias) arguments.push_back(DNNL_ARG_BIAS);
  primitive_ = std::make_unique<WeightedPrimitive>(descriptor, DNNL_ARG_WEIGHTS, arguments);
}

Conv2d::~Conv2d() = default;
Conv2d::Conv2d(Conv2d&&) noexcept = default;

int64_t Conv2d::workspace_bytes() const { return primitive_->workspace_bytes(); }

void Conv2d::Run(float* y, const float* x, const float* w, const float* bias,
                 std::byte* workspace) {
  const void* weights = primitive_->Weights(w, workspace);
  if (bias_) {
    primitive_->Execute({x, weights, y, bias}, workspace);
  } else {
    primitive_->Execute({x, weights, y}, workspace);
  }
  // Relu runs separately. oneDNN's post-operation would turn NaN into 0 and so hide a diverged
  // model.
  if (epilogue_ == Conv2dEpilogue::kRelu) Relu(y, y, y_bytes_ / sizeof(float));
}

Conv2dBatchNormRelu::Conv2dBatchNormRelu(const Conv2dShape& shape)
    : outputs_(shape.outputs),
      patch_(shape.patch()),
      convolution_(shape, {.bias = true, .epilogue = Conv2dEpilogue::kRelu}) {}

int64_t Conv2dBatchNormRelu::workspace_bytes() const {
  return Aligned(outputs_ * patch_ * sizeof(float)) + Aligned(outputs_ * sizeof(float)) +
         convolution_.workspace_bytes();
}

void Conv2dBatchNormRelu::Run(float* y, const float* x, const float* w, const float* bias,
                              const Normalization& n, std::byte* workspace) {
  float* folded_w = reinterpret_cast<float*>(workspace);
  workspace += Aligned(outputs_ * patch_ * sizeof(float));
  float* folded_bias = reinterpret_cast<float*>(workspace);
  workspace += Aligned(outputs_ * sizeof(float));
  for (int64_t o = 0; o < outputs_; ++o) {
    const float scale =
        (n.gain == nullptr ? 1.0f : n.gain[o]) / std::sqrt(n.variance[o] + n.epsilon);
    for (int64_t i = o * patch_; i < (o + 1) * patch_; ++i) folded_w[i] = w[i] * scale;
    folded_bias[o] = ((bias == nullptr ? 0.0f : bias[o]) - n.mean[o]) * scale + n.bias[o];
  }
  convolution_.Run(y, x, folded_w, folded_bias, workspace);
}

Conv2dGradInput::Conv2dGradInput(const Conv2dShape& shape) {
  const PrimitiveDescriptor descriptor = Operation(shape).GradInput();
  dx_layout_ = LayoutOf(descriptor.Argument(DNNL_ARG_DIFF_SRC));
  dy_layout_ = LayoutOf(descriptor.Argument(DNNL_ARG_DIFF_DST));
  primitive_ = std::make_unique<WeightedPrimitive>(
      descriptor, DNNL_ARG_WEIGHTS,
      std::vector<int>{DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC});
}

Conv2dGradInput::~Conv2dGradInput() = default;
Conv2dGradInput::Conv2dGradInput(Conv2dGradInput&&) noexcept = default;

int64_t Conv2dGradInput::workspace_bytes() const { return primitive_->workspace_bytes(); }

void Conv2dGradInput::Run(float* dx, const float* dy, const float* w, std::byte* workspace) {
  primitive_->Execute({dy, primitive_->Weights(w, workspace), dx}, workspace);
}

Conv2dGradWeight::Conv2dGradWeight(const Conv2dShape& shape) {
  const PrimitiveDescriptor descriptor = Operation(shape).GradWeight();
  x_layout_ = LayoutOf(descriptor.Argument(DNNL_ARG_SRC));
  dy_layout_ = LayoutOf(descriptor.Argument(DNNL_ARG_DIFF_DST));
  primitive_ = std::make_unique<WeightedPrimitive>(
      descriptor, DNNL_ARG_DIFF_WEIGHTS,
      std::vector<int>{DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS});
}

Conv2dGradWeight::~Conv2dGradWeight() = default;
Conv2dGradWeight::Conv2dGradWeight(Conv2dGradWeight&&) noexcept = default;

int64_t Conv2dGradWeight::workspace_bytes() const { return primitive_->workspace_bytes(); }

void Conv2dGradWeight::Run(float* dw, const float* dy, const float* x, std::byte* workspace) {
  primitive_->Execute({x, dy, primitive_->WeightGradient(dw, workspace)}, workspace);
  primitive_->StoreWeightGradient(dw, workspace);
}

void Conv2dGradBias(float* db, const float* dy, int64_t batch, int64_t outputs, int64_t pixels,
                    const Layout& layout) {
  const ImageOrder order = ImageOrder::Of(layout, outputs);
  const PlaneLoops& loops =
      ForThisProcessor(baseline::kPlaneLoops, avx2::kPlaneLoops, avx512::kPlaneLoops);
  constexpr int64_t kStrip = 64;
  const int64_t strips = (order.lanes + kStrip - 1) / kStrip;
  ParallelFor(order.blocks * strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / strips, lane = i % strips * kStrip;
      const int64_t channel = block * order.lanes + lane;
      const Plane plane{pixels, order.lanes, std::min(kStrip, order.lanes - lane)};
      double sums[kStrip] = {};
      for (int64_t b = 0; b < batch; ++b) {
        float sum[kStrip];
        loops.sum(sum, dy + (b * order.blocks + block) * pixels * order.lanes + lane, plane);
        for (int64_t k = 0; k < plane.lanes; ++k) sums[k] += sum[k];
      }
      for (int64_t k = 0; k < plane.lanes && channel + k < outputs; ++k) db[channel + k] = sums[k];
    }
  });
}

void AddChannelBias(float* y, const float* bias, int64_t batch, int64_t outputs, int64_t pixels,
                    const Layout& layout) {
  const ImageOrder order = ImageOrder::Of(layout, outputs);
  const PlaneLoops& loops =
      ForThisProcessor(baseline::kPlaneLoops, avx2::kPlaneLoops, avx512::kPlaneLoops);
  constexpr int64_t kStrip = 64;
  static constexpr std::array<float, kStrip> kZeros = {};
  static constexpr std::array<float, kStrip> kOnes = [] {
    std::array<float, kStrip> ones;
    ones.fill(1);
    return ones;
  }();
  const int64_t strips = (order.lanes + kStrip - 1) / kStrip;
  ParallelFor(batch * order.blocks * strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t plane = i / strips, lane = i % strips * kStrip;
      const int64_t channel = plane % order.blocks * order.lanes + lane;
      // The lanes beyond the channels stay zero in the last block.
      const int64_t lanes = std::min({kStrip, order.lanes - lane, outputs - channel});
      float* first = y + plane * pixels * order.lanes + lane;
      loops.normalise(first, first, {kZeros.data(), kOnes.data(), bias + channel},
                      {pixels, order.lanes, lanes});
    }
  });
}

}  // namespace muster::kernels

#include "lib/codec/feedback_encoder.h"

#include <algorithm>

#include "glog/logging.h"
#include "kernels/cpu/simd_level.h"

namespace muster {

const kernels::CodecLoops& Loops() {
  return kernels::ForThisProcessor(kernels::baseline::kCodecLoops, kernels::avx2::kCodecLoops,
                                   kernels::avx512::kCodecLoops);
}

FeedbackEncoder::FeedbackEncoder(const WireFormat& format)
    : format_(format), residual_(format.elements) {}

void FeedbackEncoder::Encode(absl::Span<const float> gradient, absl::Span<std::byte> payload) {
  CHECK_EQ(gradient.size(), format_.elements);
  CHECK_EQ(payload.size(), format_.bytes);
  if (Pack(gradient.data(), residual_.data(), payload.data())) return;
  std::fill(residual_.begin(), residual_.end(), 0.0f);
}

int64_t FeedbackEncoder::state_bytes() const { return residual_.size() * sizeof(float); }

}  // namespace muster

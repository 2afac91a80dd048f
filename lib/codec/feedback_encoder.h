// What the lossy codecs share: the residual, and what counts as not finite.
//   Sources: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent", Interspeech 2014;
//   Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD", ICML 2019.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "lib/codec/codec.h"
#include "lib/codec/codec_loops.h"

namespace muster {

// Those for this processor.
const kernels::CodecLoops& Loops();

// What a payload holds in the place of a gradient that is not finite: always the same NaN.
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// A magnitude (codec_loops.h) from here on is not finite to a lossy codec: 2^127. Below it neither
// a block's mean nor its largest code overflows.
inline constexpr uint32_t kNotFinite = 0x7F000000;

// Whether an encoder may have written `x`: a number, or the one NaN.
inline bool IsNumberOrTheNan(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7FFFFFFF) < 0x7F800000 || bits == std::bit_cast<uint32_t>(kNotANumber);
}

// Adds to each gradient what the messages before it have left out.
class FeedbackEncoder : public ChunkEncoder {
 public:
  explicit FeedbackEncoder(const WireFormat& format);

  void Encode(absl::Span<const float> gradient, absl::Span<std::byte> payload) final;
  int64_t state_bytes() const override;

 protected:
  // Adds `gradient` to `sum`, packs that, and subtracts from it what Decode will give back. False
  // when the sum is not finite: the payload says so, and `sum` may be anything.
  virtual bool Pack(const float* gradient, float* sum, std::byte* payload) = 0;

  const WireFormat& format() const { return format_; }

 private:
  const WireFormat format_;
  std::vector<float> residual_;
};

}  // namespace muster

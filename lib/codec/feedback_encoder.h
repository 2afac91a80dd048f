// Common to the lossy codecs: the residual, and the treatment of values that are not finite.
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

// Returns the loops for this processor.
const kernels::CodecLoops& Loops();

// Stands in a payload for a gradient that is not finite: always the same NaN.
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// Magnitudes (codec_loops.h) from 2^127 on are not finite to kInt8, kTopK and kPowerSgd. Values
// below it do not overflow when they are rounded.
inline constexpr uint32_t kNotFinite = 0x7F000000;

// Returns whether an encoder may have written `x`: a number, or that NaN.
inline bool IsNumberOrTheNan(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7FFFFFFF) < 0x7F800000 || bits == std::bit_cast<uint32_t>(kNotANumber);
}

// Adds to each gradient the part that earlier messages left out.
class FeedbackEncoder : public ChunkEncoder {
 public:
  explicit FeedbackEncoder(const WireFormat& format);

  void Encode(absl::Span<const float> gradient, absl::Span<std::byte> payload) final;
  int64_t state_bytes() const override;

 protected:
  // Adds `gradient` to `sum`, packs the sum, and subtracts from it what Decode will restore.
  // Returns false if the sum is not finite; the payload then says so, and `sum` is undefined.
  virtual bool Pack(const float* gradient, float* sum, std::byte* payload) = 0;

  const WireFormat& format() const { return format_; }

 private:
  const WireFormat format_;
  std::vector<float> residual_;
};

}  // namespace muster

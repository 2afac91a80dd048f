// Makes rows of the model from encoded images. A source needs this interface and no image library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "lib/data/order/sample_order.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The version of all code that makes pixels from the bytes of an image file. It goes up whenever
// the same file, sample and transforms give other pixels, also if an image library does that. It is
// part of fingerprints (see FactsOf()), so workers of different versions do not train together.
inline constexpr int kImageRowsVersion = 1;

// Immutable; threads may share it. A row is planar uint8 [channels, height, width].
class ImageRows {
 public:
  virtual ~ImageRows() = default;

  // Decodes `file` into `to` and changes it at random, as `sample` decides. Returns
  // INVALID_ARGUMENT for damaged bytes, without a place.
  virtual absl::Status Training(absl::Span<const std::byte> file, SampleRef sample,
                                absl::Span<uint8_t> to) const = 0;

  // Decodes `file` into `to` with the transforms of the evaluation.
  virtual absl::Status Evaluation(absl::Span<const std::byte> file,
                                  absl::Span<uint8_t> to) const = 0;

  // The value of each byte: one table for all channels, or one for each.
  virtual absl::Span<const kernels::ByteValues> values() const = 0;
};

// Makes the rows for an input f32[-1, channels, height, width].
using MakeImageRows = std::function<absl::StatusOr<std::unique_ptr<const ImageRows>>(
    const v1::ImageSpec& spec, uint64_t seed, int channels, int height, int width)>;

}  // namespace muster

// Makes rows of a model's input from image files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "lib/data/image_rows.h"
#include "lib/data/order/sample_ref.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Decodes JPEG, PNG and WebP files and applies the transforms of `data.image`. Writes planar bytes,
// uint8[channels, height, width]. Equal arguments give equal bytes. Thread-safe: each thread has
// memory of its own, which it keeps.
//
// Errors are INVALID_ARGUMENT and concern the bytes of the file. They name no field and no path.
class ImageMaker final : public ImageRows {
 public:
  // Returns the faults of CheckImageSpec(). `seed` decides the random transforms.
  static absl::StatusOr<std::unique_ptr<const ImageMaker>> Create(const v1::ImageSpec& spec,
                                                                  uint64_t seed, int channels,
                                                                  int height, int width);

  // Requires: `to` has channels * height * width bytes.
  absl::Status Training(absl::Span<const std::byte> file, SampleRef sample,
                        absl::Span<uint8_t> to) const override;
  absl::Status Evaluation(absl::Span<const std::byte> file, absl::Span<uint8_t> to) const override;

  // Returns the value of each byte, normalized by mean and std. One table for each channel.
  absl::Span<const kernels::ByteValues> values() const override { return values_; }

 private:
  ImageMaker(v1::ImageSpec spec, uint64_t seed, int channels, int height, int width);

  using Transforms = google::protobuf::RepeatedPtrField<v1::ImageTransform>;
  absl::Status Make(absl::Span<const std::byte> file, const Transforms& transforms,
                    SampleRef sample, absl::Span<uint8_t> to) const;

  const v1::ImageSpec spec_;  // with its defaults
  const uint64_t seed_;
  const int channels_;
  const int height_;
  const int width_;
  std::vector<kernels::ByteValues> values_;
};

}  // namespace muster

// An ImageRows for tests: an "image" is bytes that begin with "IMG".
#pragma once

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "lib/data/image_rows.h"

namespace muster {

// The row of a training sample repeats the byte after "IMG", plus the epoch. That of an evaluation
// repeats the byte alone.
class FakeImageRows : public ImageRows {
 public:
  static MakeImageRows Maker() {
    return [](const v1::ImageSpec&, uint64_t, int, int, int) {
      return absl::StatusOr<std::unique_ptr<const ImageRows>>(std::make_unique<FakeImageRows>());
    };
  }

  absl::Status Training(absl::Span<const std::byte> file, SampleRef sample,
                        absl::Span<uint8_t> to) const override {
    return Fill(file, sample.epoch, to);
  }
  absl::Status Evaluation(absl::Span<const std::byte> file, absl::Span<uint8_t> to) const override {
    return Fill(file, 0, to);
  }
  absl::Span<const kernels::ByteValues> values() const override { return {values_, 3}; }

 private:
  static absl::Status Fill(absl::Span<const std::byte> file, int64_t added,
                           absl::Span<uint8_t> to) {
    if (file.size() < 4 || std::to_integer<char>(file[0]) != 'I') {
      return absl::InvalidArgumentError("is no image");
    }
    std::fill(to.begin(), to.end(), std::to_integer<uint8_t>(file[3]) + added);
    return absl::OkStatus();
  }

  kernels::ByteValues values_[3] = {};
};

}  // namespace muster

// A data set with an id that a model does not know, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/data/dataset.h"
#include "lib/status/status.h"

namespace muster {

// Reads the data, but the first id of `input` in `sample` is `id`, for example a label beyond the
// classes.
class BadId : public Dataset {
 public:
  BadId(std::unique_ptr<const Dataset> data, int64_t sample, int input, int32_t id)
      : data_(std::move(data)), sample_(sample), input_(input), id_(id) {}

  int64_t samples() const override { return data_->samples(); }
  int64_t evaluation_samples() const override { return data_->evaluation_samples(); }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    RETURN_IF_ERROR(data_->Read(samples, rows));
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].sample != sample_) continue;
      std::memcpy(rows[input_].data() + i * (rows[input_].size() / samples.size()), &id_,
                  sizeof(id_));
    }
    return absl::OkStatus();
  }
  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    return data_->ReadEvaluation(first, count, rows);
  }

 private:
  const std::unique_ptr<const Dataset> data_;
  const int64_t sample_;
  const int input_;
  const int32_t id_;
};

}  // namespace muster

// Checks that the sections of a job spec share: ranges, texts, paths. They collect the faults.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "lib/status/field_fault.h"

namespace muster {

// Collects faults by field path. Every check adds a fault if the value breaks the rule. Checks that
// return bool return true if the value is good. `advice` is appended to the message. Not
// thread-safe.
class FieldChecks {
 public:
  void Add(std::string field, std::string description) {
    faults_.push_back({std::move(field), std::move(description)});
  }

  // The value must be in [min, max].
  template <typename Number>
  bool InRange(std::string field, Number value, Number min, Number max,
               absl::string_view advice = "") {
    if (value >= min && value <= max) return true;  // NaN is in no range
    // A number that the job does not give is 0.
    const std::string found = value == 0 ? "missing or 0" : absl::StrCat(value);
    Add(std::move(field), absl::StrCat("must be between ", min, " and ", max, " (is ", found, ")",
                                       advice.empty() ? "" : "; ", advice));
    return false;
  }

  bool AtLeast(std::string field, int64_t value, int64_t min, absl::string_view advice = "");
  void Finite(std::string field, double value);
  bool Positive(std::string field, double value, absl::string_view advice = "");
  bool NotNegative(std::string field, double value);

  // The value must be in [min, max], and a valid Duration, so that it can be printed as JSON.
  void Time(std::string field, const google::protobuf::Duration& value, absl::Duration min,
            absl::Duration max);

  // The value must be positive, and neither 0 nor infinite as a float: rates are floats in the
  // kernels.
  void Rate(const std::string& field, double value, absl::string_view advice = "");
  void WeightDecay(const std::string& field, double value);
  // The value must be in [0, 1).
  void Decay(std::string field, double value, absl::string_view advice);

  // `what` says what the path must name ("an ONNX file"). The fault of an empty path quotes it.
  void Path(const std::string& field, const std::string& path, absl::string_view what);
  void TensorName(std::string field, const std::string& name);

  std::vector<FieldFault> Take() && { return std::move(faults_); }

 private:
  std::vector<FieldFault> faults_;
};

}  // namespace muster

// What the checks of a job spec's sections have in common: ranges and texts, and where faults go.
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

// Collects faults by field path. Every check adds one where the value breaks it; those that return
// bool say whether it holds. `advice` is appended to the message.
class FieldChecks {
 public:
  void Add(std::string field, std::string description) {
    faults_.push_back({std::move(field), std::move(description)});
  }

  // [min, max]
  template <typename Number>
  bool InRange(std::string field, Number value, Number min, Number max,
               absl::string_view advice = "") {
    if (value >= min && value <= max) return true;  // NaN is in no range
    Add(std::move(field), absl::StrCat("must be between ", min, " and ", max, " (is ", value, ")",
                                       advice.empty() ? "" : "; ", advice));
    return false;
  }

  bool AtLeast(std::string field, int64_t value, int64_t min, absl::string_view advice = "");
  void Finite(std::string field, double value);
  bool Positive(std::string field, double value, absl::string_view advice = "");
  bool NotNegative(std::string field, double value);

  // [min, max], and such that it can be printed.
  void Time(std::string field, const google::protobuf::Duration& value, absl::Duration min,
            absl::Duration max);

  // Positive, and neither 0 nor infinite as a float: rates are floats in the kernels.
  void Rate(const std::string& field, double value, absl::string_view advice = "");
  void WeightDecay(const std::string& field, double value);
  void Decay(std::string field, double value, absl::string_view advice);  // [0, 1)

  // `what` a path is to be, in the fault of an empty one.
  void Path(const std::string& field, const std::string& path, absl::string_view what);
  void TensorName(std::string field, const std::string& name);

  std::vector<FieldFault> Take() && { return std::move(faults_); }

 private:
  std::vector<FieldFault> faults_;
};

}  // namespace muster

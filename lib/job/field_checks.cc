#include "lib/job/field_checks.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/match.h"
#include "lib/job/spec_duration.h"
#include "lib/limits/limits.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRateMin = 1e-30;  // a smaller rate may become 0 as a float
constexpr double kRateMax = 1e6;
constexpr int64_t kNanosOfSecond = 1'000'000'000;

}  // namespace

bool FieldChecks::AtLeast(std::string field, int64_t value, int64_t min, absl::string_view advice) {
  if (value >= min) return true;
  Add(std::move(field), absl::StrCat("must be at least ", min, " (is ", value, ")",
                                     advice.empty() ? "" : "; ", advice));
  return false;
}

void FieldChecks::Finite(std::string field, double value) {
  if (!std::isfinite(value)) {
    Add(std::move(field), absl::StrCat("must be a finite number (is ", value, ")"));
  }
}

bool FieldChecks::Positive(std::string field, double value, absl::string_view advice) {
  if (value > 0 && value < kInfinity) return true;
  Add(std::move(field), absl::StrCat("must be greater than 0 and finite (is ", value, ")",
                                     advice.empty() ? "" : "; ", advice));
  return false;
}

void FieldChecks::Time(std::string field, const google::protobuf::Duration& value,
                       absl::Duration min, absl::Duration max) {
  // The JSON format cannot express any other combination, even if the sum is a valid time.
  if (std::abs(int64_t{value.nanos()}) >= kNanosOfSecond ||
      (value.seconds() < 0 && value.nanos() > 0) || (value.seconds() > 0 && value.nanos() < 0)) {
    Add(std::move(field),
        absl::StrCat(
            "is not a valid Duration: nanos must be less than 1,000,000,000 with the sign of "
            "seconds (has ",
            value.seconds(), " seconds and ", value.nanos(), " nanos)"));
    return;
  }
  const absl::Duration time = SpecDuration(value);
  if (time >= min && time <= max) return;
  Add(std::move(field),
      absl::StrCat("must be between ", absl::FormatDuration(min), " and ",
                   absl::FormatDuration(max), " (is ", absl::FormatDuration(time), ")"));
}

void FieldChecks::Rate(const std::string& field, double value, absl::string_view advice) {
  if (Positive(field, value, advice)) InRange(field, value, kRateMin, kRateMax, advice);
}

void FieldChecks::WeightDecay(const std::string& field, double value) {
  if (NotNegative(field, value)) InRange(field, value, 0.0, kRateMax);
}

bool FieldChecks::NotNegative(std::string field, double value) {
  if (value >= 0 && value < kInfinity) return true;
  Add(std::move(field), absl::StrCat("must be 0 or more and finite (is ", value, ")"));
  return false;
}

void FieldChecks::Decay(std::string field, double value, absl::string_view advice) {
  if (value >= 0 && value < 1) return;
  Add(std::move(field),
      absl::StrCat("must be at least 0 and less than 1 (is ", value, "); ", advice));
}

void FieldChecks::Path(const std::string& field, const std::string& path, absl::string_view what) {
  if (path.empty()) {
    Add(field, absl::StrCat("required: ", what));
  } else if (path.size() > limits::kPathBytesMax) {
    Add(field, absl::StrCat("a path may have at most ", limits::kPathBytesMax, " bytes (has ",
                            path.size(), ")"));
  } else if (Printable(path) != path) {
    // Logs and terminals show the path.
    Add(field, absl::StrCat("a path cannot hold control characters (is ", Printable(path), ")"));
  } else if (absl::StrContains(path, "://")) {
    Add(field, absl::StrCat(path,
                            ": object stores and URLs are not read; mount the storage, or "
                            "copy the files to a path that every worker has"));
  }
}

void FieldChecks::TensorName(std::string field, const std::string& name) {
  if (name.size() > limits::kTensorNameBytesMax) {
    Add(std::move(field), absl::StrCat("a name may have at most ", limits::kTensorNameBytesMax,
                                       " bytes (has ", name.size(), ")"));
  }
}

}  // namespace muster

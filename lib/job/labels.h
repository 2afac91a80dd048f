// Labels of jobs, and the selectors that find jobs by their labels. The rules and the grammar are
// those of Kubernetes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/map.h"
#include "lib/job/field_checks.h"

namespace muster {

using LabelMap = google::protobuf::Map<std::string, std::string>;

// Adds a fault for each key and value that breaks the rules. `field` is the field's path, for
// example "labels".
void CheckLabels(const std::string& field, const LabelMap& labels, FieldChecks& faults);
// Keys follow the rules of labels. Values are free, up to limits::kAnnotationBytesMax for all
// together.
void CheckAnnotations(const std::string& field, const LabelMap& annotations, FieldChecks& faults);

// Requirements on a set of labels, joined by commas. All of them must hold:
//
//   team=vision    team==vision   the label is set to this value
//   team!=vision                  the label is not set, or has another value
//   gpu            !gpu           the label is set; it is not set
//   env in (a, b)  env notin (a)  the label has one of these values; it has none of them
//
// Immutable.
class LabelSelector {
 public:
  // Matches everything.
  LabelSelector() = default;
  static constexpr int kRequirementsMax = 32;

  // Returns INVALID_ARGUMENT (reason "INVALID_REQUEST") with the part of `text` that it cannot
  // parse, or if `text` exceeds limits::kSelectorBytesMax or kRequirementsMax.
  static absl::StatusOr<LabelSelector> Parse(absl::string_view text);

  bool Matches(const LabelMap& labels) const;

 private:
  struct Requirement {
    std::string key;
    bool wanted = true;               // false: the requirement must not hold
    std::vector<std::string> values;  // empty: any value
  };
  std::vector<Requirement> requirements_;
};

}  // namespace muster

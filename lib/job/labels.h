// Labels of jobs, and the selectors that find jobs by them: the rules and the grammar are those of
// Kubernetes, so that whoever knows one knows the other.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/map.h"
#include "lib/job/field_checks.h"

namespace muster {

using LabelMap = google::protobuf::Map<std::string, std::string>;

// Adds a fault for each key and value that breaks the rules; `field` is "labels", say.
void CheckLabels(const std::string& field, const LabelMap& labels, FieldChecks& faults);
// Keys as those of labels; values are free, up to limits::kAnnotationBytesMax all together.
void CheckAnnotations(const std::string& field, const LabelMap& annotations, FieldChecks& faults);

// What a set of labels is asked for. All requirements must hold:
//
//   team=vision    team==vision   the label is there with this value
//   team!=vision                  it is not there, or has another value
//   gpu            !gpu           it is there; it is not
//   env in (a, b)  env notin (a)  it is there with one of these; it is not
//
// joined by commas. Immutable; a copy is cheap enough.
class LabelSelector {
 public:
  // Matches everything.
  LabelSelector() = default;
  static constexpr int kRequirementsMax = 32;

  // INVALID_ARGUMENT (reason "INVALID_REQUEST") says what of `text` is not understood. At most
  // limits::kSelectorBytesMax.
  static absl::StatusOr<LabelSelector> Parse(absl::string_view text);

  bool Matches(const LabelMap& labels) const;

 private:
  struct Requirement {
    std::string key;
    bool wanted = true;               // false: it must not be so
    std::vector<std::string> values;  // empty: whatever the value is
  };
  std::vector<Requirement> requirements_;
};

}  // namespace muster

// Checks one source of a data section: of a job, or of a part of a mixture.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Checks the source that is set in `data`. `field` is the path of `data` in the job spec. Requires:
// a source other than a mixture.
void CheckSource(const v1::DataSpec& data, absl::string_view field, FieldChecks& faults);

// Returns whether the source decodes images, so that it needs `image`.
bool DecodesImages(const v1::DataSpec& data);

// Checks what is independent of the model: numbers of values, and their ranges.
void CheckImage(const v1::ImageSpec& image, const std::string& field, FieldChecks& faults);

}  // namespace muster

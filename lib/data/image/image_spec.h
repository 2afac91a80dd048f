// The rules of `data.image`, without image libraries.
#pragma once

#include "absl/status/status.h"
#include "lib/data/image/decode/image.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns INVALID_SPEC with every field that is wrong for a model that reads images of this shape:
// "data.image.train[2].resize.size: ...".
absl::Status CheckImageSpec(const v1::ImageSpec& spec, int channels, int height, int width);

// Returns the spec with each default filled in: optional fields, height and width instead of `size`
// (except for a resize), interpolations, mean and std.
// Requires: CheckImageSpec() returns OK.
v1::ImageSpec WithImageDefaults(v1::ImageSpec spec, int channels);

}  // namespace muster

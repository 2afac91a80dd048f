// The rules of `data.image`, without image libraries.
#pragma once

#include "absl/status/status.h"
#include "lib/data/image/decode/image.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns INVALID_SPEC with every field that is wrong for a model that reads images of this shape:
// "data.image.train[2].resize.size: ...".
absl::Status CheckImageSpec(const v1::ImageSpec& spec, int channels, int height, int width);

// Whether a data set has samples that are held out for evaluation.
enum class HeldOut { kNone, kSome };

// Checks that every image gets the model's size, for training and for the held-out samples. Returns
// INVALID_SPEC with each list that lacks a transform that sets the size. No transforms at all are
// valid: then the files must have the model's size.
// Requires: CheckImageSpec() returns OK.
absl::Status CheckImageSizes(const v1::ImageSpec& spec, HeldOut held_out, int height, int width);

// Returns the spec with each default filled in: optional fields, height and width instead of `size`
// (except for a resize), interpolations, mean and std.
// Requires: CheckImageSpec() returns OK.
v1::ImageSpec WithImageDefaults(v1::ImageSpec spec, int channels);

}  // namespace muster

// A small job whose every value is known, for tests of checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Job "known-1" with parameters of the given shapes ("p0", "p1", ...), trained by adam, or by plain
// sgd where `slots` is false, in chunks of 1 KiB.
v1::JobPlan KnownPlan(const std::vector<std::vector<int64_t>>& shapes, bool slots = true);

// Three parameters, one of them a scalar, one of several chunks.
v1::JobPlan KnownPlan();

// Element `element` of a parameter's slot in the checkpoint called `edition`.
float KnownValue(int edition, int slot, int parameter, int64_t element);

// Writes every slice of the plan with `threads` threads, cut and ordered at random by `seed`, some
// of them twice.
absl::Status WriteKnownSlices(CheckpointWriter& writer, const v1::JobPlan& plan, int edition,
                              int threads = 1, uint32_t seed = 1);

// Creates, writes and commits.
absl::StatusOr<v1::Checkpoint> WriteKnownCheckpoint(const std::string& directory,
                                                    const v1::JobPlan& plan, int64_t step,
                                                    int edition);

// The edition that the checkpoint at `path` holds, all of it, hashes included. DATA_LOSS when it is
// a mixture.
absl::StatusOr<int> ReadKnownCheckpoint(const std::string& path, const v1::JobPlan& plan);

// A fresh, empty folder for the running test.
std::string TestFolder();

// Whole content; writing replaces it.
std::string ReadWhole(const std::string& path);
void WriteWhole(const std::string& path, absl::string_view content);

}  // namespace muster

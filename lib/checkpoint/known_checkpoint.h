// A small job with known values, for tests of checkpoints.
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

// Returns the plan of job "known-1" with parameters "p0", "p1", ... of the given shapes, in chunks
// of 1 KiB. The optimizer is adam, or plain sgd if `slots` is false.
v1::JobPlan KnownPlan(const std::vector<std::vector<int64_t>>& shapes, bool slots = true);

// Returns a plan with three parameters: one has several chunks, one is a scalar.
v1::JobPlan KnownPlan();

// Returns element `element` of a parameter's slot in the checkpoint with number `edition`.
float KnownValue(int edition, int slot, int parameter, int64_t element);

// Writes every slice of the plan with `threads` threads. Cuts and order are random by `seed`, and
// some slices are written twice.
absl::Status WriteKnownSlices(CheckpointWriter& writer, const v1::JobPlan& plan, int edition,
                              int threads = 1, uint32_t seed = 1);

// Creates, writes and commits a checkpoint.
absl::StatusOr<v1::Checkpoint> WriteKnownCheckpoint(const std::string& directory,
                                                    const v1::JobPlan& plan, int64_t step,
                                                    int edition);

// Reads the whole checkpoint at `path`, verifies its hashes, and returns its edition. Returns
// DATA_LOSS if it is a mixture.
absl::StatusOr<int> ReadKnownCheckpoint(const std::string& path, const v1::JobPlan& plan);

// Creates an empty folder for the running test.
std::string TestFolder();

// Read or replace the whole content of a file.
std::string ReadWhole(const std::string& path);
void WriteWhole(const std::string& path, absl::string_view content);

}  // namespace muster

// Reads every sample of a data set once, to find damaged ones before a job does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::cli {

struct Verification {
  int64_t samples = 0;             // that were read for training
  int64_t evaluation_samples = 0;  // that were read as held-out ones
  int64_t damaged = 0;
  // The errors of the first damaged samples, in the order of samples.
  std::vector<std::string> faults = {};
};

struct VerifyOptions {
  int threads = 1;
  int64_t faults_max = 20;  // errors to keep; further ones are counted
};

// Blocks until all samples are read. `graph` is the one that opened `dataset`. Returns the error if
// the storage fails, because damage cannot be told from it.
absl::StatusOr<Verification> Verify(const Dataset& dataset, const v1::Graph& graph,
                                    const VerifyOptions& options);

}  // namespace muster::cli

// Replaces damaged training records by others.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// The training samples that replace a damaged one, in the order in which they are tried.
inline constexpr int kSubstitutesMax = 16;

// Returns number `attempt` of them: another sample of the same epoch, from `samples` samples that
// begin with `first`. Pure, so every worker and every retry replaces a sample by the same one.
// Requires: samples >= 2, and `damaged` is one of them.
SampleRef SubstituteFor(SampleRef damaged, int attempt, uint64_t seed, int64_t first,
                        int64_t samples);

// Returns a data set that reads a training sample as SubstituteFor() says if its own record has
// DATA_DAMAGED: the first one that is not damaged too. In a mixture it is from the same part. Other
// errors stay, and held-out records are never replaced.
//
// Replaces up to `damaged_max` samples in each epoch; reading one again does not count again. Then
// Read() returns DATA_DAMAGED, and the message says how many samples were replaced. The first
// replacements are logged. Read() costs more only if a sample is damaged.
std::unique_ptr<const Dataset> SubstituteDamaged(std::unique_ptr<const Dataset> dataset,
                                                 const v1::Graph& graph, uint64_t seed,
                                                 int64_t damaged_max);

}  // namespace muster

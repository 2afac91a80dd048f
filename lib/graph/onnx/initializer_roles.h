// Decides which of an ONNX file's floating initialisers are trained. The format does not say it: a
// buffer (a causal mask, the mean that normalises inputs) looks like a weight.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/graph/onnx/onnx_file.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

enum class InitializerRole {
  kTrained,
  kStatistic,  // a running mean or variance of a batch norm
  kConstant,
};

struct InitializerDecision {
  std::string name;
  std::vector<int64_t> shape;
  InitializerRole role;
  std::string reason;     // "weight of Conv 'conv1'"
  bool doubtful = false;  // the decision is a guess
};

// Returns a decision for each initialiser, in the file's order. The first rule that applies
// decides:
// 1. Running statistics stay statistics, whatever the patterns say.
// 2. The patterns of `model` (freeze, train).
// 3. Infinities are constants.
// 4. Uses, if they are clear: weights, biases after products, norms, tables.
// 5. The name, as PyTorch's modules name things, if the use does not decide.
//
// A scalar is a constant unless a pattern names it. Returns INVALID_ARGUMENT for patterns that
// match nothing and for values that cannot be read.
absl::StatusOr<std::vector<InitializerDecision>> DecideRoles(const v1::OnnxModel& model,
                                                             OnnxFile& file);

}  // namespace muster

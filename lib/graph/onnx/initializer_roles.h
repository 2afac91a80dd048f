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

// Returns a decision for each floating initialiser, in the file's order. The first rule that
// applies decides:
// 1. Running statistics stay statistics, whatever the patterns say.
// 2. The patterns of `model` (freeze, train).
// 3. Initialisers that meet no data, scalars, and tensors with infinities are constants.
// 4. An initialiser in the place of a weight (products, biases after them, norms, tables) is
//    trained, unless its name or values say otherwise.
// 5. The name decides, as PyTorch's modules name things.
// 6. A guess: the initialiser is trained if weights come before its use.
//
// Returns INVALID_ARGUMENT if a pattern matches nothing or values cannot be read.
absl::StatusOr<std::vector<InitializerDecision>> DecideRoles(const v1::OnnxModel& model,
                                                             OnnxFile& file);

}  // namespace muster

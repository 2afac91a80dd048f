// Which of an ONNX file's floating initialisers are trained. The format does not say: a buffer (a
// causal mask, the mean that inputs are normalised with) looks as a weight does.
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
  bool doubtful = false;  // nothing but a guess speaks for it
};

// By initialiser, in the file's order. Running statistics are that whatever patterns say; then come
// patterns of `model` (freeze, train); then infinities, which nothing trains; uses (weights, biases
// behind products, norms, tables say what they are); and for what meets the data in another way its
// name, as PyTorch's modules call things. A scalar is a constant unless a pattern names it.
// INVALID_ARGUMENT for patterns that match nothing and for values that cannot be read.
absl::StatusOr<std::vector<InitializerDecision>> DecideRoles(const v1::OnnxModel& model,
                                                             OnnxFile& file);

}  // namespace muster

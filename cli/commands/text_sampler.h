// Text from a trained language model.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lib/checkpoint/checkpoint_reader.h"

namespace muster::cli {

struct TextSampling {
  int characters = 256;
  double temperature = 0.8;
  uint64_t seed = 1;  // the same seed gives the same text
  std::string prompt = "\n";
};

// True for checkpoints of jobs that learn text.
bool HasText(const CheckpointReader& checkpoint);

// Characters that the checkpoint's model writes after the prompt, byte by byte; what cannot be
// printed becomes '?'. INVALID_ARGUMENT when the model is not a language model of bytes.
absl::StatusOr<std::string> SampleText(const CheckpointReader& checkpoint,
                                       const TextSampling& sampling);

}  // namespace muster::cli

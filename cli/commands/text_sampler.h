// Samples text from a trained language model.
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

// Returns whether the checkpoint is from a job that learns text.
bool HasText(const CheckpointReader& checkpoint);

// Returns the characters that the checkpoint's model writes after the prompt, byte by byte.
// Characters that cannot be printed become '?'. Returns INVALID_ARGUMENT if the prompt is empty or
// the model does not map tokens to logits.
absl::StatusOr<std::string> SampleText(const CheckpointReader& checkpoint,
                                       const TextSampling& sampling);

}  // namespace muster::cli

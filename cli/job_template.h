// Complete job files for new users, with a comment on every line that they are likely to change.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::cli {

// Returns the models that have a template: all models of the zoo.
std::vector<std::string> TemplateModels();

// Returns a job file for a model of the zoo. It can be submitted unchanged if the data that it
// names exists. `file` is the name of the file in its comments. Returns INVALID_ARGUMENT, with the
// known models, if there is no such model.
absl::StatusOr<std::string> JobTemplate(const std::string& model, const std::string& file);

// Returns a job file that trains the ONNX file at `path` on random samples. Its comments show how
// to use .npy files instead. The outputs of the model decide the loss. Returns the errors of
// ReadOnnxSignature(), or INVALID_ARGUMENT if no output fits a loss.
absl::StatusOr<std::string> OnnxJobTemplate(const std::string& path, const std::string& file);

}  // namespace muster::cli

// Job files to begin with: complete, and with a word on every line that one is likely to change.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::cli {

// The models that there are templates for: those of the zoo.
std::vector<std::string> TemplateModels();

// A job file for one of them. It can be submitted as it is where the data that it names is there.
// `file` is what its comments call it. INVALID_ARGUMENT for another model lists them.
absl::StatusOr<std::string> JobTemplate(const std::string& model, const std::string& file);

// A job file that trains the ONNX file at `path` on random samples as it is. Comments hold the .npy
// files to replace them with. The loss is chosen by the outputs of the file. The errors of
// ReadOnnxSignature(), and INVALID_ARGUMENT if no output fits a loss.
absl::StatusOr<std::string> OnnxJobTemplate(const std::string& path, const std::string& file);

}  // namespace muster::cli

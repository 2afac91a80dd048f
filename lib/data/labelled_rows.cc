#include "lib/data/labelled_rows.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"

namespace muster {

LabelledRows::LabelledRows(const v1::Graph& graph) : uses_(UsesOfInputs(graph)) {
  for (int i = 0; i < graph.inputs_size(); ++i) {
    if (graph.inputs(i).name() == "input") input_ = i;
    if (graph.inputs(i).name() == "target") target_ = i;
  }
  CHECK_NE(input_, target_);
}

absl::Status LabelledRows::Check(const v1::Graph& graph, absl::string_view field) {
  for (const char* name : {"input", "target"}) {
    if (FindInput(graph, name) == nullptr) {
      return DataInvalid(field, absl::StrCat("fills input and target, and the model's ", name,
                                             " is missing; use data.npy or data.synthetic"));
    }
  }
  for (const v1::GraphInput& input : graph.inputs()) {
    if (input.name() == "input" || input.name() == "target") continue;
    return DataInvalid(field, absl::StrCat("fills input and target, and the model also reads '",
                                           input.name(), "'; use data.npy or data.synthetic"));
  }
  return absl::OkStatus();
}

void LabelledRows::CheckSizes(Dataset::Rows memory, size_t rows, size_t input_bytes,
                              size_t target_bytes) const {
  CHECK_EQ(memory.size(), uses_.size());
  CHECK(input(memory).empty() || input(memory).size() == rows * input_bytes)
      << input(memory).size() << " bytes for " << rows << " rows of " << input_bytes;
  CHECK(target(memory).empty() || target(memory).size() == rows * target_bytes)
      << target(memory).size() << " bytes for " << rows << " rows of " << target_bytes;
}

}  // namespace muster

// Separates initialisers that only look shared.
//
// Exporters write equal tensors once, in two different cases. A model may use one tensor in two
// places (a head that shares the embedding's weight): it must train as one. Or two tensors are
// equal because nothing has trained them yet (fresh biases are zero, layers were copied): they must
// train separately.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/graph/onnx/onnx_file.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct Sharing {
  std::vector<std::string> notes;   // what was separated and what stays one, for `model describe`
  std::vector<std::string> doubts;  // weights that may or may not be one: 'NAME' (WHERE)
};

// Gives each initialiser that only looks shared a copy per use, in the file's graph.
//
// - Biases, gains of norms and statistics stay one tensor in uses that belong to the same weights.
//   These are biases of products with the same weight, or norms with the same nearest weights
//   before or after them.
// - Any other tensor with different elements stays one tensor in all uses. If all its elements are
//   equal, it stays one in uses that belong to the same weights.
// - A weight without a module's name that is a table transposed is joined with that table.
//
// A copy gets the name that the exporter's Identity node gives it, else NAME.2, NAME.3. `model.tie`
// keeps initialisers together and joins equal ones. `model.untie` separates every use. Returns
// INVALID_ARGUMENT for values that cannot be read.
absl::StatusOr<Sharing> SeparateInitializers(const v1::OnnxModel& model, OnnxFile& file);

}  // namespace muster

// Exporters write equal tensors once, whether the model has one tensor in two places (a head that
// shares the embedding's weight) or two that are equal because nothing has trained them yet (fresh
// biases are zero, layers were copied from one another). The first must train as one, the others
// apart.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/graph/onnx/onnx_file.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct Sharing {
  std::vector<std::string> notes;   // what was separated, what stays one: for `model describe`
  std::vector<std::string> doubts;  // weights that may or may not be one: 'NAME' (WHERE)
};

// Gives each initialiser that only looks shared a copy per use, in the file's graph:
//
//   Biases, gains of norms and statistics are one tensor in those uses that belong to the same
//   weights: biases of products with the same weight, norms with the same nearest weights before or
//   behind them. Of the others, what differs from element to element is taken for one tensor in all
//   its uses, and what has one value everywhere for one where its uses belong to the same weights.
//
//   A weight without a module's name that is a table transposed is that table.
//
// A copy is named as the exporter's Identity node calls it, else NAME.2, NAME.3. `model.tie` keeps
// initialisers together, joins those of them that are equal, and `model.untie` separates every use.
// INVALID_ARGUMENT for values that cannot be read.
absl::StatusOr<Sharing> SeparateInitializers(const v1::OnnxModel& model, OnnxFile& file);

}  // namespace muster

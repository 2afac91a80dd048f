// The ops, by family. Private to the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/tensor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::reference {

// A node about to be evaluated.
struct Call {
  const v1::Graph& graph;
  const v1::Node& node;
  const RunArguments& run;
  int64_t samples;  // samples of this run
  std::vector<const Tensor*> inputs;

  const Tensor& operator[](int64_t i) const { return *inputs[i]; }
  bool has(int64_t i) const { return i < static_cast<int64_t>(inputs.size()); }
  bool has(absl::string_view attribute) const;

  // Attributes: return the value, or `otherwise` if there is none.
  int64_t Integer(absl::string_view name, int64_t otherwise) const;
  double Number(absl::string_view name, double otherwise) const;
  std::string Word(absl::string_view name, absl::string_view otherwise) const;
  std::vector<int64_t> Integers(absl::string_view name, std::vector<int64_t> otherwise) const;
  std::vector<double> Numbers(absl::string_view name) const;

  // The size of the global batch, in units of this run's samples.
  double Shares() const {
    return run.batch == 0 ? 1.0 : static_cast<double>(run.batch) / static_cast<double>(samples);
  }
};

using Operator = std::vector<Tensor> (*)(const Call& call);
using Operators = absl::flat_hash_map<std::string, Operator>;

// An op of the ranks of a split graph. Takes the node of each rank, and returns each rank's
// outputs.
using CollectiveOperator = std::vector<std::vector<Tensor>> (*)(absl::Span<const Call> ranks);
using CollectiveOperators = absl::flat_hash_map<std::string, CollectiveOperator>;

// The value of a `state` output in the reference: a tensor without elements.
inline Tensor State() { return {.shape = {0}}; }

void AddMatrixProducts(Operators& operators);
void AddImageOperators(Operators& operators);
void AddNorms(Operators& operators);
void AddElementwise(Operators& operators);
void AddReductions(Operators& operators);
void AddShapeOperators(Operators& operators);
void AddAttention(Operators& operators);
void AddRecurrences(Operators& operators);
void AddLosses(Operators& operators);
void AddSplitLosses(CollectiveOperators& operators);
void AddCollectives(CollectiveOperators& operators);

}  // namespace muster::reference

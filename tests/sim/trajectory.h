// The values of a job's parameters at every version, independent of faults.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Remembers the hashes of the values of a run without faults. Every other run of the job must have
// the same values to the bit. Then no push is lost, counted twice or counted for another step
// (invariants I1, I2 and I4 of the design), and no checkpoint mixes versions (I5).
class Trajectory {
 public:
  // Stops recording; later calls of Has() only compare.
  void Close() { closed_ = true; }
  bool closed() const { return closed_; }

  // Returns whether `values` are right for `chunk` at `version`. The parameter and the first
  // element identify a chunk.
  bool Has(const v1::PlanChunk& chunk, int64_t version, absl::Span<const float> values);

  // Returns the gradient of a chunk in `step` for the rank's samples of the batch. Without logical
  // workers all values are whole numbers, so sums are exact in any order and for any split of the
  // batch. With logical workers they are fractions, and the rank adds them along the job's sum
  // tree. So the job repeats to the bit only if its shards add along the tree too.
  static std::vector<float> GradientOf(const v1::JobPlan& plan, int chunk, int64_t step, int rank);

 private:
  std::map<std::tuple<int, int64_t, int64_t>, uint64_t> hashes_;  // by parameter, element, version
  bool closed_ = false;
};

}  // namespace muster

// What a job's parameters are at every version, whoever dies on the way.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "absl/types/span.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The values of the undisturbed run, remembered by their hashes; those of any other run of the job
// must be the same to the bit. So no push that counts is lost, none counts twice, none counts that
// belongs to another step (invariants I1, I2 and I4 of the design), and no checkpoint mixes
// versions (I5).
class Trajectory {
 public:
  // From now on nothing new is learnt.
  void Close() { closed_ = true; }
  bool closed() const { return closed_; }

  // Whether a chunk, told by its parameter and its first element, may have these values at
  // `version`.
  bool Has(const v1::PlanChunk& chunk, int64_t version, absl::Span<const float> values);

  // The gradient of `step` of some samples of the batch: whole numbers, so that sums are exact in
  // whatever order and however the batch is shared.
  static void AddGradient(const v1::PlanChunk& chunk, int64_t step, const v1::PlanWorker& worker,
                          absl::Span<float> gradient);

 private:
  std::map<std::tuple<int, int64_t, int64_t>, uint64_t> hashes_;  // by parameter, element, version
  bool closed_ = false;
};

}  // namespace muster

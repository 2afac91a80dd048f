// Judged steps: the norm of the whole gradient, which is spread over many shards, decides about a
// step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/agreement/trust_ratio.h"
#include "lib/shard/chunks/gradient_squares.h"
#include "lib/shard/chunks/shard_assembly.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The shard that takes part. Called from inside the methods of its StepAgreement.
class JudgedShard {
 public:
  virtual ~JudgedShard() = default;
  // Called for every step before it is applied, with the same arguments on every shard.
  virtual void StepJudged(int64_t step, bool skipped, int64_t skips_in_row) = 0;
  // Only with trust ratios. Writes the squares of values and direction (kernels::MeasureDirection)
  // of every chunk with gradients, in ascending order. judgement() is set.
  virtual void MeasureDirections(absl::Span<double> squares) = 0;
  // Called when the step is agreed on or a report was sent: the shard may be able to sum or apply
  // more.
  virtual void GoOn() = 0;
};

// One shard's part of the decision about a step. The shard sums its chunks before it applies them:
//
//   1. When all of its chunks are summed, it sends their sums of squares to shard 0 (SQUARES).
//      Shard 0 adds the sums of all shards chunk by chunk and sends the total to all (VERDICT).
//   2. All shards draw the same conclusion. A step with a non-finite total is skipped. Otherwise
//      the gradient is clipped to the global norm.
//   3. With lamb and lars, unless the step is skipped, every shard then sends the norms of its
//      chunks (NORMS) and receives the trust ratio of every parameter (TRUST).
//
// Handles one step at a time, beginning with plan.first_step. A shard without gradients takes no
// part, except that shard 0 still decides for the others.
//   Sources: clipping by the global norm: R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of
//   training recurrent neural networks", ICML 2013; skipping: see LossScale; trust ratios: see
//   TrustRatios.
// Thread-compatible. Nothing is allocated after construction.
class StepAgreement {
 public:
  struct Judgement {
    bool skip = false;
    double factor = 1;     // multiplies the gradient
    bool complete = true;  // no trust ratio is missing
  };

  // Creates the part of shard `shard` of the plan. `judged` must outlive the agreement.
  StepAgreement(const v1::JobPlan& plan, ShardIndex shard, ShardAssembly::Send send,
                JudgedShard* judged);

  // ---- the step

  // Returns whether the next chunk may be summed: the reports about the last step were sent.
  bool takes_sums() const;
  // Records that a chunk is summed. `squares` is its part of the squared norm.
  void ChunkSummed(TrainedChunk chunk, double squares);
  double squares(TrainedChunk chunk) const { return squares_.report[ToInt(chunk)]; }
  // The judgement of the step; nullopt before the verdict.
  const std::optional<Judgement>& judgement() const { return judgement_; }
  // Returns whether the step may be applied or skipped.
  bool agreed() const { return judgement_ && judgement_->complete; }
  bool has_trust() const { return norms_ != nullptr; }
  // Requires: the step is agreed on and not skipped.
  double trust_ratio(int parameter) const { return trust_[parameter]; }
  // Begins step `step`. Called when all chunks have the step before.
  void BeginStep(int64_t step);

  // ---- messages of other shards: SQUARES and NORMS to shard 0, VERDICT and TRUST from it

  // Place() returns the place of a payload, or an empty span if it is not wanted. Each place is
  // followed by Arrived() or Lost().
  absl::Span<std::byte> Place(const WireHeader& header);
  void Arrived(const WireHeader& header);
  void Lost(const WireHeader& header);
  // Returns kWrongStep if the verdict is not awaited.
  RefusalReason VerdictArrived(const WireHeader& header);
  // Gives up all messages under way from `shard`.
  void ShardLost(ShardIndex shard);

  // True if no message is being received or sent.
  bool idle() const;

 private:
  // The reports with numbers for each chunk, and the decision that follows from all of them.
  struct Round {
    Round(const v1::JobPlan& plan, ShardIndex shard, int sums_per_chunk);

    std::vector<double> report;
    std::unique_ptr<GradientSquares> all;  // only at shard 0
    std::unique_ptr<ShardAssembly> assembly;
  };

  Round* RoundOf(MessageKind kind) {
    return kind == MessageKind::kSquares ? &squares_ : norms_.get();
  }
  void SquaresArrived(ShardIndex shard);
  void Judge(double sum_of_squares);
  void NormsArrived(ShardIndex shard);
  void TellTrust();
  absl::Span<std::byte> PlaceTrust(const WireHeader& header);
  void CompleteJudgement();

  const ShardIndex shard_;
  const std::optional<double> global_norm_;  // the norm to clip to
  JudgedShard* const judged_;
  int64_t step_;
  int chunks_summed_ = 0;
  std::optional<Judgement> judgement_;
  int64_t skips_in_row_ = 0;
  Round squares_;

  // Only with lamb and lars.
  std::unique_ptr<Round> norms_;
  std::vector<double> trust_;            // [parameter], sent by shard 0
  std::unique_ptr<TrustRatios> ratios_;  // only at shard 0
  bool trust_due_ = false;               // sent when the last message has left `trust_`
};

}  // namespace muster

// Judged steps: what becomes of a step is decided by the norm of its whole gradient, which lies on
// many shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/gradient_squares.h"
#include "lib/shard/chunks/shard_assembly.h"
#include "lib/shard/core/trust_ratio.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The shard whose steps are judged. Called from inside the methods of its StepAgreement.
class JudgedShard {
 public:
  virtual ~JudgedShard() = default;
  // Of every step, before it goes on; the same on every shard.
  virtual void StepJudged(int64_t step, bool skipped, int64_t skips_in_row) = 0;
  // With trust ratios: writes the squares of values and direction (kernels::MeasureDirection) of
  // every chunk with gradients, in ascending order. The judgement is there.
  virtual void MeasureDirections(absl::Span<double> squares) = 0;
  // The step is agreed on, or a report is gone: there may be something to sum or to apply.
  virtual void GoOn() = 0;
};

// A shard's part in a step whose chunks it sums before they are applied:
//
//   1. When it has summed all of its chunks it sends their sums of squares to shard 0 (SQUARES),
//      which adds those of all shards up chunk by chunk and tells the total (VERDICT).
//   2. All draw the same conclusion from it: a step that is not finite is skipped, of another the
//      gradient is clipped to the global norm.
//   3. With lamb and lars every shard then sends the norms of its chunks (NORMS) and gets the trust
//      ratio of every parameter (TRUST).
//
// One step at a time, beginning with plan.first_step. Without gradients a shard has no part in it,
// but shard 0 does its own for the others.
//   Sources: of clipping by the global norm, R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty
//   of training recurrent neural networks", ICML 2013; of skipping, see LossScale; of trust ratios,
//   see TrustRatios.
// Thread-compatible; after construction nothing is allocated.
class StepAgreement {
 public:
  struct Judgement {
    bool skip = false;
    double factor = 1;     // on the gradient
    bool complete = true;  // no trust ratio is missing
  };

  // Of shard `shard` of the plan. `judged` outlives the agreement.
  StepAgreement(const v1::JobPlan& plan, ShardIndex shard, ShardAssembly::Send send,
                JudgedShard* judged);

  // ---- the step

  // Whether the next chunk may be summed: reports about the step before are gone.
  bool takes_sums() const;
  // A chunk is summed: its part of the squared norm.
  void ChunkSummed(TrainedChunk chunk, double squares);
  double squares(TrainedChunk chunk) const { return squares_.report[ToInt(chunk)]; }
  // Of the step, once there is one.
  const std::optional<Judgement>& judgement() const { return judgement_; }
  // The step may be applied, or skipped.
  bool agreed() const { return judgement_ && judgement_->complete; }
  bool has_trust() const { return norms_ != nullptr; }
  // Of a step that is agreed on and not skipped.
  double trust_ratio(int parameter) const { return trust_[parameter]; }
  // All chunks have the step: on with this one.
  void BeginStep(int64_t step);

  // ---- messages of other shards: SQUARES and NORMS to shard 0, VERDICT and TRUST from it

  // Where a payload is to be placed, empty where it is not wanted; then that it is there, or will
  // not come.
  absl::Span<std::byte> Place(const WireHeader& header);
  void Arrived(const WireHeader& header);
  void Lost(const WireHeader& header);
  // kWrongStep: not awaited.
  RefusalReason VerdictArrived(const WireHeader& header);
  // What is under way from `shard` will not arrive.
  void ShardLost(ShardIndex shard);

  // No message is being received and none sent.
  bool idle() const;

 private:
  // Reports of numbers for each chunk, and the decision that follows from all.
  struct Round {
    Round(const v1::JobPlan& plan, ShardIndex shard, int sums_per_chunk);

    std::vector<double> report;
    std::unique_ptr<GradientSquares> all;  // of shard 0
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
  const std::optional<double> global_norm_;  // clipped to
  JudgedShard* const judged_;
  int64_t step_;
  int chunks_summed_ = 0;
  std::optional<Judgement> judgement_;
  int64_t skips_in_row_ = 0;
  Round squares_;

  // With lamb and lars.
  std::unique_ptr<Round> norms_;
  std::vector<double> trust_;            // [parameter], told by shard 0
  std::unique_ptr<TrustRatios> ratios_;  // of shard 0
  bool trust_due_ = false;               // told when the last one is out of `trust_`
};

}  // namespace muster

// The exchange for local_sgd: a worker trains on its own for a round, then all workers take the
// mean.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/ps_exchange.h"
#include "lib/plan/parameter_group.h"
#include "lib/shard/gate/round_schedule.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Every step updates the worker's own values and optimizer slots. This happens chunk by chunk, on
// the thread that pushes the gradient, as soon as it is final. A round has `sync.every` steps; the
// last one may be shorter. The last step of a round multiplies values and slots by the worker's
// share of the batch and lets the shards sum them. The result is the mean over all samples.
//   Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019; averaging the
//   slots too: Yu, Jin, Yang, "On the linear speedup of communication efficient momentum SGD for
//   distributed non-convex optimization", ICML 2019.
//
// A local update uses a batch of only the worker's own samples. The gradient is a share of the
// whole batch's mean, so it is divided by the share.
class LocalSgdExchange : public GradientExchange {
 public:
  struct Options {
    PsExchange::Options exchange;              // without gradients; the memory is for both
    std::vector<absl::Span<float>> gradients;  // by parameter; must outlive the exchange
  };
  // Returns the errors of PsExchange::Create().
  static absl::StatusOr<std::unique_ptr<LocalSgdExchange>> Create(Options options);

  absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) override;
  bool HasParameter(int parameter, int64_t version) const override;
  absl::Status AwaitParameter(int parameter, int64_t version) override;
  absl::Status AwaitVersion(int64_t version) override;
  absl::StatusOr<float> AwaitLossScale(int64_t version) override;
  absl::Status AwaitAnswers() override { return averaging_->AwaitAnswers(); }
  absl::Status Push(ChunkId chunk, int64_t step) override;
  // Within a round, counts the worker's own updates.
  int64_t version() const override;
  double GradientNorm(int64_t version) const override;
  double GradientSquares(ChunkId chunk, int64_t version) const override {
    return chunks_[chunk].squares[version & 1];
  }
  void Interrupt() override { averaging_->Interrupt(); }
  void Fail(absl::Status why) override { averaging_->Fail(std::move(why)); }
  bool failed() const override { return averaging_->failed(); }
  int64_t step() const override { return averaging_->step(); }
  std::string culprit() const override { return averaging_->culprit(); }

 private:
  struct Chunk {
    std::vector<ChunkId> slots;          // the plan's chunks of the same elements, one per slot
    std::array<double, 2> squares = {};  // of the gradient that led to versions 2n and 2n + 1
  };

  LocalSgdExchange(Options options, std::unique_ptr<PsExchange> averaging);

  bool IsAveraged(int64_t version) const;
  void Update(ChunkId chunk, int64_t step);
  double ApplyOptimizer(ChunkId chunk, int64_t step, absl::Span<const float> gradient) const;
  absl::Status Average(ChunkId chunk);
  absl::Span<float> TensorOf(ChunkId chunk) const;

  const Options options_;
  const v1::JobPlan& plan_;
  const double share_;  // of the batch
  const kernels::OptimizerSettings settings_;
  std::vector<ParameterTreatment> treatments_;  // by parameter
  RoundSchedule rounds_;                        // its total_steps come with Connect()
  NumberedVector<ChunkId, Chunk> chunks_;       // of values
  std::vector<int> chunks_of_parameter_;        // number of chunks of values
  int64_t trained_chunks_ = 0;
  // Counted since the start, inside PsExchange::Change(), so that waiting threads notice.
  std::vector<std::atomic<int64_t>> parameter_updates_;  // updated chunks of each parameter
  std::atomic<int64_t> updates_ = 0;                     // updated chunks of all parameters
  const std::unique_ptr<PsExchange> averaging_;
};

}  // namespace muster

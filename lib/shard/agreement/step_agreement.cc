#include "lib/shard/agreement/step_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/plan/parameter_table.h"

namespace muster {
namespace {

absl::Span<const std::byte> BytesOf(const std::vector<double>& message) {
  return {reinterpret_cast<const std::byte*>(message.data()), message.size() * sizeof(double)};
}

std::optional<double> GlobalNormOf(const v1::JobPlan& plan) {
  const v1::Clip& clip = plan.spec().training().clip();
  return clip.has_global_norm() ? std::optional<double>(clip.global_norm()) : std::nullopt;
}

}  // namespace

StepAgreement::Round::Round(const v1::JobPlan& plan, ShardIndex shard, int sums_per_chunk)
    : report(sums_per_chunk * GradientSquares::ChunksWithGradients(plan, shard).size()) {
  if (shard == kFirstShard) all = std::make_unique<GradientSquares>(plan, sums_per_chunk);
}

StepAgreement::StepAgreement(const v1::JobPlan& plan, ShardIndex shard, ShardAssembly::Send send,
                             JudgedShard* judged)
    : shard_(shard),
      global_norm_(GlobalNormOf(plan)),
      judged_(judged),
      squares_(plan, shard, /*sums_per_chunk=*/1) {
  // A shard without gradients takes no part in any step.
  step_ = squares_.report.empty() ? std::numeric_limits<int64_t>::max() : plan.first_step();
  ShardAssembly::Options verdicts{
      .report = MessageKind::kSquares,
      .decision = MessageKind::kVerdict,
      .send = send,
      .arrived = [this](ShardIndex from, int64_t) { SquaresArrived(from); },
      .reported = [this] { judged_->GoOn(); }};
  if (shard == kFirstShard) {
    verdicts.places = squares_.all->places();
    squares_.all->Await(plan.first_step());
  }
  squares_.assembly = std::make_unique<ShardAssembly>(plan, shard, std::move(verdicts));

  if (!HasTrustRatios(plan.spec().training().optimizer())) return;
  norms_ = std::make_unique<Round>(plan, shard, /*sums_per_chunk=*/2);
  trust_.resize(plan.graph().parameters_size());
  ShardAssembly::Options trusts{.report = MessageKind::kNorms,
                                .decision = MessageKind::kTrust,
                                .send = std::move(send),
                                .arrived = [this](ShardIndex from, int64_t) { NormsArrived(from); },
                                .reported = [this] { judged_->GoOn(); },
                                .told = [this] { TellTrust(); }};
  if (shard == kFirstShard) {
    trusts.places = norms_->all->places();
    ratios_ = std::make_unique<TrustRatios>(plan);
  }
  norms_->assembly = std::make_unique<ShardAssembly>(plan, shard, std::move(trusts));
}

// ---------------------------------------------------------------- the step

bool StepAgreement::takes_sums() const {
  return !squares_.assembly->reporting() && (norms_ == nullptr || !norms_->assembly->reporting());
}

void StepAgreement::ChunkSummed(TrainedChunk chunk, double squares) {
  squares_.report[ToInt(chunk)] = squares;
  if (++chunks_summed_ < static_cast<int>(squares_.report.size())) return;
  squares_.assembly->Report(step_, BytesOf(squares_.report));
}

void StepAgreement::BeginStep(int64_t step) {
  step_ = step;
  chunks_summed_ = 0;
  judgement_.reset();
}

void StepAgreement::SquaresArrived(ShardIndex shard) {
  if (!squares_.all->Accept(shard)) return;
  const int64_t step = squares_.all->step();
  const double total = squares_.all->Total();
  // Await the next messages before anything is sent. Judge() may end with this shard's own report
  // of the norms, or of the next step.
  squares_.all->Await(step + 1);
  if (has_trust() && std::isfinite(total)) norms_->all->Await(step);
  squares_.assembly->Tell(step, total, {});
  if (!squares_.report.empty()) Judge(total);
}

RefusalReason StepAgreement::VerdictArrived(const WireHeader& header) {
  const bool awaited = shard_ != kFirstShard && !judgement_ && header.step == step_ &&
                       chunks_summed_ == static_cast<int>(squares_.report.size());
  if (!awaited) return RefusalReason::kWrongStep;
  Judge(header.scalar);
  return RefusalReason::kNone;
}

void StepAgreement::Judge(double sum_of_squares) {
  Judgement judgement{.skip = !std::isfinite(sum_of_squares)};
  skips_in_row_ = judgement.skip ? skips_in_row_ + 1 : 0;
  if (global_norm_ && sum_of_squares > 0) {
    judgement.factor = std::min(1.0, *global_norm_ / std::sqrt(sum_of_squares));
  }
  judgement.complete = judgement.skip || !has_trust();
  judgement_ = judgement;
  judged_->StepJudged(step_, judgement.skip, skips_in_row_);
  if (judgement.complete) return judged_->GoOn();
  judged_->MeasureDirections(absl::MakeSpan(norms_->report));
  norms_->assembly->Report(step_, BytesOf(norms_->report));
}

// ---------------------------------------------------------------- trust ratios

void StepAgreement::NormsArrived(ShardIndex shard) {
  if (!norms_->all->Accept(shard)) return;
  trust_due_ = true;
  TellTrust();
}

// Waits while the message about the last step is still being sent from `trust_`.
void StepAgreement::TellTrust() {
  if (!trust_due_ || norms_->assembly->telling()) return;
  trust_due_ = false;
  const absl::Span<const double> ratios = ratios_->Compute(*norms_->all);
  std::copy(ratios.begin(), ratios.end(), trust_.begin());
  norms_->assembly->Tell(norms_->all->step(), /*scalar=*/0, BytesOf(trust_));
  if (!norms_->report.empty()) CompleteJudgement();
}

absl::Span<std::byte> StepAgreement::PlaceTrust(const WireHeader& header) {
  const absl::Span<std::byte> place(reinterpret_cast<std::byte*>(trust_.data()),
                                    trust_.size() * sizeof(double));
  const bool awaited =
      shard_ != kFirstShard && judgement_ && !judgement_->complete && header.step == step_;
  if (!awaited || header.length != place.size()) return {};
  return norms_->assembly->PlaceDecision(place);
}

void StepAgreement::CompleteJudgement() {
  judgement_->complete = true;
  judged_->GoOn();
}

// ---------------------------------------------------------------- messages

absl::Span<std::byte> StepAgreement::Place(const WireHeader& header) {
  if (header.kind == MessageKind::kTrust) return PlaceTrust(header);
  Round* const round = RoundOf(header.kind);
  const auto shard = ShardIndex(header.rank);
  const bool wanted =
      round != nullptr && round->all != nullptr && round->all->Wants(header.step, shard);
  return wanted ? round->assembly->Place(shard, header.length) : absl::Span<std::byte>();
}

void StepAgreement::Arrived(const WireHeader& header) {
  if (header.kind == MessageKind::kTrust) {
    if (norms_->assembly->DecisionArrived()) CompleteJudgement();
    return;
  }
  RoundOf(header.kind)->assembly->Arrived(ShardIndex(header.rank), header.step);
}

void StepAgreement::Lost(const WireHeader& header) {
  if (header.kind == MessageKind::kTrust) return norms_->assembly->DecisionLost();
  RoundOf(header.kind)->assembly->Lost(ShardIndex(header.rank));
}

void StepAgreement::ShardLost(ShardIndex shard) {
  squares_.assembly->ShardLost(shard);
  if (norms_ != nullptr) norms_->assembly->ShardLost(shard);
}

bool StepAgreement::idle() const {
  return squares_.assembly->idle() && (norms_ == nullptr || norms_->assembly->idle());
}

}  // namespace muster

// What the shards of a job agree on by way of shard 0: verdicts, trust ratios, closed steps.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "lib/cluster/parameter_group.h"
#include "lib/shard/parameter_shard.h"
#include "lib/shard/rank_set.h"

namespace muster {
namespace {

// By shard: whether gradients are pushed to it.
std::vector<bool> TrainedShards(const v1::JobPlan& plan) {
  std::vector<bool> trained(plan.shards_size());
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    const v1::Parameter& parameter = plan.graph().parameters(chunk.parameter());
    if (!TreatmentOf(plan.spec().training(), parameter).frozen) trained[chunk.shard()] = true;
  }
  return trained;
}

template <typename Word>
absl::Span<const std::byte> BytesOf(const std::vector<Word>& message) {
  return {reinterpret_cast<const std::byte*>(message.data()), message.size() * sizeof(Word)};
}

}  // namespace

WireHeader ParameterShard::HeaderToShard(MessageKind kind, int64_t step) const {
  return {.kind = kind,
          .generation = plan_->generation(),
          .job = plan_->job_number(),
          .step = step,
          .rank = static_cast<uint32_t>(shard_)};
}

// ---------------------------------------------------------------- judged steps

void ParameterShard::PrepareToJudge() {
  squares_.resize(trained_chunks_);
  if (has_trust_) {
    norms_.resize(2 * trained_chunks_);
    trust_.resize(plan_->graph().parameters_size());
  }
  if (shard_ != 0) return;
  all_squares_ = std::make_unique<GradientSquares>(*plan_);
  all_squares_->Await(plan_->first_step());
  if (!has_trust_) return;
  all_norms_ = std::make_unique<GradientSquares>(*plan_, /*sums_per_chunk=*/2);
  trust_ratios_ = std::make_unique<TrustRatios>(*plan_);
}

void ParameterShard::SumIfReady(Chunk& chunk) {
  if (!started_ || chunk.summed || sums_sending_ > 0 || VersionOf(chunk) != lowest_) return;
  const int index = IndexOf(chunk);
  const ChunkUpdate update = gate_->NextUpdate(index);
  if (update.ranks.empty()) return;
  GatherGradients(chunk, update);
  float* const sum = store_->Gradient(index, update.ranks[0]).data();
  const double squares =
      kernels::SumGradients(sum, gradients_.data(), gathered_, store_->elements(index));
  squares_[chunk.number] =
      PartOfNorm(chunk, squares * update.gradient_factor * update.gradient_factor);
  ReturnLeases(chunk, update);
  chunk.summed = true;
  if (++chunks_summed_ == trained_chunks_) SendSums(MessageKind::kSquares, squares_);
}

void ParameterShard::SendSums(MessageKind kind, const std::vector<double>& sums) {
  WireHeader header = HeaderToShard(kind, lowest_);
  const absl::Span<const std::byte> message = BytesOf(sums);
  header.length = message.size();
  if (shard_ == 0) {
    const absl::Span<std::byte> place = PlaceScalars(header);
    CHECK_EQ(place.size(), message.size());
    std::memcpy(place.data(), message.data(), message.size());
    return ScalarsArrived(header);
  }
  ++sums_sending_;
  ++sending_;
  output_->SendToShard(0, header, message, [this](const absl::Status&) {
    --sending_;
    --sums_sending_;
    UpdateAllReady();
  });
}

GradientSquares* ParameterShard::GatheredOf(MessageKind kind) const {
  return kind == MessageKind::kNorms ? all_norms_.get() : all_squares_.get();
}

absl::Span<std::byte> ParameterShard::PlaceScalars(const WireHeader& header) {
  if (header.kind == MessageKind::kTrust) return PlaceTrust(header);
  GradientSquares* const gathered = GatheredOf(header.kind);
  if (gathered == nullptr) return {};
  const auto place = gathered->Place(header.step, static_cast<int>(header.rank), header.length);
  if (!place.empty()) ++placing_;
  return place;
}

void ParameterShard::ScalarsArrived(const WireHeader& header) {
  if (header.kind == MessageKind::kTrust) return TrustArrived();
  GradientSquares* const gathered = GatheredOf(header.kind);
  const int shard = static_cast<int>(header.rank);
  if (!gathered->IsPlacing(shard)) return;  // given up by ShardLost
  --placing_;
  if (!gathered->Accept(shard)) return;
  if (header.kind == MessageKind::kSquares) return GiveVerdict();
  trust_due_ = true;
  GiveTrust();
}

void ParameterShard::ScalarsLost(const WireHeader& header) {
  if (header.kind == MessageKind::kTrust) {
    if (std::exchange(trust_placing_, false)) --placing_;
    return;
  }
  GradientSquares* const gathered = GatheredOf(header.kind);
  const int shard = static_cast<int>(header.rank);
  if (!gathered->IsPlacing(shard)) return;
  --placing_;
  gathered->Reject(shard);
}

void ParameterShard::RanksLost(const WireHeader& header) {
  const int shard = static_cast<int>(header.rank);
  if (!closing_->IsPlacing(shard)) return;
  --placing_;
  closing_->Reject(shard);
}

void ParameterShard::ShardLost(int shard) {
  for (GradientSquares* gathered : {all_squares_.get(), all_norms_.get()}) {
    if (gathered == nullptr || !gathered->IsPlacing(shard)) continue;
    --placing_;
    gathered->Reject(shard);
  }
  if (shard == 0 && std::exchange(trust_placing_, false)) --placing_;
  if (closing_ != nullptr && closing_->IsPlacing(shard)) {
    --placing_;
    closing_->Reject(shard);
  }
}

void ParameterShard::GiveVerdict() {
  const int64_t step = all_squares_->step();
  WireHeader header = HeaderToShard(MessageKind::kVerdict, step);
  header.scalar = all_squares_->Total();
  all_squares_->Await(step + 1);
  if (has_trust_ && std::isfinite(header.scalar)) all_norms_->Await(step);
  for (int shard = 1; shard < plan_->shards_size(); ++shard) {
    if (!all_squares_->Awaits(shard)) continue;
    ++sending_;
    output_->SendToShard(shard, header, {}, [this](const absl::Status&) { --sending_; });
  }
  if (trained_chunks_ > 0) Judge(header.scalar);
}

RefusalReason ParameterShard::VerdictArrived(const WireHeader& header) {
  const bool awaited = judged_ && shard_ != 0 && !judgement_ && header.step == lowest_ &&
                       chunks_summed_ == trained_chunks_;
  if (!awaited) return RefusalReason::kWrongStep;
  Judge(header.scalar);
  return RefusalReason::kNone;
}

void ParameterShard::Judge(double sum_of_squares) {
  Judgement judgement{.skip = !std::isfinite(sum_of_squares)};
  VersionState next = StateOfVersion(lowest_);
  if (judgement.skip) {
    next.loss_scale.StepOverflowed();
    ++next.skipped;
    ++skips_in_row_;
  } else {
    next.loss_scale.StepWasClean();
    skips_in_row_ = 0;
  }
  const v1::Clip& clip = plan_->spec().training().clip();
  if (clip.has_global_norm() && sum_of_squares > 0) {
    judgement.factor = std::min(1.0, clip.global_norm() / std::sqrt(sum_of_squares));
  }
  judgement.complete = judgement.skip || !has_trust_;
  StateOfVersion(lowest_ + 1) = next;
  judgement_ = judgement;
  output_->StepJudged({.step = lowest_,
                       .skipped = judgement.skip,
                       .skips_in_row = skips_in_row_,
                       .loss_scale = next.loss_scale.value()});
  if (!judgement.complete) return MeasureDirections();
  UpdateAllReady();
}

// ---------------------------------------------------------------- trust ratios

// A statistic has no direction.
void ParameterShard::MeasureDirections() {
  for (const Chunk& chunk : chunks_) {
    if (!chunk.trained) continue;
    kernels::DirectionSquares squares;
    if (chunk.statistic_momentum == 0) {
      const ChunkUpdate update = gate_->NextUpdate(IndexOf(chunk));
      GatherGradients(chunk, update);
      squares = kernels::MeasureDirection(SettingsFor(chunk), UpdatesBefore(chunk),
                                          BuffersOf(chunk, chunk.current),
                                          store_->elements(IndexOf(chunk)), ClipFor(update));
    }
    double* const sums = &norms_[2 * chunk.number];
    sums[0] = squares.values;
    sums[1] = squares.direction;
  }
  SendSums(MessageKind::kNorms, norms_);
}

// The message about the step before may still be under way.
void ParameterShard::GiveTrust() {
  if (!trust_due_ || trust_sending_ > 0) return;
  trust_due_ = false;
  const absl::Span<const double> ratios = trust_ratios_->Compute(*all_norms_);
  std::copy(ratios.begin(), ratios.end(), trust_.begin());
  WireHeader header = HeaderToShard(MessageKind::kTrust, all_norms_->step());
  const absl::Span<const std::byte> message = BytesOf(trust_);
  header.length = message.size();
  for (int shard = 1; shard < plan_->shards_size(); ++shard) {
    if (!all_norms_->Awaits(shard)) continue;
    ++trust_sending_;
    ++sending_;
    output_->SendToShard(shard, header, message, [this](const absl::Status&) {
      --sending_;
      if (--trust_sending_ == 0) GiveTrust();
    });
  }
  if (trained_chunks_ > 0) Trust();
}

absl::Span<std::byte> ParameterShard::PlaceTrust(const WireHeader& header) {
  const absl::Span<std::byte> place(reinterpret_cast<std::byte*>(trust_.data()),
                                    trust_.size() * sizeof(double));
  const bool awaited = shard_ != 0 && has_trust_ && judgement_ && !judgement_->complete &&
                       header.step == lowest_ && !trust_placing_;
  if (!awaited || header.length != place.size()) return {};
  trust_placing_ = true;
  ++placing_;
  return place;
}

void ParameterShard::TrustArrived() {
  if (!std::exchange(trust_placing_, false)) return;  // given up by ShardLost
  --placing_;
  Trust();
}

void ParameterShard::Trust() {
  judgement_->complete = true;
  UpdateAllReady();
}

// ---------------------------------------------------------------- backup workers

void ParameterShard::PrepareToClose() {
  arrived_message_.resize(backup_gate_->arrived().size());
  closed_message_ = arrived_message_;
  if (shard_ == 0) closing_ = std::make_unique<StepClosing>(*plan_, TrainedShards(*plan_));
}

// One message is under way at a time: what arrives meanwhile is told when it is gone.
void ParameterShard::TellArrived() {
  if (arrived_sending_ || backup_gate_->closed()) return;
  const absl::Span<const uint64_t> arrived = backup_gate_->arrived();
  const absl::Span<uint64_t> told = absl::MakeSpan(arrived_message_);
  const bool step_is_new = arrived_step_ != backup_gate_->open_step();
  if (step_is_new ? RankSet(arrived).size() == 0 : arrived == told) return;
  arrived_step_ = backup_gate_->open_step();
  std::copy(arrived.begin(), arrived.end(), told.begin());

  WireHeader header = HeaderToShard(MessageKind::kArrived, arrived_step_);
  const absl::Span<const std::byte> message = BytesOf(arrived_message_);
  header.length = message.size();
  if (shard_ == 0) {
    const absl::Span<std::byte> place = PlaceRanks(header);
    CHECK_EQ(place.size(), message.size());
    std::memcpy(place.data(), message.data(), message.size());
    return RanksArrived(header);
  }
  arrived_sending_ = true;
  ++sending_;
  output_->SendToShard(0, header, message, [this](const absl::Status&) {
    --sending_;
    arrived_sending_ = false;
    TellArrived();
  });
}

absl::Span<std::byte> ParameterShard::PlaceRanks(const WireHeader& header) {
  if (closing_ == nullptr) return {};
  const auto place = closing_->Place(header.step, static_cast<int>(header.rank), header.length);
  if (!place.empty()) ++placing_;
  return place;
}

void ParameterShard::RanksArrived(const WireHeader& header) {
  const int shard = static_cast<int>(header.rank);
  if (!closing_->IsPlacing(shard)) return;  // given up by ShardLost
  --placing_;
  closing_->Accept(shard, header.step);
  CloseIfPossible();
}

// The message about the step before may still be under way.
void ParameterShard::CloseIfPossible() {
  if (retired_ || closed_sending_ > 0 || !closing_->can_close()) return;
  WireHeader header = HeaderToShard(MessageKind::kClosed, closing_->step());
  const absl::Span<const uint64_t> ranks = closing_->Close();
  std::copy(ranks.begin(), ranks.end(), closed_message_.begin());
  const absl::Span<const std::byte> message = BytesOf(closed_message_);
  header.length = message.size();
  for (int shard = 1; shard < plan_->shards_size(); ++shard) {
    if (!closing_->Awaits(shard)) continue;
    ++closed_sending_;
    ++sending_;
    output_->SendToShard(shard, header, message, [this](const absl::Status&) {
      --sending_;
      if (--closed_sending_ == 0) CloseIfPossible();
    });
  }
  if (trained_chunks_ > 0) CHECK(backup_gate_->Close(header.step, ranks));
  UpdateAllReady();
}

RefusalReason ParameterShard::StepClosed(const WireHeader& header,
                                         absl::Span<const std::byte> ranks) {
  if (backup_gate_ == nullptr || shard_ == 0) return RefusalReason::kWrongStep;
  const absl::Span<uint64_t> set = absl::MakeSpan(closed_message_);
  if (ranks.size() != set.size() * sizeof(uint64_t)) return RefusalReason::kWrongLength;
  std::memcpy(set.data(), ranks.data(), ranks.size());
  if (!backup_gate_->Close(header.step, set)) return RefusalReason::kWrongStep;
  UpdateAllReady();
  return RefusalReason::kNone;
}

}  // namespace muster

#include "lib/shard/core/parameter_shard.h"

#include <glog/logging.h>

#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/log/log_scope.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/gate/backup_gate.h"
#include "lib/shard/gate/make_gate.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(
    std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
    std::shared_ptr<MemoryBudget::Reservation> reservation,
    std::shared_ptr<MemoryBudget::Reservation> gradients) {
  // Null: one reservation covers both stores.
  if (gradients == nullptr) gradients = reservation;
  ASSIGN_OR_RETURN(auto store, ChunkStore::Create(plan, shard, std::move(reservation)));
  ASSIGN_OR_RETURN(auto pushed, GradientStore::Create(*plan, shard, std::move(gradients)));
  auto made = absl::WrapUnique(
      new ParameterShard(std::move(plan), shard, std::move(store), std::move(pushed)));
  if (made->is_replica_) made->replication_.BeginFilling();
  return made;
}

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Continue(
    std::shared_ptr<const v1::JobPlan> plan, std::unique_ptr<ParameterShard> before,
    std::shared_ptr<MemoryBudget::Reservation> gradients) {
  const ShardIndex shard = before->shard_;
  auto refusal = [&](absl::string_view why) {
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat(plan->job(), ", shard ", ToInt(shard),
                                       ": cannot continue with the values of generation ",
                                       before->plan_->generation(), ": ", why)),
                      "SHARDS_NOT_HELD");
  };
  if (!before->retired_ || !before->idle()) return refusal("it is still in use");
  if (!before->store_->PassOnTo(plan)) return refusal("its chunks are not those of the plan");
  before->DropGradients();
  ASSIGN_OR_RETURN(auto pushed, GradientStore::Create(*plan, shard, std::move(gradients)));
  if (!before->Holds(plan->first_step())) {
    const HeldVersions held = before->held_versions();
    return refusal(absl::StrCat("step ", plan->first_step(), " is not within [", held.oldest, ", ",
                                held.newest, "]"));
  }
  auto next = absl::WrapUnique(
      new ParameterShard(plan, shard, std::move(before->store_), std::move(pushed)));
  next->versions_.TakeUp(before->versions_);
  next->answers_.TakeUp(before->answers_);
  return next;
}

ParameterShard::ParameterShard(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
                               std::unique_ptr<ChunkStore> store,
                               std::unique_ptr<GradientStore> gradients)
    : plan_(std::move(plan)),
      shard_(shard),
      is_replica_(IsOfReplica(*plan_)),
      store_(std::move(store)),
      chunks_(TreatmentsOf(*plan_, *store_)),
      gate_(MakeGate(*plan_, chunk_count(), TrainedCount(chunks_))),
      versions_(*plan_, chunks_, gate_.get()),
      pushes_(*plan_, shard_, chunks_, std::move(gradients)),
      optimizer_(*plan_, chunks_, *store_, pushes_),
      answers_(
          *plan_, *store_, [this](LocalChunk index) { UpdateIfReady(index); },
          [this](LocalChunk index, Rank rank, int64_t step) {
            // The requested version may be gone by now. Then the rank has moved on too, and
            // ignoring the refusal is right.
            if (!retired_) AnswerFetch(index, rank, step);
          }),
      snapshots_(*plan_, shard_, chunks_, *store_, versions_),
      replication_(*plan_, shard_, *store_, versions_,
                   [this](LocalChunk index) { UpdateIfReady(index); }),
      updating_(store_->size()) {
  const ShardAssembly::Send send = [this](ShardIndex to, const WireHeader& header,
                                          absl::Span<const std::byte> payload,
                                          Transport::SendDone done) {
    output_->SendToShard(to, header, payload, std::move(done));
  };
  if (StepsAreJudged(plan_->spec().training()) && !is_replica_) {
    JudgedShard* const judged = this;  // a private base class
    agreement_ = std::make_unique<StepAgreement>(*plan_, shard_, send, judged);
  }
  if (auto* const backup_gate = dynamic_cast<BackupGate*>(gate_.get())) {
    closing_ = std::make_unique<ClosingExchange>(*plan_, shard_, backup_gate, send,
                                                 [this] { UpdateAllReady(); });
  }
}

void ParameterShard::set_output(ShardOutput* output) {
  output_ = output;
  answers_.set_output(output);
  snapshots_.set_output(output);
  replication_.set_output(output);
}

ParameterShard::HeldVersions ParameterShard::held_versions() const {
  // An incomplete replica can provide no version: the range is empty.
  if (!replication_.is_filled()) return {.oldest = 1, .newest = 0};
  return versions_.held();
}

bool ParameterShard::Holds(int64_t version) const {
  const HeldVersions held = held_versions();
  return held.oldest <= version && version <= held.newest;
}

absl::Status ParameterShard::RestoreSlice(const v1::ShardSlice& slice) {
  RETURN_IF_ERROR(store_->RestoreSlice(slice, ChunkStore::Version()));
  return slice.has_update_state() ? versions_.Restore(slice.update_state()) : absl::OkStatus();
}

void ParameterShard::Start(int64_t total_steps) {
  if (started_ || retired_) return;
  started_ = true;
  total_steps_ = total_steps;
  gate_->Start(total_steps);
  // A replica takes no periodic snapshots; its shard does.
  if (!chunks_.empty() && !is_replica_) snapshots_.Start(total_steps);
  snapshots_.Begin();
  UpdateAllReady();
}

void ParameterShard::Retire() {
  started_ = false;
  retired_ = true;
  if (closing_ != nullptr) closing_->Retire();
  pushes_.DropAll();
}

bool ParameterShard::idle() const {
  return pushes_.idle() && answers_.idle() && replication_.idle() &&
         (agreement_ == nullptr || agreement_->idle()) && (closing_ == nullptr || closing_->idle());
}

// ---------------------------------------------------------------- messages of ranks

// Returns the chunk of a push that PlacePush() has placed.
LocalChunk ParameterShard::Placed(const WireHeader& header) const {
  const std::optional<LocalChunk> index = Find(header);
  CHECK(index.has_value());
  return *index;
}

ParameterShard::Placement ParameterShard::PlacePush(const WireHeader& header) {
  const std::optional<LocalChunk> index = Find(header);
  if (!index || !chunks_[*index].trained) return {.refusal = RefusalReason::kWrongChunk};
  if (const RefusalReason refusal = pushes_.Check(*index, header);
      refusal != RefusalReason::kNone) {
    return {.refusal = refusal};
  }
  const auto rank = Rank(header.rank);
  switch (gate_->Admit(*index, rank, header.step)) {
    case PushFate::kTake: {
      const absl::Span<std::byte> place = pushes_.Begin(*index, rank);
      if (header.length == 0) return {.taken = true};
      // A payload that must be decoded is copied first: its sender must not change it between check
      // and use.
      return {.memory = place, .in_place = header.codec == WireCodec::kRaw, .taken = true};
    }
    case PushFate::kRepeat:
      return {.repeat = true};
    case PushFate::kLate:
      return {.late = true};
    case PushFate::kWrongStep:
      break;
  }
  return {.refusal = RefusalReason::kWrongStep};
}

RefusalReason ParameterShard::PushArrived(const WireHeader& header,
                                          absl::Span<const std::byte> payload, PayloadLease lease) {
  const LocalChunk index = Placed(header);
  const auto rank = Rank(header.rank);
  if (!pushes_.End(index, rank)) return RefusalReason::kNone;  // RankLost() gave it up
  const RefusalReason refusal =
      retired_ ? RefusalReason::kNone
               : pushes_.Take(index, versions_.version(index), header, payload, std::move(lease));
  if (retired_ || refusal != RefusalReason::kNone) {
    gate_->Lost(index, rank);
    return refusal;
  }
  // The step may have closed while the payload was under way. The gradient is then dropped, and the
  // rank gets the current value.
  if (gate_->Arrived(index, rank) == PushFate::kLate) {
    pushes_.Drop(index, rank);
    SendCurrent(index, rank);
    return RefusalReason::kNone;
  }
  if (closing_ != nullptr) closing_->TellArrived();
  UpdateIfReady(index);
  return RefusalReason::kNone;
}

void ParameterShard::AnswerRepeat(const WireHeader& header) {
  const std::optional<LocalChunk> index = Find(header);
  if (!index || is_replica_) return;
  const auto rank = Rank(header.rank);
  if (gate_->AnswersAgain(*index, rank, header.step)) SendCurrent(*index, rank);
}

RefusalReason ParameterShard::Fetch(const WireHeader& header) {
  const std::optional<LocalChunk> index = Find(header);
  if (!index || is_replica_) return RefusalReason::kWrongChunk;
  return AnswerFetch(*index, Rank(header.rank), header.step);
}

RefusalReason ParameterShard::AnswerFetch(LocalChunk index, Rank rank, int64_t step) {
  ShardAnswers::Answer answer{.chunk = index,
                              .version = versions_.current(index),
                              .rank = rank,
                              .step = step,
                              .squares = pushes_.squares(index, rank),
                              .is_fetch = true};
  if (!chunks_[index].trained) {
    if (step < plan_->first_step()) return RefusalReason::kWrongStep;
  } else {
    switch (gate_->Fetch(index, rank, step)) {
      case FetchFate::kCurrent:
        answer.step = gate_->AnswerStep(index, rank);
        break;
      case FetchFate::kPrevious:
        answer.version = versions_.previous(index);
        answer.squares = 0;
        break;
      case FetchFate::kLater:
        return RefusalReason::kNone;
      case FetchFate::kWrongStep:
        return RefusalReason::kWrongStep;
    }
  }
  answer.loss_scale = versions_.loss_scale(answer.step);
  if (answers_.BeginFetch(index, rank, step)) answers_.Send(answer);
  return RefusalReason::kNone;
}

// Sends the current value, unasked.
void ParameterShard::SendCurrent(LocalChunk index, Rank rank) {
  const int64_t step = gate_->AnswerStep(index, rank);
  answers_.Send({.chunk = index,
                 .version = versions_.current(index),
                 .rank = rank,
                 .step = step,
                 .squares = pushes_.squares(index, rank),
                 .loss_scale = versions_.loss_scale(step)});
}

void ParameterShard::PushLost(const WireHeader& header) {
  GiveUpPush(Placed(header), Rank(header.rank));
}

void ParameterShard::RankLost(Rank rank) {
  if (replication_.filling() != nullptr) replication_.filling()->AllLost();
  answers_.RankLost(rank);
  for (const LocalChunk index : chunks()) GiveUpPush(index, rank);
}

void ParameterShard::GiveUpPush(LocalChunk index, Rank rank) {
  if (pushes_.End(index, rank)) gate_->Lost(index, rank);
}

// ---------------------------------------------------------------- messages of other shards

absl::Span<std::byte> ParameterShard::PlaceReport(const WireHeader& header) {
  if (header.kind == MessageKind::kArrived) {
    return closing_ == nullptr ? absl::Span<std::byte>() : closing_->Place(header);
  }
  if (header.kind == MessageKind::kState) {
    ReplicaFilling* const filling = replication_.filling();
    return filling == nullptr ? absl::Span<std::byte>() : filling->Place(header);
  }
  return agreement_ == nullptr ? absl::Span<std::byte>() : agreement_->Place(header);
}

void ParameterShard::ReportArrived(const WireHeader& header) {
  if (header.kind == MessageKind::kArrived) return closing_->Arrived(header);
  if (header.kind == MessageKind::kState) return StateArrived(header);
  agreement_->Arrived(header);
}

void ParameterShard::ReportLost(const WireHeader& header) {
  if (header.kind == MessageKind::kArrived) return closing_->Lost(header);
  if (header.kind == MessageKind::kState) return replication_.filling()->Lost(header);
  agreement_->Lost(header);
}

RefusalReason ParameterShard::DecisionArrived(const WireHeader& header,
                                              absl::Span<const std::byte> payload) {
  if (header.kind == MessageKind::kClosed) {
    return closing_ == nullptr ? RefusalReason::kWrongStep : closing_->StepClosed(header, payload);
  }
  return agreement_ == nullptr ? RefusalReason::kWrongStep : agreement_->VerdictArrived(header);
}

void ParameterShard::ShardLost(ShardIndex shard) {
  if (agreement_ != nullptr) agreement_->ShardLost(shard);
  if (closing_ != nullptr) closing_->ShardLost(shard);
}

// ---------------------------------------------------------------- updates

// Returns whether everything but a snapshot allows the update.
bool ParameterShard::IsReady(LocalChunk index, const ChunkUpdate& update) const {
  if (!started_ || update.ranks.empty()) return false;
  if (agreement_ != nullptr && !(agreement_->agreed() && pushes_.is_summed(index))) return false;
  if (!replication_.Allows(index, update.step)) return false;
  return FreeBuffer(index) >= 0;
}

// Returns whether some chunk's update waits only for memory for the next snapshot. Before a chunk
// has reached that snapshot's step, it waits for other pushes that belong to the snapshot.
bool ParameterShard::SomeAreHeldUp() const {
  for (const LocalChunk index : chunks()) {
    if (versions_.version(index) < snapshots_.next_step()) continue;
    if (IsReady(index, gate_->NextUpdate(index))) return true;
  }
  return false;
}

int ParameterShard::FreeBuffer(LocalChunk index) const {
  return answers_.FreeBuffer(index, versions_.current(index), versions_.previous(index));
}

void ParameterShard::UpdateIfReady(LocalChunk index) {
  if (std::exchange(updating_[index], true)) return;  // a send that ends in here calls this again
  while (true) {
    if (agreement_ != nullptr) SumIfReady(index);
    const ChunkUpdate update = gate_->NextUpdate(index);
    if (!update.ranks.empty()) snapshots_.UpdateIsDue(index);
    if (!IsReady(index, update) || update.step >= snapshots_.Barrier(index)) break;
    Update(index, update);
  }
  updating_[index] = false;
}

void ParameterShard::UpdateAllReady() {
  for (const LocalChunk index : chunks()) UpdateIfReady(index);
}

void ParameterShard::Update(LocalChunk index, const ChunkUpdate& update) {
  const ChunkStore::Version next = {.values = FreeBuffer(index),
                                    .slots = 1 - versions_.current(index).slots};
  // Shard and replica apply the same sum, so that they get the same bits.
  if (replication_.has_replica() && !pushes_.is_summed(index)) pushes_.Sum(index, update);
  if (SkipsNext(index, update)) {
    Skip(index, next);
  } else if (!pushes_.HasGradient(index, update)) {
    Skip(index, next);
    pushes_.KeepSquares(index, update, 0);
  } else {
    Apply(index, update, next);
  }
  // Built now, because BeginStep() below clears the judgement.
  const auto forwarded =
      replication_.has_replica() ? std::optional(SumToForward(index, update)) : std::nullopt;
  if (agreement_ != nullptr) {
    pushes_.KeepSquares(index, update, agreement_->squares(chunks_[index].number));
  }
  if (PushesAreUpdates(*plan_)) output_->StalePushApplied(update.staleness);
  pushes_.Applied(index, update);

  const bool step_ends = versions_.Advance(index, next);
  if (step_ends && agreement_ != nullptr) agreement_->BeginStep(versions_.lowest());
  gate_->TakeAnswers(index, [&](Rank rank) {
    if (!is_replica_) SendCurrent(index, rank);
  });
  // Answers to workers go first.
  if (forwarded) replication_.Forward(index, *forwarded);
  if (is_replica_ && step_ends) replication_.TellHeld();
  snapshots_.Updated(index);
  if (step_ends && agreement_ != nullptr) UpdateAllReady();  // sums the pushes that came early
}

ShardOptimizer::Update ParameterShard::TermsOf(LocalChunk index, const ChunkUpdate& update,
                                               const ChunkStore::Version& next) const {
  return {.chunk = index,
          .due = update,
          .from = versions_.current(index),
          .to = next,
          .total_steps = total_steps_,
          .updates_before = versions_.UpdatesBefore(index),
          .clip_factor = agreement_ == nullptr ? 1 : agreement_->judgement()->factor};
}

void ParameterShard::Apply(LocalChunk index, const ChunkUpdate& update,
                           const ChunkStore::Version& next) {
  ShardOptimizer::Update terms = TermsOf(index, update, next);
  if (agreement_ != nullptr && agreement_->has_trust()) {
    terms.trust_ratio = agreement_->trust_ratio(chunks_[index].parameter);
  } else if (is_replica_) {
    terms.trust_ratio = pushes_.TermsOf(index, update).trust_ratio;
  }
  terms.stores = output_->UpdateBegins(store_->elements(index));
  const double sum_of_squares = optimizer_.Apply(terms);
  output_->UpdateEnds(sum_of_squares);
  answers_.Stored(index, next.values, optimizer_.StoresWireValues(index));
  const double factor = pushes_.MeanFactor(index, update);
  const double mean_squares = sum_of_squares * (factor * factor);
  pushes_.KeepSquares(index, update,
                      optimizer_.averages() ? 0 : pushes_.PartOfNorm(index, mean_squares));
}

// Copies the current version, so that both versions have the values and a step back is a swap here
// too.
void ParameterShard::Skip(LocalChunk index, const ChunkStore::Version& next) {
  store_->Copy(index, versions_.current(index), next);
  answers_.Stored(index, next.values, /*encoded=*/false);
}

// At a replica, the first chunk of a step passes its shard's verdict on to the update state; the
// other chunks only follow the verdict.
bool ParameterShard::SkipsNext(LocalChunk index, const ChunkUpdate& update) {
  if (agreement_ != nullptr) return agreement_->judgement()->skip;
  if (!is_replica_) return false;
  const bool skips = pushes_.TermsOf(index, update).skipped;
  const bool is_first = update.step == versions_.highest();
  if (is_first && StepsAreJudged(plan_->spec().training())) {
    versions_.StepJudged(update.step, skips);
  }
  return skips;
}

// ---------------------------------------------------------------- judged steps

void ParameterShard::SumIfReady(LocalChunk index) {
  // A chunk above the lowest version has the current step already; its next sum belongs to a later
  // one.
  if (!started_ || pushes_.is_summed(index) || !agreement_->takes_sums() ||
      versions_.version(index) != versions_.lowest()) {
    return;
  }
  if (replication_.is_forwarding(index)) return;  // the last sum is still being sent
  const ChunkUpdate update = gate_->NextUpdate(index);
  if (update.ranks.empty()) return;
  agreement_->ChunkSummed(chunks_[index].number, pushes_.Sum(index, update));
}

void ParameterShard::StepJudged(int64_t step, bool skipped, int64_t skips_in_row) {
  output_->StepJudged({.step = step,
                       .skipped = skipped,
                       .skips_in_row = skips_in_row,
                       .loss_scale = versions_.StepJudged(step, skipped)});
}

// The squares of a statistic stay 0, because it has no direction. So do those of a chunk without a
// gradient, which is not updated.
void ParameterShard::MeasureDirections(absl::Span<double> squares) {
  for (const LocalChunk index : chunks()) {
    const ChunkTreatment& chunk = chunks_[index];
    if (!chunk.trained) continue;
    kernels::DirectionSquares measured;
    const ChunkUpdate update = gate_->NextUpdate(index);
    if (!chunk.is_statistic() && pushes_.HasGradient(index, update)) {
      measured = optimizer_.Measure(TermsOf(index, update, versions_.current(index)));
    }
    const int at = 2 * ToInt(chunk.number);
    squares[at] = measured.values;
    squares[at + 1] = measured.direction;
  }
}

// ---------------------------------------------------------------- replicas

ReplicaFeed::Sum ParameterShard::SumToForward(LocalChunk index, const ChunkUpdate& update) const {
  ReplicaFeed::Sum sum{.step = update.step};
  const StepAgreement::Judgement judgement =
      agreement_ == nullptr ? StepAgreement::Judgement() : *agreement_->judgement();
  if (pushes_.HasGradient(index, update)) {
    sum.elements = pushes_.SumPlace(index, update);
    // A statistic is not clipped.
    sum.factor =
        pushes_.MeanFactor(index, update) * (chunks_[index].is_statistic() ? 1 : judgement.factor);
  }
  sum.skipped = judgement.skip;
  if (plan_->spec().model().has_external()) {
    sum.rate_or_trust = pushes_.TermsOf(index, update).learning_rate;
  }
  if (agreement_ != nullptr && agreement_->has_trust() && !sum.skipped) {
    sum.rate_or_trust = agreement_->trust_ratio(chunks_[index].parameter);
  }
  return sum;
}

void ParameterShard::ReplicaHolds(const WireHeader& header) {
  if (replication_.ReplicaHolds(header)) UpdateAllReady();
}

void ParameterShard::ReplicasHold(const WireHeader& header) {
  if (replication_.ReplicasHold(header)) UpdateAllReady();
}

void ParameterShard::StateArrived(const WireHeader& header) {
  ReplicaFilling& filling = *replication_.filling();
  filling.Arrived(header);
  if (retired_ || !filling.complete()) return;
  if (const absl::Status restored = versions_.Restore(filling.update_state()); !restored.ok()) {
    const LogScope scope({.job = plan_->job(), .generation = plan_->generation()});
    LOG(ERROR) << plan_->job() << ", replica of shard " << shard_
               << ": cannot restore the update state: " << restored;
  }
  UpdateAllReady();
}

// ---------------------------------------------------------------- snapshots

void ParameterShard::TakeSnapshot(uint64_t id, int64_t step) {
  const int64_t last_step = started_ ? total_steps_ : std::numeric_limits<int64_t>::max();
  if (snapshots_.Request(id, step, last_step)) UpdateAllReady();
}

void ParameterShard::SnapshotWritten(uint64_t id, int64_t step) {
  if (snapshots_.Written(id, step)) UpdateAllReady();
}

// Passes over only snapshots that delay an update. If workers have paused at the step of the
// waiting snapshot, no update waits, and they may be waiting for that snapshot.
void ParameterShard::PassOverSnapshots(absl::FunctionRef<Clock::time_point()> clock) {
  if (!snapshots_.IsLate(clock)) return;
  while (SomeAreHeldUp() && snapshots_.PassOver()) UpdateAllReady();
}

std::shared_ptr<const ShardSnapshot> ParameterShard::SnapshotOfHeld(uint64_t id, int64_t version) {
  CHECK(retired_ && idle());
  return Holds(version) ? snapshots_.OfHeld(id, version) : nullptr;
}

}  // namespace muster

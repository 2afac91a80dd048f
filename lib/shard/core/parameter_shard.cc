#include "lib/shard/core/parameter_shard.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"
#include "lib/plan/sum_tree.h"
#include "lib/shard/chunks/optimizer_settings.h"
#include "lib/shard/gate/backup_gate.h"
#include "lib/shard/gate/make_gate.h"
#include "lib/shard/gate/round_schedule.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using kernels::FloatType;
using kernels::OptimizerSettings;
using kernels::Streaming;

// The memory of a shard of which everything may stay in the caches between two steps. The updates
// of a larger shard write its slots past the caches, because the slots would be evicted before the
// next step.
constexpr size_t kCachedBytes = size_t{64} << 20;

constexpr Rank kNobody{-1};

FloatType TypeOf(WireDType dtype) {
  switch (dtype) {
    case WireDType::kF16:
      return FloatType::kF16;
    case WireDType::kBf16:
      return FloatType::kBf16;
    case WireDType::kF32:
    case WireDType::kNone:
      return FloatType::kF32;
  }
  return FloatType::kF32;
}

// Returns how the gradients of all ranks become the root of the job's sum tree. Empty: the job has
// no logical workers.
std::vector<uint8_t> JoinsOfRanks(const v1::JobPlan& plan) {
  const SumNode root = {.leaves = plan.spec().resources().workers().logical()};
  if (root.leaves == 0) return {};
  return JoinsOf(root, CutNode(root, plan.workers_size()));
}

}  // namespace

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
  if (made->is_replica_) {
    made->filling_ = std::make_unique<ReplicaFilling>(*made->store_, made->plan_->first_step());
  }
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
  auto next = absl::WrapUnique(
      new ParameterShard(plan, shard, std::move(before->store_), std::move(pushed)));
  if (!next->TakeUp(*before)) {
    const HeldVersions held = before->held_versions();
    return refusal(absl::StrCat("step ", plan->first_step(), " is not within [", held.oldest, ", ",
                                held.newest, "]"));
  }
  return next;
}

bool ParameterShard::TakeUp(const ParameterShard& before) {
  const int64_t version = plan_->first_step();
  if (!before.Holds(version)) return false;
  for (Chunk& chunk : chunks_) {
    const LocalChunk index = IndexOf(chunk);
    const Chunk& old = before.chunks_[index];
    const bool steps_back = before.HasAsPrevious(index, version);
    // A step back is a swap: `current` becomes the version before, and the next update overwrites
    // the newer one.
    chunk.current = steps_back ? old.previous : old.current;
    chunk.previous = steps_back ? old.current : old.previous;
    for (size_t i = 0; i < chunk.buffers.size(); ++i) {
      chunk.buffers[i].encoded = old.buffers[i].encoded;
    }
  }
  states_.fill(before.states_[version % before.states_.size()]);
  return true;
}

ParameterShard::ParameterShard(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
                               std::unique_ptr<ChunkStore> store,
                               std::unique_ptr<GradientStore> pushed)
    : plan_(std::move(plan)),
      shard_(shard),
      store_(std::move(store)),
      pushed_(std::move(pushed)),
      settings_(OptimizerSettingsOf(plan_->spec().training().optimizer())),
      has_program_(plan_->spec().model().has_external()),
      is_replica_(IsOfReplica(*plan_)),
      averages_(plan_->spec().sync().mode() == v1::LOCAL_SGD),
      pushes_are_updates_(PushesAreUpdates(*plan_)),
      joins_(JoinsOfRanks(*plan_)),
      chunks_(store_->size()),
      pushes_(store_->size(), plan_->workers_size()),
      fetching_(store_->size(), plan_->workers_size()),
      gradients_(plan_->workers_size()),
      states_{VersionState{LossScale(plan_->spec().training())},
              VersionState{LossScale(plan_->spec().training())},
              VersionState{LossScale(plan_->spec().training())}},
      snapshots_(store_->size(), plan_->spec().checkpoint().every_steps()) {
  for (Chunk& chunk : chunks_) {
    const LocalChunk index = IndexOf(chunk);
    chunk.parameter = plan_->chunks(ToInt(store_->id(index))).parameter();
    const v1::Parameter& parameter = plan_->graph().parameters(chunk.parameter);
    const ParameterTreatment treatment = TreatmentOf(plan_->spec().training(), parameter);
    chunk.trained = !treatment.frozen;
    chunk.learning_rate_factor = treatment.learning_rate_factor;
    chunk.weight_decay = treatment.WeightDecay(settings_.weight_decay);
    chunk.statistic_momentum = parameter.statistic_momentum();
    chunk.buffers.resize(store_->value_buffers());
    chunk.previous = {.values = 1, .slots = 1};
    if (chunk.trained) chunk.number = TrainedChunk(trained_chunks_++);
    if (store_->values_format(index).dtype != WireDType::kF32) {
      chunk.encoder = ChunkEncoder::Create(store_->values_format(index), /*seed=*/0);
    }
  }
  furthest_ = plan_->first_step();
  lowest_ = trained_chunks_ == 0 ? std::numeric_limits<int64_t>::max() : plan_->first_step();
  // A shard without gradients has nothing to wait for.
  highest_ = lowest_;
  chunks_at_lowest_ = trained_chunks_;
  const ShardAssembly::Send send = [this](ShardIndex to, const WireHeader& header,
                                          absl::Span<const std::byte> payload,
                                          Transport::SendDone done) {
    output_->SendToShard(to, header, payload, std::move(done));
  };
  gate_ = MakeGate(*plan_, chunk_count(), trained_chunks_);
  if (auto* const backup_gate = dynamic_cast<BackupGate*>(gate_.get())) {
    closing_ = std::make_unique<ClosingExchange>(*plan_, shard_, backup_gate, send,
                                                 [this] { UpdateAllReady(); });
  }
  if (StepsAreJudged(plan_->spec().training()) && !is_replica_) {
    JudgedShard* const judged = this;  // a private base class
    agreement_ = std::make_unique<StepAgreement>(*plan_, shard_, send, judged);
  }
  if (IsReplicated(*plan_)) MakeReplicaFeed();
}

void ParameterShard::MakeReplicaFeed() {
  replicas_ = std::make_unique<ReplicaAgreement>(*plan_, shard_,
                                                 [this](ShardIndex to, const WireHeader& header) {
                                                   output_->SendToShard(to, header, {}, nullptr);
                                                 });
  if (!HasReplica(*plan_, shard_)) return;
  replica_version_ = plan_->first_step();
  NumberedVector<LocalChunk, ChunkId> ids;
  for (const LocalChunk index : chunks()) ids.emplace_back(store_->id(index));
  feed_ = std::make_unique<ReplicaFeed>(
      *plan_, shard_, std::move(ids),
      [this](const WireHeader& header, absl::Span<const std::byte> payload,
             Transport::SendDone done) {
        output_->SendToReplica(header, payload, std::move(done));
      },
      [this](LocalChunk index) { UpdateIfReady(chunks_[index]); });
}

ParameterShard::Chunk* ParameterShard::Find(const WireHeader& header) {
  const std::optional<LocalChunk> index = store_->Find(ChunkId(header.chunk));
  return index ? &chunks_[*index] : nullptr;
}

ParameterShard::HeldVersions ParameterShard::held_versions() const {
  HeldVersions held;
  // An incomplete replica can provide no version: the range is empty.
  if (filling_ != nullptr && !filling_->complete()) return {.oldest = 1, .newest = 0};
  for (const Chunk& chunk : chunks_) {
    if (!chunk.trained) continue;
    held.oldest = std::max(held.oldest, gate_->oldest(IndexOf(chunk)));
    held.newest = std::min(held.newest, VersionOf(chunk));
  }
  return held;
}

bool ParameterShard::Holds(int64_t version) const {
  const HeldVersions held = held_versions();
  return held.oldest <= version && version <= held.newest;
}

bool ParameterShard::HasAsPrevious(LocalChunk index, int64_t version) const {
  return chunks_[index].trained && gate_->version(index) != version;
}

absl::Span<const float> ParameterShard::values(LocalChunk index) const {
  return store_->Values(index, chunks_[index].current);
}

// ---------------------------------------------------------------- initial values

void ParameterShard::Initialize(LocalChunk index) {
  store_->Initialize(index, chunks_[index].current);
}

void ParameterShard::BeginRestore() { store_->BeginRestore(); }

absl::Status ParameterShard::RestoreSlice(const v1::ShardSlice& slice) {
  RETURN_IF_ERROR(store_->RestoreSlice(slice, ChunkStore::Version()));
  return slice.has_update_state() ? RestoreState(slice.update_state()) : absl::OkStatus();
}

// Sets the update state of all versions. Rejects a number of updates that no job can reach: an
// asynchronous job makes an update for each step of each worker.
absl::Status ParameterShard::RestoreState(const v1::UpdateState& state) {
  if (state.updates() < 0 || state.updates() > plan_->first_step() * limits::kWorkersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(state.updates(), " updates in ", plan_->first_step(), " steps"));
  }
  for (VersionState& version : states_) {
    version.skipped = plan_->first_step() - state.updates();
    RETURN_IF_ERROR(version.loss_scale.Restore(state));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- messages

ParameterShard::Placement ParameterShard::PlacePush(const WireHeader& header) {
  const Chunk* const chunk = Find(header);
  if (chunk == nullptr || !chunk->trained) return {.refusal = RefusalReason::kWrongChunk};
  const LocalChunk index = IndexOf(*chunk);
  if (const RefusalReason refusal = CheckPush(*chunk, header); refusal != RefusalReason::kNone) {
    return {.refusal = refusal};
  }
  const auto rank = Rank(header.rank);
  switch (gate_->Admit(index, rank, header.step)) {
    case PushFate::kTake:
      PushOf(*chunk, rank).receiving = tickets_.Take();
      if (header.length == 0) return {.taken = true};
      // A payload that must be decoded is copied first: its sender must not change it between check
      // and use.
      return {.memory = pushed_->PushMemory(index, rank),
              .in_place = header.codec == WireCodec::kRaw,
              .taken = true};
    case PushFate::kRepeat:
      return {.repeat = true};
    case PushFate::kLate:
      return {.late = true};
    case PushFate::kWrongStep:
      break;
  }
  return {.refusal = RefusalReason::kWrongStep};
}

RefusalReason ParameterShard::CheckPush(const Chunk& chunk, const WireHeader& header) const {
  const WireFormat& format = pushed_->format(IndexOf(chunk));
  const bool has_gradient =
      !has_program_ || header.dtype != WireDType::kNone || header.codec != WireCodec::kRaw;
  if (has_gradient && (header.dtype != format.dtype || header.codec != format.codec)) {
    return RefusalReason::kBadHeader;
  }
  if (header.length != (has_gradient ? static_cast<uint64_t>(format.bytes) : 0)) {
    return RefusalReason::kWrongLength;
  }
  if (!has_program_) return RefusalReason::kNone;
  const bool rate_is_valid = std::isfinite(header.scalar) && header.scalar >= 0;
  // Gradients are multiplied by the reciprocal as a float, so a weight must not be subnormal. A
  // replica gets its shard's factor instead.
  const bool weight_is_valid =
      is_replica_ || (std::isnormal(header.loss_scale) && header.loss_scale > 0);
  return rate_is_valid && weight_is_valid ? RefusalReason::kNone : RefusalReason::kBadHeader;
}

RefusalReason ParameterShard::PushArrived(const WireHeader& header,
                                          absl::Span<const std::byte> payload, PayloadLease lease) {
  Chunk* chunk = Find(header);
  CHECK(chunk != nullptr);
  const LocalChunk index = IndexOf(*chunk);
  const auto rank = Rank(header.rank);
  Push& push = PushOf(*chunk, rank);
  if (!push.receiving) return RefusalReason::kNone;  // RankLost() gave it up
  push.receiving.GiveBack();
  const RefusalReason refusal =
      retired_ ? RefusalReason::kNone : TakePush(*chunk, header, payload, std::move(lease));
  if (retired_ || refusal != RefusalReason::kNone) {
    gate_->Lost(index, rank);
    return refusal;
  }
  // The step may have closed while the payload was under way. The gradient is then dropped, and the
  // rank gets the current value.
  if (gate_->Arrived(index, rank) == PushFate::kLate) {
    push.lease = {};
    SendParams(*chunk, chunk->current, rank, gate_->AnswerStep(index, rank));
    return RefusalReason::kNone;
  }
  if (closing_ != nullptr) closing_->TellArrived();
  UpdateIfReady(*chunk);
  return RefusalReason::kNone;
}

// Keeps what a push says, unless the job's other ranks or its codec contradict it.
RefusalReason ParameterShard::TakePush(Chunk& chunk, const WireHeader& header,
                                       absl::Span<const std::byte> payload, PayloadLease lease) {
  const auto rank = Rank(header.rank);
  Push& push = PushOf(chunk, rank);
  // A late push of backup workers is not part of the current step.
  const bool ranks_agree = has_program_ && !pushes_are_updates_ && header.step == VersionOf(chunk);
  if (ranks_agree && chunk.learning_rate.value_or(header.scalar) != header.scalar) {
    return RefusalReason::kOtherLearningRate;
  }
  push.has_gradient = !has_program_ || header.length > 0;
  if (push.has_gradient && !TakeGradient(chunk, rank, payload, std::move(lease))) {
    return RefusalReason::kBadPayload;
  }
  if (ranks_agree) chunk.learning_rate = header.scalar;
  if (has_program_) {
    push.learning_rate = header.scalar;
    push.weight = header.loss_scale;
  }
  if (is_replica_) {
    // The header of a sum carries the shard's verdict, see ReplicaFeed::SendSum().
    push.skipped = std::isnan(header.loss_scale);
    push.factor = header.loss_scale;
    if (!has_program_) push.trust_ratio = header.scalar;
  }
  return RefusalReason::kNone;
}

// Leaves the gradient in its sender's memory if it can be read there: raw, and aligned for floats.
bool ParameterShard::TakeGradient(const Chunk& chunk, Rank rank,
                                  absl::Span<const std::byte> payload, PayloadLease lease) {
  const LocalChunk index = IndexOf(chunk);
  const WireFormat& format = pushed_->format(index);
  // A lent payload may be misaligned for floats; it is copied then.
  if (reinterpret_cast<uintptr_t>(payload.data()) % alignof(float) != 0 && lease) {
    const absl::Span<std::byte> own = pushed_->PushMemory(index, rank);
    std::memcpy(own.data(), payload.data(), own.size());
    payload = own;
    lease = {};
  }
  Push& push = PushOf(chunk, rank);
  if (format.codec == WireCodec::kRaw) {
    push.gradient = {.elements = payload.data(), .type = TypeOf(format.dtype)};
    push.lease = std::move(lease);
    return true;
  }
  const absl::Span<float> own = pushed_->Gradient(index, rank);
  push.gradient = {.elements = own.data()};
  return Decode(format, payload, own).ok();
}

void ParameterShard::AnswerRepeat(const WireHeader& header) {
  Chunk* chunk = Find(header);
  if (chunk == nullptr || is_replica_) return;
  const LocalChunk index = IndexOf(*chunk);
  const auto rank = Rank(header.rank);
  if (!gate_->AnswersAgain(index, rank, header.step)) return;
  SendParams(*chunk, chunk->current, rank, gate_->AnswerStep(index, rank));
}

RefusalReason ParameterShard::Fetch(const WireHeader& header) {
  Chunk* chunk = Find(header);
  if (chunk == nullptr || is_replica_) return RefusalReason::kWrongChunk;
  return AnswerFetch(*chunk, Rank(header.rank), header.step);
}

// Answers a fetch. At most one answer is under way for each rank and chunk: a rank may fetch faster
// than its link carries answers, and answers under way keep values from being overwritten.
RefusalReason ParameterShard::AnswerFetch(Chunk& chunk, Rank rank, int64_t step) {
  const LocalChunk index = IndexOf(chunk);
  const ChunkStore::Version* version = &chunk.current;
  int64_t answer = step;
  if (!chunk.trained) {
    if (step < plan_->first_step()) return RefusalReason::kWrongStep;
  } else {
    switch (gate_->Fetch(index, rank, step)) {
      case FetchFate::kCurrent:
        answer = gate_->AnswerStep(index, rank);
        break;
      case FetchFate::kPrevious:
        version = &chunk.previous;
        break;
      case FetchFate::kLater:
        return RefusalReason::kNone;
      case FetchFate::kWrongStep:
        return RefusalReason::kWrongStep;
    }
  }
  Fetching& fetching = fetching_(index, rank);
  if (fetching.answering) {
    fetching.waiting = step;
    return RefusalReason::kNone;
  }
  fetching.answering = true;
  SendParams(chunk, *version, rank, answer, /*fetched=*/true);
  return RefusalReason::kNone;
}

void ParameterShard::FetchAnswered(LocalChunk index, Rank rank) {
  Fetching& fetching = fetching_(index, rank);
  fetching.answering = false;
  const int64_t step = std::exchange(fetching.waiting, -1);
  // The requested version may be gone by now. Then the rank has moved on too, and ignoring the
  // refusal is right.
  if (step >= 0 && !retired_) AnswerFetch(chunks_[index], rank, step);
}

void ParameterShard::PushLost(const WireHeader& header) {
  const Chunk* const chunk = Find(header);
  CHECK(chunk != nullptr);
  GiveUpPush(IndexOf(*chunk), Rank(header.rank));
}

void ParameterShard::RankLost(Rank rank) {
  if (filling_ != nullptr) filling_->AllLost();
  for (const LocalChunk index : chunks()) {
    fetching_(index, rank).waiting = -1;
    GiveUpPush(index, rank);
  }
}

void ParameterShard::GiveUpPush(LocalChunk index, Rank rank) {
  Push& push = PushOf(chunks_[index], rank);
  if (!push.receiving) return;
  gate_->Lost(index, rank);
  push.receiving.GiveBack();
}

void ParameterShard::SendParams(Chunk& chunk, const ChunkStore::Version& version, Rank rank,
                                int64_t step, bool fetched) {
  const LocalChunk index = IndexOf(chunk);
  const absl::Span<const std::byte> values = WireValues(chunk, version);
  const WireHeader header{
      .kind = MessageKind::kParams,
      .dtype = store_->values_format(index).dtype,
      .generation = plan_->generation(),
      .job = plan_->job_number(),
      .step = step,
      .chunk = static_cast<uint32_t>(store_->id(index)),
      .rank = static_cast<uint32_t>(rank),
      .length = values.size(),
      .scalar = version == chunk.current ? SquaresFor(chunk, rank) : 0,
      .loss_scale = StateOfVersion(step).loss_scale.value(),
  };
  // Counted before it is sent, because the send may end inside SendTo().
  ++chunk.buffers[version.values].sending;
  // The capture is two words, which AnyInvocable stores without allocating.
  output_->SendTo(rank, header, values,
                  [ticket = tickets_.Take(), index, buffer = static_cast<int16_t>(version.values),
                   fetcher = static_cast<int16_t>(ToInt(fetched ? rank : kNobody))](
                      const absl::Status&) mutable {
                    ParameterShard& shard = ticket.owner();
                    ticket.GiveBack();
                    shard.ValuesSent(index, buffer, Rank(fetcher));
                  });
}

// `fetcher` is the rank that fetched the values, or kNobody if they do not answer a fetch.
void ParameterShard::ValuesSent(LocalChunk index, int buffer, Rank fetcher) {
  Chunk& chunk = chunks_[index];
  if (--chunk.buffers[buffer].sending == 0) UpdateIfReady(chunk);
  if (fetcher != kNobody) FetchAnswered(index, fetcher);
}

double ParameterShard::SquaresFor(const Chunk& chunk, Rank rank) {
  return pushes_are_updates_ ? PushOf(chunk, rank).sum_of_squares : chunk.sum_of_squares;
}

// Encodes the values unless the optimizer has stored them in the wire format already. It does not
// store initial values, averages, statistics and the values after a skipped step.
absl::Span<const std::byte> ParameterShard::WireValues(Chunk& chunk,
                                                       const ChunkStore::Version& version) {
  const LocalChunk index = IndexOf(chunk);
  const absl::Span<std::byte> wire = store_->WireValues(index, version);
  ValueBuffer& buffer = chunk.buffers[version.values];
  if (chunk.encoder != nullptr && !buffer.encoded) {
    chunk.encoder->Encode(store_->Values(index, version), wire);
    buffer.encoded = true;
  }
  return wire;
}

// ---------------------------------------------------------------- messages of other shards

absl::Span<std::byte> ParameterShard::PlaceReport(const WireHeader& header) {
  if (header.kind == MessageKind::kArrived) {
    return closing_ == nullptr ? absl::Span<std::byte>() : closing_->Place(header);
  }
  if (header.kind == MessageKind::kState) {
    return filling_ == nullptr ? absl::Span<std::byte>() : filling_->Place(header);
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
  if (header.kind == MessageKind::kState) return filling_->Lost(header);
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
bool ParameterShard::IsReady(const Chunk& chunk, const ChunkUpdate& update) const {
  if (!started_ || update.ranks.empty()) return false;
  if (agreement_ != nullptr && !(agreement_->agreed() && chunk.summed)) return false;
  if (!ReplicasAllow(chunk, update)) return false;
  return FreeBuffer(chunk) >= 0;  // -1: all buffers are being read
}

bool ParameterShard::MayUpdate(const Chunk& chunk, const ChunkUpdate& update) const {
  return IsReady(chunk, update) && update.step < snapshots_.Barrier(IndexOf(chunk));
}

// Returns whether the chunk's update waits only for memory for the next snapshot. Before the chunk
// has reached that snapshot's step, it waits for other pushes that belong to the snapshot.
bool ParameterShard::IsHeldUp(const Chunk& chunk) const {
  return VersionOf(chunk) >= snapshots_.next_step() &&
         IsReady(chunk, gate_->NextUpdate(IndexOf(chunk)));
}

// Returns the buffer for the values of the next version, or -1 if all are in use. Keeps the version
// before if another buffer is free, because a rank may still fetch it.
int ParameterShard::FreeBuffer(const Chunk& chunk) {
  int free = -1;
  for (int i = 0; i < std::ssize(chunk.buffers); ++i) {
    if (i == chunk.current.values || chunk.buffers[i].sending > 0) continue;
    if (free < 0 || free == chunk.previous.values) free = i;
  }
  return free;
}

void ParameterShard::UpdateIfReady(Chunk& chunk) {
  if (std::exchange(chunk.updating, true)) return;  // a send that ends in here calls this again
  while (true) {
    if (agreement_ != nullptr) SumIfReady(chunk);
    const ChunkUpdate update = gate_->NextUpdate(IndexOf(chunk));
    if (defers_copies_ && !update.ranks.empty()) Hold(chunk);
    if (!MayUpdate(chunk, update)) break;
    Update(chunk, update);
  }
  chunk.updating = false;
}

void ParameterShard::UpdateAllReady() {
  for (Chunk& chunk : chunks_) UpdateIfReady(chunk);
}

void ParameterShard::Update(Chunk& chunk, const ChunkUpdate& update) {
  const LocalChunk index = IndexOf(chunk);
  const ChunkStore::Version next = {.values = FreeBuffer(chunk), .slots = 1 - chunk.current.slots};
  // Shard and replica apply the same sum, so that they get the same bits.
  if (feed_ != nullptr && !chunk.summed) Sum(chunk, update);
  if (SkipsNext(chunk, update)) {
    Skip(chunk, next);
  } else if (!HasGradient(chunk, update)) {
    Skip(chunk, next);
    KeepSquares(chunk, update, 0);
  } else {
    Apply(chunk, update, next);
  }
  // Built now, because BeginStep() below clears the judgement.
  const auto forwarded =
      feed_ == nullptr ? std::nullopt : std::optional(SumToForward(chunk, update));
  if (agreement_ != nullptr) chunk.sum_of_squares = agreement_->squares(chunk.number);
  if (pushes_are_updates_) output_->StalePushApplied(update.staleness);
  ReturnLeases(chunk, update);

  const int64_t version_before = VersionOf(chunk), lowest_before = lowest_;
  chunk.previous = std::exchange(chunk.current, next);
  chunk.summed = false;
  chunk.learning_rate.reset();
  gate_->Updated(index);
  CountVersion(chunk, version_before);
  const bool step_ends = agreement_ != nullptr && lowest_ > lowest_before;
  if (step_ends) agreement_->BeginStep(lowest_);
  gate_->TakeAnswers(index, [&](Rank rank) {
    if (is_replica_) return;
    SendParams(chunk, chunk.current, rank, gate_->AnswerStep(index, rank));
  });
  // Answers to workers go first.
  if (forwarded) feed_->Forward(index, *forwarded);
  if (is_replica_ && lowest_ > lowest_before) TellHeld();
  if (!snapshots_.current()) {
    BeginSnapshot();
  } else if (!defers_copies_) {
    Hold(chunk);
  } else if (IsWanted(chunk)) {
    copies_.push_back(index);
  }
  if (step_ends) UpdateAllReady();  // sums the pushes that came early
}

void ParameterShard::Apply(Chunk& chunk, const ChunkUpdate& update,
                           const ChunkStore::Version& next) {
  GatherGradients(chunk, update);
  const kernels::OutgoingStores stores = output_->UpdateBegins(store_->elements(IndexOf(chunk)));
  chunk.buffers[next.values].encoded = false;
  double sum_of_squares = 0;
  if (averages_) {
    const LocalChunk index = IndexOf(chunk);
    sum_of_squares = SumGathered(store_->Array(index, next, 0), store_->elements(index));
  } else if (chunk.statistic_momentum > 0) {
    sum_of_squares = ApplyToStatistic(chunk, update, next);
  } else {
    sum_of_squares = ApplyOptimizer(chunk, update, next, stores);
  }
  output_->UpdateEnds(sum_of_squares);
  const double factor = MeanFactor(chunk, update);
  sum_of_squares *= factor * factor;
  KeepSquares(chunk, update, averages_ ? 0 : PartOfNorm(chunk, sum_of_squares));
}

void ParameterShard::KeepSquares(Chunk& chunk, const ChunkUpdate& update, double sum_of_squares) {
  chunk.sum_of_squares = sum_of_squares;
  if (pushes_are_updates_) PushOf(chunk, update.ranks[0]).sum_of_squares = sum_of_squares;
}

// Every rank of a job without a program has a gradient, so this looks at the first one only.
bool ParameterShard::HasGradient(const Chunk& chunk, const ChunkUpdate& update) const {
  return std::ranges::any_of(update.ranks,
                             [&](Rank rank) { return PushOf(chunk, rank).has_gradient; });
}

// Returns the factor that turns the sum of the update's gradients into their mean; at a replica,
// into what its shard has applied. A rank without a gradient counts as one with zeros. A statistic
// is a value, so its mean is over the ranks that have one. Requires: HasGradient().
double ParameterShard::MeanFactor(const Chunk& chunk, const ChunkUpdate& update) const {
  if (is_replica_) return PushOf(chunk, update.ranks[0]).factor;
  if (!has_program_) return update.gradient_factor;
  double weights = 0;
  for (const Rank rank : update.ranks) {
    const Push& push = PushOf(chunk, rank);
    if (push.has_gradient || chunk.statistic_momentum == 0) weights += push.weight;
  }
  return 1 / weights;
}

double ParameterShard::LearningRateFor(const Chunk& chunk, const ChunkUpdate& update) const {
  if (has_program_) return PushOf(chunk, update.ranks[0]).learning_rate;
  return LearningRate(plan_->spec().training(), update.step, total_steps_) *
         chunk.learning_rate_factor;
}

// Returns the chunk's part of the squared gradient norm. A statistic does not count, but a
// non-finite statistic must make the norm non-finite.
double ParameterShard::PartOfNorm(const Chunk& chunk, double sum_of_squares) {
  if (chunk.statistic_momentum == 0) return sum_of_squares;
  return std::isfinite(sum_of_squares) ? 0 : std::numeric_limits<double>::quiet_NaN();
}

void ParameterShard::GatherGradients(const Chunk& chunk, const ChunkUpdate& update) {
  gathered_ = 0;
  if (chunk.summed) {
    gradients_[gathered_++] = {.elements = SumPlace(chunk, update).data()};
    return;
  }
  for (const Rank rank : update.ranks) {
    const Push& push = PushOf(chunk, rank);
    if (push.has_gradient) gradients_[gathered_++] = push.gradient;
  }
}

// Returns the order in which kernels add the gathered gradients. One gradient needs none: it is the
// sum already, or the only rank's.
const uint8_t* ParameterShard::JoinsOfGathered() const {
  if (joins_.empty() || gathered_ == 1) return nullptr;
  CHECK_EQ(gathered_, ranks()) << "a node of the sum tree is missing";
  return joins_.data();
}

// Writes the sum of the gathered gradients to `out`. Returns its sum of squares.
double ParameterShard::SumGathered(float* out, int64_t elements) const {
  return kernels::SumGradients(out, gradients_.data(), gathered_, elements, JoinsOfGathered());
}

// A statistic moves towards the mean of the contributions. Its slots stay 0 in both versions.
double ParameterShard::ApplyToStatistic(const Chunk& chunk, const ChunkUpdate& update,
                                        const ChunkStore::Version& next) {
  const LocalChunk index = IndexOf(chunk);
  const int64_t elements = store_->elements(index);
  if (const double factor = MeanFactor(chunk, update); factor != 1) {
    const absl::Span<float> mean = pushed_->Gradient(index, update.ranks[0]);
    SumGathered(mean.data(), elements);
    for (float& element : mean) element *= static_cast<float>(factor);
    gradients_[0] = {.elements = mean.data()};
    gathered_ = 1;
  }
  return kernels::ApplyStatistic(
      store_->Array(index, next, 0), store_->Array(index, chunk.current, 0), gradients_.data(),
      gathered_, chunk.statistic_momentum * update.share, elements, JoinsOfGathered());
}

double ParameterShard::ApplyOptimizer(Chunk& chunk, const ChunkUpdate& update,
                                      const ChunkStore::Version& next,
                                      kernels::OutgoingStores stores) {
  const LocalChunk index = IndexOf(chunk);
  kernels::OptimizerBuffers buffers = BuffersOf(chunk, next);
  buffers.outgoing_stores = stores;
  if (chunk.encoder != nullptr) {
    buffers.wire_out = store_->WireValues(index, next).data();
    buffers.wire_type = TypeOf(store_->values_format(index).dtype);
    if (buffers.streaming != Streaming::kNothing) buffers.streaming = Streaming::kSlotsAndValues;
    chunk.buffers[next.values].encoded = true;
  }
  OptimizerSettings settings = SettingsFor(chunk);
  if (agreement_ != nullptr && agreement_->has_trust()) {
    settings.trust_ratio = agreement_->trust_ratio(chunk.parameter);
  } else if (is_replica_) {
    settings.trust_ratio = PushOf(chunk, update.ranks[0]).trust_ratio;
  }
  const double learning_rate = LearningRateFor(chunk, update) * update.share * update.rate_factor;
  return kernels::ApplyOptimizer(settings, learning_rate, UpdatesBefore(chunk), buffers,
                                 store_->elements(index), ClipFor(chunk, update));
}

kernels::OptimizerBuffers ParameterShard::BuffersOf(const Chunk& chunk,
                                                    const ChunkStore::Version& next) const {
  const LocalChunk index = IndexOf(chunk);
  kernels::OptimizerBuffers buffers{.gradients = gradients_.data(),
                                    .ranks = gathered_,
                                    .joins = JoinsOfGathered(),
                                    .values_in = store_->Array(index, chunk.current, 0),
                                    .values_out = store_->Array(index, next, 0)};
  if (store_->bytes() + pushed_->memory().size() > kCachedBytes)
    buffers.streaming = Streaming::kSlots;
  for (int slot = 0; slot < store_->arrays() - 1; ++slot) {
    buffers.slots_in[slot] = store_->Array(index, chunk.current, 1 + slot);
    buffers.slots_out[slot] = store_->Array(index, next, 1 + slot);
  }
  return buffers;
}

OptimizerSettings ParameterShard::SettingsFor(const Chunk& chunk) const {
  OptimizerSettings settings = settings_;
  settings.weight_decay = chunk.weight_decay;
  return settings;
}

kernels::GradientClip ParameterShard::ClipFor(const Chunk& chunk, const ChunkUpdate& update) const {
  kernels::GradientClip clip{.factor = MeanFactor(chunk, update)};
  if (agreement_ != nullptr) clip.factor *= agreement_->judgement()->factor;
  const v1::Clip& wanted = plan_->spec().training().clip();
  if (wanted.has_value()) clip.limit = wanted.value();
  return clip;
}

int64_t ParameterShard::UpdatesBefore(const Chunk& chunk) {
  return plan_->first_step() + gate_->updates(IndexOf(chunk)) -
         StateOfVersion(VersionOf(chunk)).skipped;
}

// Copies the current version, so that both versions have the values and a step back is a swap here
// too.
void ParameterShard::Skip(Chunk& chunk, const ChunkStore::Version& next) {
  store_->Copy(IndexOf(chunk), chunk.current, next);
  chunk.buffers[next.values].encoded = false;
}

// At a replica, the first chunk of a step passes its shard's verdict on to the update state; the
// other chunks only follow the verdict.
bool ParameterShard::SkipsNext(const Chunk& chunk, const ChunkUpdate& update) {
  if (agreement_ != nullptr) return agreement_->judgement()->skip;
  if (!is_replica_) return false;
  const bool skips = PushOf(chunk, update.ranks[0]).skipped;
  const bool is_first = update.step == highest_;
  if (is_first && StepsAreJudged(plan_->spec().training())) AdvanceState(update.step, skips);
  return skips;
}

// Returns the payloads that were summed, and late ones that the step was closed without.
void ParameterShard::ReturnLeases(const Chunk& chunk, const ChunkUpdate& update) {
  if (pushes_are_updates_) {
    PushOf(chunk, update.ranks[0]).lease = {};
    return;
  }
  for (const Rank rank : NumbersBelow<Rank>(ranks())) PushOf(chunk, rank).lease = {};
}

void ParameterShard::CountVersion(const Chunk& chunk, int64_t before) {
  const int64_t after = VersionOf(chunk);
  highest_ = std::max(highest_, after);
  furthest_ = std::max(furthest_, gate_->furthest(IndexOf(chunk)));
  // The scan below runs only when the last chunk leaves the lowest version.
  if (after == before || before != lowest_ || --chunks_at_lowest_ > 0) return;
  lowest_ = std::numeric_limits<int64_t>::max();
  for (const Chunk& other : chunks_) {
    if (!other.trained || VersionOf(other) > lowest_) continue;
    if (VersionOf(other) < lowest_) chunks_at_lowest_ = 0;
    lowest_ = VersionOf(other);
    ++chunks_at_lowest_;
  }
}

void ParameterShard::Start(int64_t total_steps) {
  if (started_ || retired_) return;
  started_ = true;
  total_steps_ = total_steps;
  gate_->Start(total_steps);
  // A replica takes no periodic snapshots; its shard does.
  if (!chunks_.empty() && !is_replica_) snapshots_.Start(plan_->first_step(), total_steps);
  BeginSnapshot();
  UpdateAllReady();
}

void ParameterShard::Retire() {
  started_ = false;
  retired_ = true;
  if (closing_ != nullptr) closing_->Retire();
  for (Push& push : pushes_) push.lease = {};
}

bool ParameterShard::idle() const {
  return tickets_.all_back() && (agreement_ == nullptr || agreement_->idle()) &&
         (closing_ == nullptr || closing_->idle()) && (feed_ == nullptr || feed_->idle()) &&
         (filling_ == nullptr || filling_->idle());
}

// ---------------------------------------------------------------- judged steps

absl::Span<float> ParameterShard::SumPlace(const Chunk& chunk, const ChunkUpdate& update) const {
  const LocalChunk index = IndexOf(chunk);
  return feed_ == nullptr ? pushed_->Gradient(index, update.ranks[0]) : pushed_->Sum(index);
}

// Sums the gradients of the update. Returns the chunk's part of the squared norm.
double ParameterShard::Sum(Chunk& chunk, const ChunkUpdate& update) {
  GatherGradients(chunk, update);
  double squares = 0;
  if (gathered_ > 0) {
    const absl::Span<float> sum = SumPlace(chunk, update);
    squares = SumGathered(sum.data(), static_cast<int64_t>(sum.size()));
    const double factor = MeanFactor(chunk, update);
    squares = PartOfNorm(chunk, squares * factor * factor);
  }
  ReturnLeases(chunk, update);
  chunk.summed = true;
  return squares;
}

void ParameterShard::SumIfReady(Chunk& chunk) {
  // A chunk above the lowest version has the current step already; its next sum belongs to a later
  // one.
  if (!started_ || chunk.summed || !agreement_->takes_sums() || VersionOf(chunk) != lowest_) return;
  const LocalChunk index = IndexOf(chunk);
  if (feed_ != nullptr && feed_->is_forwarding(index)) return;  // the last sum is still being sent
  const ChunkUpdate update = gate_->NextUpdate(index);
  if (update.ranks.empty()) return;
  agreement_->ChunkSummed(chunk.number, Sum(chunk, update));
}

void ParameterShard::StepJudged(int64_t step, bool skipped, int64_t skips_in_row) {
  const VersionState& next = AdvanceState(step, skipped);
  output_->StepJudged({.step = step,
                       .skipped = skipped,
                       .skips_in_row = skips_in_row,
                       .loss_scale = next.loss_scale.value()});
}

ParameterShard::VersionState& ParameterShard::AdvanceState(int64_t step, bool skipped) {
  VersionState next = StateOfVersion(step);
  if (skipped) {
    next.loss_scale.StepOverflowed();
    ++next.skipped;
  } else {
    next.loss_scale.StepWasClean();
  }
  return StateOfVersion(step + 1) = next;
}

// The squares of a statistic stay 0, because it has no direction. So do those of a chunk without a
// gradient, which is not updated.
void ParameterShard::MeasureDirections(absl::Span<double> squares) {
  for (const Chunk& chunk : chunks_) {
    if (!chunk.trained) continue;
    kernels::DirectionSquares measured;
    const ChunkUpdate update = gate_->NextUpdate(IndexOf(chunk));
    if (chunk.statistic_momentum == 0 && HasGradient(chunk, update)) {
      GatherGradients(chunk, update);
      measured = kernels::MeasureDirection(
          SettingsFor(chunk), UpdatesBefore(chunk), BuffersOf(chunk, chunk.current),
          store_->elements(IndexOf(chunk)), ClipFor(chunk, update));
    }
    const int at = 2 * ToInt(chunk.number);
    squares[at] = measured.values;
    squares[at + 1] = measured.direction;
  }
}

// ---------------------------------------------------------------- replicas

// A new sum overwrites the last one, so that must have been sent. The second update overwrites the
// plan's first version, so that must have reached the replica.
bool ParameterShard::ReplicasAllow(const Chunk& chunk, const ChunkUpdate& update) const {
  if (filling_ != nullptr && !filling_->complete()) return false;
  if (replicas_ != nullptr && !replicas_->Admits(update.step)) return false;
  if (feed_ == nullptr) return true;
  const LocalChunk index = IndexOf(chunk);
  const bool overwrites = update.step > plan_->first_step();
  return !feed_->is_forwarding(index) && !(overwrites && feed_->is_sending_state(index));
}

ReplicaFeed::Sum ParameterShard::SumToForward(const Chunk& chunk, const ChunkUpdate& update) const {
  ReplicaFeed::Sum sum{.step = update.step};
  if (HasGradient(chunk, update)) {
    sum.elements = SumPlace(chunk, update);
    // A statistic is not clipped.
    sum.factor =
        chunk.statistic_momentum > 0 ? MeanFactor(chunk, update) : ClipFor(chunk, update).factor;
  }
  if (has_program_) sum.rate_or_trust = PushOf(chunk, update.ranks[0]).learning_rate;
  if (agreement_ == nullptr) return sum;
  sum.skipped = agreement_->judgement()->skip;
  if (agreement_->has_trust() && !sum.skipped) {
    sum.rate_or_trust = agreement_->trust_ratio(chunk.parameter);
  }
  return sum;
}

// Sends the plan's first version. A chunk may be one step ahead of it, but no more, because its
// second step waits for the replica.
void ParameterShard::ReplicaConnected() {
  if (!feed_->is_filled()) {
    for (const Chunk& chunk : chunks_) {
      const LocalChunk index = IndexOf(chunk);
      const bool is_ahead = chunk.trained && VersionOf(chunk) > plan_->first_step();
      const ChunkStore::Version& first = is_ahead ? chunk.previous : chunk.current;
      for (int array = 0; array < store_->arrays(); ++array) {
        feed_->SendArray(
            index, array,
            {store_->Array(index, first, array), static_cast<size_t>(store_->elements(index))});
      }
    }
    feed_->SendUpdateState(UpdateStateAt(plan_->first_step()));
  }
  feed_->Connected();
}

void ParameterShard::ReplicaHolds(const WireHeader& header) {
  if (feed_ == nullptr || header.step <= replica_version_) return;
  replica_version_ = header.step;
  if (replicas_->OwnHeld(header.step)) UpdateAllReady();
}

void ParameterShard::ReplicasHold(const WireHeader& header) {
  if (replicas_ != nullptr && replicas_->Arrived(header)) UpdateAllReady();
}

void ParameterShard::StateArrived(const WireHeader& header) {
  filling_->Arrived(header);
  if (retired_ || !filling_->complete()) return;
  if (const absl::Status restored = RestoreState(filling_->update_state()); !restored.ok()) {
    const LogScope scope({.job = plan_->job(), .generation = plan_->generation()});
    LOG(ERROR) << plan_->job() << ", replica of shard " << shard_
               << ": cannot restore the update state: " << restored;
  }
  UpdateAllReady();
}

void ParameterShard::TellHeld() {
  output_->SendTo(Rank(0),
                  {.kind = MessageKind::kHeld,
                   .generation = plan_->generation(),
                   .job = plan_->job_number(),
                   .step = lowest_},
                  {}, nullptr);
}

// ---------------------------------------------------------------- snapshots

void ParameterShard::TakeSnapshot(uint64_t id, int64_t step) {
  if (snapshots_.Knows(id)) return;
  auto decline = [&](v1::SnapshotOutcome outcome, const std::string& why) {
    snapshots_.Decline(id);
    output_->SnapshotDeclined(id, step, outcome, why);
  };
  // A chunk beyond the step contains pushes that the snapshot must not have.
  if (furthest_ > step) {
    return decline(v1::SNAPSHOT_MISSED,
                   absl::StrCat("shard ", ToInt(shard_), " is at version ", furthest_));
  }
  if (!gate_->IsVersion(step)) {
    return decline(v1::SNAPSHOT_MISSED,
                   absl::StrCat("no average is made at step ", step, ", only every ",
                                RoundSchedule::Of(*plan_).every));
  }
  if (started_ && step > total_steps_) {
    return decline(v1::SNAPSHOT_FAILED, absl::StrCat("version ", step, " of ", total_steps_));
  }
  snapshots_.Demand(id, step);
  BeginSnapshot();
  UpdateAllReady();
}

void ParameterShard::BeginSnapshot() {
  if (!snapshots_.Begin(highest_)) return;
  writing_since_.reset();
  // No chunk is beyond the step yet, so its state is still there. Frozen chunks may be copied steps
  // later.
  snapshot_state_ = UpdateStateAt(snapshots_.current()->step);
  if (chunks_.empty()) return SnapshotIsTaken();
  copies_.clear();
  copies_seen_ = 0;
  for (const Chunk& chunk : chunks_) {
    if (!defers_copies_) {
      Hold(chunk);
    } else if (IsWanted(chunk)) {
      copies_.push_back(IndexOf(chunk));
    }
  }
}

void ParameterShard::DeferCopies() {
  defers_copies_ = true;
  copies_.reserve(chunks_.size());
}

bool ParameterShard::CopyOne() {
  while (copies_seen_ < copies_.size() && !retired_) {
    if (Hold(chunks_[copies_[copies_seen_++]])) return true;
  }
  return false;
}

// Returns whether the current snapshot wants the chunk at its present version.
bool ParameterShard::IsWanted(const Chunk& chunk) const {
  if (!snapshots_.current()) return false;
  const int64_t version = chunk.trained ? VersionOf(chunk) : snapshots_.current()->step;
  return snapshots_.Wants(IndexOf(chunk), version);
}

bool ParameterShard::Hold(const Chunk& chunk) {
  if (!IsWanted(chunk)) return false;
  const LocalChunk index = IndexOf(chunk);
  store_->Copy(index, chunk.current, ChunkStore::kHeld);
  if (snapshots_.Held(index)) SnapshotIsTaken();
  return true;
}

v1::UpdateState ParameterShard::UpdateStateAt(int64_t version) {
  const VersionState& of_version = StateOfVersion(version);
  v1::UpdateState state;
  state.set_updates(plan_->first_step() + gate_->UpdatesUntil(version) - of_version.skipped);
  state.set_loss_scale(of_version.loss_scale.value());
  state.set_clean_steps(of_version.loss_scale.clean_steps());
  return state;
}

void ParameterShard::SnapshotIsTaken() {
  output_->SnapshotTaken(MakeSnapshot(*snapshots_.current(), snapshot_state_,
                                      [](LocalChunk) { return ChunkStore::kHeld; }));
}

std::shared_ptr<const ShardSnapshot> ParameterShard::SnapshotOfHeld(uint64_t id, int64_t version) {
  CHECK(retired_ && idle());
  if (!Holds(version)) return nullptr;
  return MakeSnapshot({.id = id, .step = version}, UpdateStateAt(version), [&](LocalChunk index) {
    const Chunk& chunk = chunks_[index];
    return HasAsPrevious(index, version) ? chunk.previous : chunk.current;
  });
}

std::shared_ptr<const ShardSnapshot> ParameterShard::MakeSnapshot(
    const SnapshotQueue::Request& request, const v1::UpdateState& state,
    absl::FunctionRef<ChunkStore::Version(LocalChunk index)> place) {
  auto snapshot = std::make_shared<ShardSnapshot>(ShardSnapshot{
      .shard = shard_, .id = request.id, .step = request.step, .memory = store_->slab()});
  snapshot->update_state = state;
  for (const LocalChunk index : chunks()) {
    const ChunkStore::Version from = place(index);
    for (int array = 0; array < store_->arrays(); ++array) {
      snapshot->pieces.push_back(
          {store_->id(index),
           store_->SlotOf(index, array),
           {store_->Array(index, from, array), static_cast<size_t>(store_->elements(index))}});
    }
  }
  return snapshot;
}

// Passes over only snapshots that delay an update. If workers have paused at the step of the
// waiting snapshot, no update waits, and they may be waiting for that snapshot.
void ParameterShard::PassOverSnapshots(absl::FunctionRef<Clock::time_point()> clock) {
  if (!snapshots_.taken()) return;
  if (!writing_since_) writing_since_ = clock();
  if (snapshots_.next_step() > highest_ || clock() - *writing_since_ < kWriteHoldsUpMax) return;
  const auto is_held_up = [this](const Chunk& chunk) { return IsHeldUp(chunk); };
  while (std::ranges::any_of(chunks_, is_held_up)) {
    const std::optional<SnapshotQueue::Request> passed = snapshots_.PassOver(highest_);
    if (!passed) return;
    const std::string why =
        absl::StrCat("passed over because training would wait for it: the snapshot of step ",
                     snapshots_.current()->step, " is still being written after ",
                     absl::FormatDuration(absl::FromChrono(kWriteHoldsUpMax)), " (the limit)");
    const LogScope scope({.job = plan_->job(), .generation = plan_->generation()});
    LOG(WARNING) << plan_->job() << ", shard " << shard_ << ": the snapshot of step "
                 << passed->step << " is " << why;
    output_->SnapshotDeclined(passed->id, passed->step, v1::SNAPSHOT_MISSED, why);
    UpdateAllReady();
  }
}

void ParameterShard::SnapshotWritten(uint64_t id, int64_t step) {
  if (!snapshots_.Written(id, step)) return;
  BeginSnapshot();
  UpdateAllReady();
}

}  // namespace muster

#include "services/ps/parameter_shard.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/cluster/limits.h"
#include "lib/cluster/parameter_table.h"
#include "lib/graph/initializer.h"
#include "lib/status/status.h"
#include "lib/transport/crc32c.h"

namespace muster {
namespace {

using kernels::OptimizerRule;
using kernels::OptimizerSettings;

constexpr int64_t kFloatsPerLine = 16;  // 64 bytes
constexpr int kTokenBytes = GradientSquares::kTokenBytes;
constexpr size_t kTokenDoubles = kTokenBytes / sizeof(double);

OptimizerSettings AdamSettings(OptimizerRule rule, const v1::Adam& adam) {
  return {.rule = rule,
          .beta1 = adam.has_beta1() ? adam.beta1() : 0.9,
          .beta2 = adam.has_beta2() ? adam.beta2() : 0.999,
          .epsilon = adam.has_epsilon() ? adam.epsilon() : 1e-8,
          .weight_decay = adam.weight_decay()};
}

OptimizerSettings SettingsOf(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd: {
      const v1::Sgd& sgd = optimizer.sgd();
      return {.rule = sgd.momentum() == 0 ? OptimizerRule::kSgd
                      : sgd.nesterov()    ? OptimizerRule::kSgdNesterov
                                          : OptimizerRule::kSgdMomentum,
              .momentum = sgd.momentum(),
              .weight_decay = sgd.weight_decay()};
    }
    case v1::Optimizer::kAdam:
      return AdamSettings(OptimizerRule::kAdam, optimizer.adam());
    case v1::Optimizer::kAdamw:
      return AdamSettings(OptimizerRule::kAdamw, optimizer.adamw());
    case v1::Optimizer::kAdagrad: {
      const v1::Adagrad& adagrad = optimizer.adagrad();
      return {.rule = OptimizerRule::kAdagrad,
              .epsilon = adagrad.has_epsilon() ? adagrad.epsilon() : 1e-10,
              .weight_decay = adagrad.weight_decay()};
    }
    case v1::Optimizer::kRmsprop: {
      const v1::Rmsprop& rmsprop = optimizer.rmsprop();
      return {.rule = OptimizerRule::kRmsprop,
              .alpha = rmsprop.has_alpha() ? rmsprop.alpha() : 0.99,
              .epsilon = rmsprop.has_epsilon() ? rmsprop.epsilon() : 1e-8,
              .weight_decay = rmsprop.weight_decay()};
    }
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  LOG(FATAL) << "a plan without optimizer";
}

int64_t Stride(int64_t elements) {
  return (elements + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

// Floats of one chunk: two versions and the held copy, each of values and slots, and the gradients.
int64_t ChunkFloats(const v1::JobPlan& plan, const v1::PlanChunk& chunk) {
  const int64_t slots =
      kernels::OptimizerSlots(SettingsOf(plan.spec().training().optimizer()).rule);
  return Stride(chunk.elements()) * (3 * (1 + slots) + plan.workers_size());
}

// What a chunk adds to the square of the gradient's norm. A statistic is no part of it, but one
// that is not finite must not get through.
double PartOfNorm(bool is_statistic, double sum_of_squares) {
  if (!is_statistic) return sum_of_squares;
  return std::isfinite(sum_of_squares) ? 0 : std::numeric_limits<double>::quiet_NaN();
}

absl::Status BadPlan(const v1::JobPlan& plan, std::string why) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("plan of ", plan.job(), ", generation ",
                                                            plan.generation(), ": ", why)),
                    "BAD_PLAN");
}

absl::Status CheckParameter(const v1::JobPlan& plan, const v1::Parameter& parameter) {
  const double momentum = parameter.statistic_momentum();
  if (!parameter.has_statistic_momentum() || (momentum > 0 && momentum <= 1)) {
    return absl::OkStatus();
  }
  return BadPlan(plan, absl::StrCat("parameter '", parameter.name(), "': statistic momentum ",
                                    momentum, " is not in (0, 1]"));
}

absl::Status CheckChunk(const v1::JobPlan& plan, int id) {
  const v1::PlanChunk& chunk = plan.chunks(id);
  if (chunk.parameter() < 0 || chunk.parameter() >= plan.graph().parameters_size()) {
    return BadPlan(plan, absl::StrCat("chunk ", id, " is of parameter ", chunk.parameter(), " of ",
                                      plan.graph().parameters_size()));
  }
  const int64_t elements = ElementCount(plan.graph().parameters(chunk.parameter()));
  if (chunk.elements() < 1 || chunk.elements() > limits::kChunkBytesMax / 4 || chunk.offset() < 0 ||
      chunk.offset() > elements - chunk.elements()) {
    return BadPlan(plan, absl::StrCat("chunk ", id, " is elements [", chunk.offset(), ", +",
                                      chunk.elements(), ") of ", elements));
  }
  if (chunk.shard() < 0 || chunk.shard() >= plan.shards_size()) {
    return BadPlan(plan, absl::StrCat("chunk ", id, " is on shard ", chunk.shard(), " of ",
                                      plan.shards_size()));
  }
  return absl::OkStatus();
}

absl::Span<const std::byte> BytesOf(const float* values, int64_t elements) {
  return {reinterpret_cast<const std::byte*>(values),
          static_cast<size_t>(elements) * sizeof(float)};
}

}  // namespace

absl::Status ParameterShard::CheckPlan(const v1::JobPlan& plan) {
  if (plan.workers_size() < 1 || plan.workers_size() > limits::kWorkersMax) {
    return BadPlan(plan, absl::StrCat(plan.workers_size(), " workers; 1 to ", limits::kWorkersMax,
                                      " are possible"));
  }
  if (plan.chunks_size() > limits::kChunksMax) {
    return BadPlan(plan,
                   absl::StrCat(plan.chunks_size(), " chunks; the limit is ", limits::kChunksMax));
  }
  if (plan.session_token().size() != kTokenBytes) {
    return BadPlan(plan, absl::StrCat("a token of ", plan.session_token().size(), " bytes"));
  }
  if (plan.spec().training().optimizer().kind_case() == v1::Optimizer::KIND_NOT_SET) {
    return BadPlan(plan, "no optimizer");
  }
  if (plan.first_step() < 0) return BadPlan(plan, absl::StrCat("first step ", plan.first_step()));
  const v1::TrainingSpec& training = plan.spec().training();
  if (training.precision() == v1::FP16 && !(training.loss_scale().initial() >= LossScale::kMin &&
                                            training.loss_scale().initial() <= LossScale::kMax)) {
    return BadPlan(plan, absl::StrCat("loss scale ", training.loss_scale().initial()));
  }
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    RETURN_IF_ERROR(CheckParameter(plan, parameter));
  }
  for (int id = 0; id < plan.chunks_size(); ++id) RETURN_IF_ERROR(CheckChunk(plan, id));
  const bool shard_0_has_chunks = std::any_of(plan.chunks().begin(), plan.chunks().end(),
                                              [](const auto& chunk) { return chunk.shard() == 0; });
  if (StepsAreJudged(training) && !shard_0_has_chunks) {
    return BadPlan(plan, "shard 0, which judges the steps, has no chunks");
  }
  return absl::OkStatus();
}

int64_t ParameterShard::BytesNeeded(const v1::JobPlan& plan, int shard) {
  int64_t floats = 0;
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    if (chunk.shard() == shard) floats += ChunkFloats(plan, chunk);
  }
  return floats * sizeof(float);
}

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(
    std::shared_ptr<const v1::JobPlan> plan, int shard,
    std::shared_ptr<MemoryBudget::Reservation> reservation) {
  ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab,
                   Slab::Allocate(BytesNeeded(*plan, shard), std::move(reservation)));
  return absl::WrapUnique(new ParameterShard(std::move(plan), shard, std::move(slab)));
}

ParameterShard::ParameterShard(std::shared_ptr<const v1::JobPlan> plan, int shard,
                               std::shared_ptr<Slab> slab)
    : plan_(std::move(plan)),
      shard_(shard),
      slab_(std::move(slab)),
      settings_(SettingsOf(plan_->spec().training().optimizer())),
      slots_(kernels::OptimizerSlots(settings_.rule)),
      index_of_(plan_->chunks_size(), -1),
      gradients_(plan_->workers_size()),
      states_{VersionState{LossScale(plan_->spec().training())},
              VersionState{LossScale(plan_->spec().training())},
              VersionState{LossScale(plan_->spec().training())}},
      judged_(StepsAreJudged(plan_->spec().training())) {
  auto* memory = reinterpret_cast<float*>(slab_->memory().data());
  for (int id = 0; id < plan_->chunks_size(); ++id) {
    const v1::PlanChunk& planned = plan_->chunks(id);
    if (planned.shard() != shard) continue;
    index_of_[id] = chunk_count();
    const v1::Parameter& parameter = plan_->graph().parameters(planned.parameter());
    chunks_.push_back({.id = id,
                       .weight_decay = parameter.weight_decay(),
                       .statistic_momentum = parameter.statistic_momentum(),
                       .elements = planned.elements(),
                       .memory = memory,
                       .stride = Stride(planned.elements()),
                       .version = plan_->first_step()});
    memory += ChunkFloats(*plan_, planned);
  }
  push_states_.assign(chunks_.size() * ranks(), PushState::kAwaited);
  restored_bytes_.assign(chunks_.size() * (1 + slots_), 0);
  lowest_ = chunks_.empty() ? std::numeric_limits<int64_t>::max() : plan_->first_step();
  highest_ = plan_->first_step();
  chunks_at_lowest_ = chunk_count();
  if (!judged_) return;
  squares_.resize(kTokenDoubles + chunks_.size());
  std::memcpy(squares_.data(), plan_->session_token().data(), kTokenBytes);
  if (shard_ == 0) all_squares_ = std::make_unique<GradientSquares>(*plan_);
}

float* ParameterShard::Array(const Chunk& chunk, int buffer, int slot) const {
  return chunk.memory + (buffer * (1 + slots_) + slot) * chunk.stride;
}

float* ParameterShard::Gradient(const Chunk& chunk, int rank) const {
  return chunk.memory + (3 * (1 + slots_) + rank) * chunk.stride;
}

ParameterShard::PushState& ParameterShard::StateOf(const Chunk& chunk, int rank) {
  return push_states_[(&chunk - chunks_.data()) * ranks() + rank];
}

ParameterShard::Chunk* ParameterShard::Find(uint32_t id) {
  if (id >= index_of_.size() || index_of_[id] < 0) return nullptr;
  return &chunks_[index_of_[id]];
}

absl::Span<const float> ParameterShard::values(int index) const {
  const Chunk& chunk = chunks_[index];
  return {Array(chunk, chunk.current, 0), static_cast<size_t>(chunk.elements)};
}

// ---------------------------------------------------------------- initial values

void ParameterShard::Initialize(int index) {
  const Chunk& chunk = chunks_[index];
  const v1::PlanChunk& planned = plan_->chunks(chunk.id);
  FillInitialValues(plan_->graph().parameters(planned.parameter()).initializer(),
                    plan_->spec().training().seed(), planned.parameter(), planned.offset(),
                    {Array(chunk, chunk.current, 0), static_cast<size_t>(chunk.elements)});
}

void ParameterShard::BeginRestore() {
  std::fill(restored_bytes_.begin(), restored_bytes_.end(), 0);
}

absl::Status ParameterShard::RestoreSlice(const v1::ShardSlice& slice) {
  const Chunk* chunk = slice.chunk() < 0 ? nullptr : Find(slice.chunk());
  if (chunk == nullptr || slice.slot() < 0 || slice.slot() > slots_) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard_, " has no chunk ", slice.chunk(), ", slot ", slice.slot()));
  }
  const auto size = static_cast<int64_t>(slice.data().size());
  int64_t& restored = restored_bytes_[(chunk - chunks_.data()) * (1 + slots_) + slice.slot()];
  if (slice.offset_bytes() != restored ||
      size > chunk->elements * static_cast<int64_t>(sizeof(float)) - restored) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", slice.chunk(), ", slot ", slice.slot(), ": bytes [", slice.offset_bytes(), ", +",
        size, ") do not follow byte ", restored, " of ", chunk->elements * sizeof(float)));
  }
  const uint32_t crc =
      Crc32c({reinterpret_cast<const std::byte*>(slice.data().data()), slice.data().size()});
  if (crc != slice.crc32c()) {
    return absl::DataLossError(absl::StrCat("chunk ", slice.chunk(), ", slot ", slice.slot(),
                                            ", bytes [", restored, ", +", size,
                                            "): checksum mismatch"));
  }
  std::memcpy(reinterpret_cast<std::byte*>(Array(*chunk, chunk->current, slice.slot())) + restored,
              slice.data().data(), size);
  restored += size;
  return slice.has_update_state() ? RestoreState(slice.update_state()) : absl::OkStatus();
}

absl::Status ParameterShard::RestoreState(const v1::UpdateState& state) {
  if (state.updates() < 0 || state.updates() > plan_->first_step()) {
    return absl::InvalidArgumentError(
        absl::StrCat(state.updates(), " updates in ", plan_->first_step(), " steps"));
  }
  for (VersionState& version : states_) {
    version.skipped = plan_->first_step() - state.updates();
    RETURN_IF_ERROR(version.loss_scale.Restore(state));
  }
  return absl::OkStatus();
}

absl::Status ParameterShard::FinishRestore() const {
  for (size_t i = 0; i < restored_bytes_.size(); ++i) {
    const Chunk& chunk = chunks_[i / (1 + slots_)];
    const int64_t expected = chunk.elements * static_cast<int64_t>(sizeof(float));
    if (restored_bytes_[i] == expected) continue;
    return absl::DataLossError(absl::StrCat("chunk ", chunk.id, ", slot ", i % (1 + slots_), ": ",
                                            restored_bytes_[i], " bytes of ", expected,
                                            " in the checkpoint"));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- messages

ParameterShard::Placement ParameterShard::PlacePush(const WireHeader& header) {
  Chunk* chunk = Find(header.chunk);
  if (chunk == nullptr) return {.refusal = RefusalReason::kWrongChunk};
  if (header.dtype != WireDType::kF32 || header.codec != WireCodec::kRaw) {
    return {.refusal = RefusalReason::kBadHeader};
  }
  if (header.length != chunk->elements * sizeof(float)) {
    return {.refusal = RefusalReason::kWrongLength};
  }
  const int rank = static_cast<int>(header.rank);
  const bool of_last = header.step == chunk->version - 1 && header.step >= plan_->first_step();
  if (of_last) return {.repeat = true};
  if (header.step != chunk->version || (started_ && header.step >= total_steps_)) {
    return {.refusal = RefusalReason::kWrongStep};
  }
  if (StateOf(*chunk, rank) != PushState::kAwaited) return {.repeat = true};
  StateOf(*chunk, rank) = PushState::kPlacing;
  ++placing_;
  return {.memory = {reinterpret_cast<std::byte*>(Gradient(*chunk, rank)), header.length}};
}

void ParameterShard::PushArrived(const WireHeader& header) {
  Chunk* chunk = Find(header.chunk);
  CHECK(chunk != nullptr);
  PushState& state = StateOf(*chunk, static_cast<int>(header.rank));
  if (state != PushState::kPlacing) return;  // given up by RankLost
  state = PushState::kIn;
  --placing_;
  ++chunk->pushes_in;
  UpdateIfReady(*chunk);
}

void ParameterShard::AnswerRepeat(const WireHeader& header) {
  Chunk* chunk = Find(header.chunk);
  if (chunk == nullptr || header.step != chunk->version - 1) return;
  SendParams(*chunk, chunk->current, static_cast<int>(header.rank),
             {.step = chunk->version, .scalar = chunk->sum_of_squares});
}

RefusalReason ParameterShard::Fetch(const WireHeader& header) {
  Chunk* chunk = Find(header.chunk);
  if (chunk == nullptr) return RefusalReason::kWrongChunk;
  const int rank = static_cast<int>(header.rank);
  if (header.step == chunk->version) {
    SendParams(*chunk, chunk->current, rank,
               {.step = chunk->version, .scalar = chunk->sum_of_squares});
    return RefusalReason::kNone;
  }
  if (header.step == chunk->version - 1 && header.step >= plan_->first_step()) {
    SendParams(*chunk, 1 - chunk->current, rank, {.step = chunk->version - 1});
    return RefusalReason::kNone;
  }
  return RefusalReason::kWrongStep;
}

void ParameterShard::RankLost(int rank) {
  for (Chunk& chunk : chunks_) {
    PushState& state = StateOf(chunk, rank);
    if (state != PushState::kPlacing) continue;
    state = PushState::kAwaited;
    --placing_;
  }
}

void ParameterShard::SendParams(Chunk& chunk, int buffer, int rank, WireHeader header) {
  header.kind = MessageKind::kParams;
  header.dtype = WireDType::kF32;
  header.generation = plan_->generation();
  header.job = plan_->job_number();
  header.chunk = static_cast<uint32_t>(chunk.id);
  header.rank = static_cast<uint32_t>(rank);
  header.length = chunk.elements * sizeof(float);
  header.loss_scale = StateOfVersion(header.step).loss_scale.value();
  ++chunk.sending[buffer];
  ++sending_;
  // Two words, which AnyInvocable keeps inside itself.
  const uint64_t sent = static_cast<uint64_t>(&chunk - chunks_.data()) << 1 | buffer;
  output_->SendTo(rank, header, BytesOf(Array(chunk, buffer, 0), chunk.elements),
                  [this, sent](const absl::Status&) {
                    Chunk& chunk = chunks_[sent >> 1];
                    --sending_;
                    if (--chunk.sending[sent & 1] == 0) UpdateIfReady(chunk);
                  });
}

// ---------------------------------------------------------------- updates

bool ParameterShard::MayUpdate(const Chunk& chunk) const {
  if (!started_ || chunk.pushes_in < ranks() || chunk.version >= total_steps_) return false;
  if (judged_ && (!judgement_ || chunk.version != lowest_)) return false;
  if (chunk.sending[1 - chunk.current] > 0) return false;  // its memory is still being read
  if (snapshot_ && snapshot_->step == chunk.version && !chunk.held) return false;
  return std::none_of(waiting_.begin(), waiting_.end(), [&](const SnapshotRequest& request) {
    return request.step <= chunk.version;
  });
}

void ParameterShard::UpdateIfReady(Chunk& chunk) {
  if (judged_) SumIfReady(chunk);
  if (MayUpdate(chunk)) Update(chunk);
}

void ParameterShard::Update(Chunk& chunk) {
  const int next = 1 - chunk.current;
  if (judgement_ && judgement_->skip) {
    Skip(chunk, next);
  } else {
    Apply(chunk, next);
  }
  if (judged_) chunk.sum_of_squares = squares_[kTokenDoubles + (&chunk - chunks_.data())];

  const int64_t lowest_before = lowest_;
  chunk.current = next;
  ++chunk.version;
  chunk.pushes_in = 0;
  chunk.summed = false;
  for (int rank = 0; rank < ranks(); ++rank) StateOf(chunk, rank) = PushState::kAwaited;
  CountVersion(chunk);
  if (lowest_ > lowest_before) {
    judgement_.reset();
    chunks_summed_ = 0;
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    SendParams(chunk, chunk.current, rank, {.step = chunk.version, .scalar = chunk.sum_of_squares});
  }
  HoldIfDue(chunk);
  if (judged_ && lowest_ > lowest_before) UpdateAllReady();  // what came early is summed now
}

void ParameterShard::Apply(Chunk& chunk, int next) {
  kernels::OptimizerBuffers buffers{.gradients = gradients_.data(),
                                    .ranks = judged_ ? 1 : ranks(),
                                    .values_in = Array(chunk, chunk.current, 0),
                                    .values_out = Array(chunk, next, 0)};
  for (int slot = 0; slot < slots_; ++slot) {
    buffers.slots_in[slot] = Array(chunk, chunk.current, 1 + slot);
    buffers.slots_out[slot] = Array(chunk, next, 1 + slot);
  }
  for (int rank = 0; rank < ranks(); ++rank) gradients_[rank] = Gradient(chunk, rank);
  output_->UpdateBegins();
  if (chunk.statistic_momentum > 0) {
    // Slots stay 0 in both buffers.
    chunk.sum_of_squares =
        kernels::ApplyStatistic(buffers.values_out, buffers.values_in, buffers.gradients,
                                buffers.ranks, chunk.statistic_momentum, chunk.elements);
  } else {
    OptimizerSettings settings = settings_;
    if (!chunk.weight_decay) settings.weight_decay = 0;
    const v1::TrainingSpec& training = plan_->spec().training();
    kernels::GradientClip clip;
    if (judgement_) clip.factor = judgement_->factor;
    if (training.clip().has_value()) clip.limit = training.clip().value();
    chunk.sum_of_squares = kernels::ApplyOptimizer(
        settings, LearningRate(training, chunk.version, total_steps_),
        chunk.version - StateOfVersion(chunk.version).skipped, buffers, chunk.elements, clip);
  }
  output_->UpdateEnds(chunk.sum_of_squares);
  chunk.sum_of_squares = PartOfNorm(chunk.statistic_momentum > 0, chunk.sum_of_squares);
}

// Both buffers have it: a step back would be a swap here as well.
void ParameterShard::Skip(Chunk& chunk, int next) {
  std::memcpy(Array(chunk, next, 0), Array(chunk, chunk.current, 0),
              (1 + slots_) * chunk.stride * sizeof(float));
}

void ParameterShard::UpdateAllReady() {
  for (Chunk& chunk : chunks_) UpdateIfReady(chunk);
}

void ParameterShard::CountVersion(const Chunk& chunk) {
  highest_ = std::max(highest_, chunk.version);
  if (chunk.version != lowest_ + 1 || --chunks_at_lowest_ > 0) return;
  lowest_ = std::min_element(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) {
              return a.version < b.version;
            })->version;
  chunks_at_lowest_ = static_cast<int>(std::count_if(
      chunks_.begin(), chunks_.end(), [this](const Chunk& c) { return c.version == lowest_; }));
}

void ParameterShard::Start(int64_t total_steps) {
  if (started_) return;
  started_ = true;
  total_steps_ = total_steps;
  if (total_steps == plan_->first_step() && !chunks_.empty()) {
    last_due_ = total_steps;
    waiting_.push_back({0, total_steps});
    ClaimHeldBuffer();
  }
  UpdateAllReady();
}

// ---------------------------------------------------------------- judged steps

void ParameterShard::SumIfReady(Chunk& chunk) {
  const bool ready = started_ && !chunk.summed && chunk.pushes_in == ranks() &&
                     chunk.version == lowest_ && chunk.version < total_steps_;
  if (!ready || squares_sending_) return;
  for (int rank = 0; rank < ranks(); ++rank) gradients_[rank] = Gradient(chunk, rank);
  const double squares =
      kernels::SumGradients(Gradient(chunk, 0), gradients_.data(), ranks(), chunk.elements);
  squares_[kTokenDoubles + (&chunk - chunks_.data())] =
      PartOfNorm(chunk.statistic_momentum > 0, squares);
  chunk.summed = true;
  if (++chunks_summed_ == chunk_count()) SendSquares();
}

WireHeader ParameterShard::HeaderToShard(MessageKind kind, int64_t step) const {
  return {.kind = kind,
          .generation = plan_->generation(),
          .job = plan_->job_number(),
          .step = step,
          .rank = static_cast<uint32_t>(shard_)};
}

void ParameterShard::SendSquares() {
  WireHeader header = HeaderToShard(MessageKind::kSquares, lowest_);
  header.length = squares_.size() * sizeof(double);
  const absl::Span<const std::byte> message(reinterpret_cast<const std::byte*>(squares_.data()),
                                            header.length);
  if (shard_ == 0) {
    const absl::Span<std::byte> place = PlaceSquares(header);
    CHECK_EQ(place.size(), message.size());
    std::memcpy(place.data(), message.data(), message.size());
    return SquaresArrived(header, /*token_is_right=*/true);
  }
  squares_sending_ = true;
  ++sending_;
  output_->SendToShard(0, header, message, [this](const absl::Status&) {
    --sending_;
    squares_sending_ = false;
    UpdateAllReady();
  });
}

absl::Span<std::byte> ParameterShard::PlaceSquares(const WireHeader& header) {
  if (all_squares_ == nullptr) return {};
  const auto place = all_squares_->Place(header.step, static_cast<int>(header.rank), header.length);
  if (!place.empty()) ++placing_;
  return place;
}

void ParameterShard::SquaresArrived(const WireHeader& header, bool token_is_right) {
  const int shard = static_cast<int>(header.rank);
  if (!all_squares_->IsPlacing(shard)) return;  // given up by ShardLost
  --placing_;
  if (!token_is_right) return all_squares_->Reject(shard);
  if (all_squares_->Accept(shard)) GiveVerdict();
}

void ParameterShard::ShardLost(int shard) {
  if (all_squares_ == nullptr || !all_squares_->IsPlacing(shard)) return;
  --placing_;
  all_squares_->Reject(shard);
}

void ParameterShard::GiveVerdict() {
  WireHeader header = HeaderToShard(MessageKind::kVerdict, all_squares_->step());
  header.scalar = all_squares_->TakeTotal();
  header.length = kTokenBytes;
  const absl::Span<const std::byte> token(
      reinterpret_cast<const std::byte*>(plan_->session_token().data()), kTokenBytes);
  for (int shard = 1; shard < plan_->shards_size(); ++shard) {
    if (!all_squares_->Awaits(shard)) continue;
    ++sending_;
    output_->SendToShard(shard, header, token, [this](const absl::Status&) { --sending_; });
  }
  Judge(header.scalar);
}

RefusalReason ParameterShard::VerdictArrived(const WireHeader& header) {
  const bool awaited = judged_ && shard_ != 0 && !judgement_ && header.step == lowest_ &&
                       chunks_summed_ == chunk_count();
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
  StateOfVersion(lowest_ + 1) = next;
  judgement_ = judgement;
  output_->StepJudged({.step = lowest_,
                       .skipped = judgement.skip,
                       .skips_in_row = skips_in_row_,
                       .loss_scale = next.loss_scale.value()});
  UpdateAllReady();
}

// ---------------------------------------------------------------- snapshots

// A chunk leaves a step for which a snapshot was asked only after it was copied (MayUpdate). There
// is memory for one copy: requests are served by step, and the next one begins when the last was
// written.

void ParameterShard::TakeSnapshot(uint64_t id, int64_t step) {
  const bool known = id == last_snapshot_ || (snapshot_ && snapshot_->id == id) ||
                     std::any_of(waiting_.begin(), waiting_.end(),
                                 [&](const SnapshotRequest& request) { return request.id == id; });
  if (known) return;
  if (highest_ > step) {
    last_snapshot_ = id;
    output_->SnapshotDeclined(id, step, v1::SNAPSHOT_MISSED,
                              absl::StrCat("shard ", shard_, " is at version ", highest_));
    return;
  }
  if (started_ && step > total_steps_) {
    last_snapshot_ = id;
    output_->SnapshotDeclined(id, step, v1::SNAPSHOT_FAILED,
                              absl::StrCat("version ", step, " of ", total_steps_));
    return;
  }
  if (chunks_.empty()) highest_ = step;  // has nothing to wait for
  auto superseded = std::remove_if(waiting_.begin(), waiting_.end(),
                                   [](const SnapshotRequest& request) { return request.id != 0; });
  waiting_.erase(superseded, waiting_.end());
  waiting_.push_back({id, step});
  ClaimHeldBuffer();
  UpdateAllReady();
}

void ParameterShard::HoldIfDue(Chunk& chunk) {
  const int64_t every = plan_->spec().checkpoint().every_steps();
  const bool due = chunk.version == total_steps_ || (every > 0 && chunk.version % every == 0);
  if (due && last_due_ < chunk.version) {
    last_due_ = chunk.version;
    waiting_.push_back({0, chunk.version});
  }
  if (snapshot_ && snapshot_->step == chunk.version && !chunk.held) {
    Hold(chunk);
    FinishHolding();
  } else {
    ClaimHeldBuffer();
  }
}

void ParameterShard::ClaimHeldBuffer() {
  if (snapshot_ || waiting_.empty()) return;
  auto first = std::min_element(
      waiting_.begin(), waiting_.end(),
      [](const SnapshotRequest& a, const SnapshotRequest& b) { return a.step < b.step; });
  if (first->step > highest_) return;
  snapshot_ = *first;
  waiting_.erase(first);
  snapshot_taken_ = false;
  chunks_held_ = 0;
  for (Chunk& chunk : chunks_) {
    chunk.held = false;
    if (chunk.version == snapshot_->step) Hold(chunk);
  }
  FinishHolding();
}

void ParameterShard::Hold(Chunk& chunk) {
  std::memcpy(Array(chunk, kHeldBuffer, 0), Array(chunk, chunk.current, 0),
              (1 + slots_) * chunk.stride * sizeof(float));
  chunk.held = true;
  ++chunks_held_;
}

void ParameterShard::FinishHolding() {
  if (chunks_held_ < chunk_count() || snapshot_taken_) return;
  snapshot_taken_ = true;
  auto taken = std::make_shared<ShardSnapshot>(ShardSnapshot{
      .shard = shard_, .id = snapshot_->id, .step = snapshot_->step, .memory = slab_});
  const VersionState& state = StateOfVersion(snapshot_->step);
  taken->update_state.set_updates(snapshot_->step - state.skipped);
  taken->update_state.set_loss_scale(state.loss_scale.value());
  taken->update_state.set_clean_steps(state.loss_scale.clean_steps());
  for (const Chunk& chunk : chunks_) {
    for (int slot = 0; slot <= slots_; ++slot) {
      taken->pieces.push_back(
          {chunk.id, slot, {Array(chunk, kHeldBuffer, slot), static_cast<size_t>(chunk.elements)}});
    }
  }
  output_->SnapshotTaken(std::move(taken));
}

void ParameterShard::SnapshotWritten(uint64_t id, int64_t step) {
  if (!snapshot_ || !snapshot_taken_ || snapshot_->id != id || snapshot_->step != step) return;
  if (id != 0) last_snapshot_ = id;
  snapshot_.reset();
  ClaimHeldBuffer();
  UpdateAllReady();
}

}  // namespace muster

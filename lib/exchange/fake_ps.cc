#include "lib/exchange/fake_ps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/codec/codec.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/graph/initializer.h"
#include "lib/plan/chunk_placement.h"
#include "lib/plan/parameter_table.h"
#include "lib/plan/sum_tree.h"

namespace muster {
namespace {

constexpr absl::string_view kToken = "0123456789abcdef";

}  // namespace

FakeShard::FakeShard(InProcessNetwork& network)
    : transport_(network.MakeTransport()), address_(transport_->address()) {
  transport_->SetReceiver(this);
}

void FakeShard::Serve(std::shared_ptr<const v1::JobPlan> plan, int shard, int64_t total_steps,
                      const std::vector<std::vector<float>>& values) {
  plan_ = std::move(plan);
  rounds_ = RoundSchedule::Of(*plan_);
  rounds_.total_steps = total_steps;
  if (const int64_t logical = plan_->spec().resources().workers().logical(); logical > 0) {
    const SumNode root = {.leaves = logical};
    joins_ = JoinsOf(root, CutNode(root, plan_->workers_size()));
  }
  transport_->OpenSession(plan_->job_number(), plan_->generation(),
                          *SessionToken::FromBytes(plan_->session_token()));
  for (int c = 0; c < plan_->chunks_size(); ++c) {
    const v1::PlanChunk& cut = plan_->chunks(c);
    if (cut.shard() != shard) continue;
    absl::MutexLock lock(&mu_);
    Chunk& chunk = chunks_[c];
    chunk.version = plan_->first_step();
    chunk.values.resize(cut.elements());
    if (cut.slot() > 0) continue;
    if (!values.empty()) {
      std::copy_n(values[cut.parameter()].begin() + cut.offset(), cut.elements(),
                  chunk.values.begin());
      continue;
    }
    FillInitialValues(plan_->graph().parameters(cut.parameter()).initializer(),
                      plan_->spec().training().seed(), cut.parameter(), cut.offset(),
                      absl::MakeSpan(chunk.values));
  }
  thread_ = std::jthread([this] { Run(); });
}

void FakeShard::Run() {
  auto may_go_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !stall_ || stopping_; };
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      is_stalled_ = stall_;
      mu_.Await(absl::Condition(&may_go_on));
      is_stalled_ = false;
      if (stopping_) break;
    }
    if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(1));
  }
}

void FakeShard::Stall(bool stall) {
  {
    absl::MutexLock lock(&mu_);
    stall_ = stall;
  }
  transport_->Wake();
  absl::MutexLock lock(&mu_);
  if (stall) mu_.Await(absl::Condition(&is_stalled_));
}

void FakeShard::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  transport_->Wake();
  thread_.join();
  transport_.reset();
}

std::vector<int> FakeShard::pushed_chunks() const {
  absl::MutexLock lock(&mu_);
  return pushed_;
}

void FakeShard::AwaitPushes(int64_t pushes) const {
  absl::MutexLock lock(&mu_);
  auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return pushes_ >= pushes; };
  CHECK(AwaitFor(&mu_, absl::Condition(&came), absl::Seconds(30)))
      << pushes_ << " pushes of " << pushes;
}

std::vector<float> FakeShard::values(int chunk) const {
  absl::MutexLock lock(&mu_);
  return chunks_.at(chunk).values;
}

void FakeShard::RefuseChunk(int chunk, RefusalReason reason) { refusals_[chunk] = reason; }

void FakeShard::Claim(int shard, int chunk) {
  claimed_shard_ = shard;
  claimed_chunk_ = chunk;
}

PayloadPlace FakeShard::PlacePayload(PeerId, const WireHeader& header) {
  if (header.kind == MessageKind::kPush) ++pushes_placed_;
  incoming_.resize(header.length);
  return absl::MakeSpan(incoming_);
}

void FakeShard::Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                         PayloadLease) {
  CHECK(from == workers_.at(header.rank));
  if (header.kind == MessageKind::kHello) {
    WireHeader answer = header;
    if (const int claimed = claimed_shard_; claimed >= 0) answer.chunk = claimed;
    transport_->Send(from, answer, {}, {});
    return;
  }
  const int index = static_cast<int>(header.chunk);
  absl::MutexLock lock(&mu_);
  Chunk& chunk = chunks_.at(index);
  if (header.kind == MessageKind::kFetch) return Answer(header.rank, index, chunk);
  CHECK(header.kind == MessageKind::kPush);
  ++pushes_;
  if (header.rank == 0) pushed_.push_back(index);
  if (refusals_.contains(index)) {
    WireHeader refusal = header;
    refusal.kind = MessageKind::kRefused;
    refusal.dtype = WireDType::kNone;
    refusal.reason = refusals_[index];
    refusal.length = 0;
    transport_->Send(workers_.at(header.rank), refusal, {}, {});
    return;
  }
  if (plan_->spec().model().has_external()) TakeTerms(header, chunk);
  const bool has_gradient = header.length > 0;
  const WireFormat format = PushFormat(*plan_, ChunkId(index));
  CHECK(!has_gradient || (header.dtype == format.dtype && header.codec == format.codec));
  if (has_gradient) CHECK_EQ(header.length, format.bytes);
  push_bytes_ += static_cast<int64_t>(header.length);
  if (header.step < chunk.version && mode() == v1::BSP) {  // the worker was overtaken
    ++late_pushes_;
    return Answer(header.rank, index, chunk);
  }
  std::vector<float>& gradient = chunk.gradients[header.rank];
  gradient.assign(chunk.values.size(), 0);
  if (has_gradient) CHECK(Decode(format, payload, absl::MakeSpan(gradient)).ok());
  if (mode() == v1::SSP || mode() == v1::ASP) {  // answers one worker at once
    CHECK_EQ(header.step, chunk.versions[header.rank]);
    Apply(index, chunk);
    chunk.version = ++chunk.versions[header.rank];
    return Answer(header.rank, index, chunk);
  }
  CHECK_EQ(header.step, chunk.version);
  if (static_cast<int>(chunk.gradients.size()) < plan_->workers_size()) return;
  if (mode() == v1::LOCAL_SGD) {
    Average(chunk);
  } else {
    Apply(index, chunk);
  }
  for (const auto& [rank, peer] : workers_) Answer(rank, index, chunk);
}

void FakeShard::TakeTerms(const WireHeader& push, Chunk& chunk) {
  const bool has_gradient = push.length > 0;
  CHECK(has_gradient || (push.dtype == WireDType::kNone && push.codec == WireCodec::kRaw));
  CHECK(push.scalar >= 0 && push.loss_scale > 0);
  terms_.push_back({.step = push.step,
                    .rank = push.rank,
                    .chunk = static_cast<int>(push.chunk),
                    .learning_rate = push.scalar,
                    .weight = push.loss_scale,
                    .has_gradient = has_gradient});
  chunk.weights += push.loss_scale;
  chunk.learning_rate = push.scalar;
  chunk.has_gradient |= has_gradient;
}

std::vector<PushedTerms> FakeShard::terms() const {
  absl::MutexLock lock(&mu_);
  return terms_;
}

v1::SyncMode FakeShard::mode() const {
  const v1::SyncMode mode = plan_->spec().sync().mode();
  return mode == v1::SYNC_MODE_UNSPECIFIED ? v1::BSP : mode;
}

void FakeShard::Average(Chunk& chunk) {
  std::ranges::fill(chunk.values, 0.0f);
  for (const auto& [rank, part] : chunk.gradients) {
    for (size_t i = 0; i < part.size(); ++i) chunk.values[i] += part[i];
  }
  chunk.gradients.clear();
  chunk.version = rounds_.EndAfter(chunk.version);
}

void FakeShard::Overtake(int64_t version) {
  absl::MutexLock lock(&mu_);
  for (auto& [index, chunk] : chunks_) {
    for (float& value : chunk.values) value += static_cast<float>(version - chunk.version);
    chunk.version = version;
  }
}

float FakeShard::Sum(const Chunk& chunk, size_t i) const {
  float sum = 0;
  if (joins_.empty()) {
    for (const auto& [rank, gradient] : chunk.gradients) sum += gradient[i];
    return sum;
  }
  std::vector<float> open;
  for (const auto& [rank, gradient] : chunk.gradients) {
    sum = gradient[i];
    for (int join = 0; join < joins_[rank]; ++join) {
      sum = open.back() + sum;
      open.pop_back();
    }
    open.push_back(sum);
  }
  CHECK_EQ(open.size(), 1u);
  return sum;
}

void FakeShard::Apply(int index, Chunk& chunk) {
  const v1::Parameter& parameter = plan_->graph().parameters(plan_->chunks(index).parameter());
  const bool external = plan_->spec().model().has_external();
  const double learning_rate =
      external ? chunk.learning_rate : plan_->spec().training().optimizer().sgd().learning_rate();
  const float scale = external ? static_cast<float>(1 / std::exchange(chunk.weights, 0)) : 1;
  const bool updates = !external || std::exchange(chunk.has_gradient, false);
  chunk.squares = 0;
  for (size_t i = 0; updates && i < chunk.values.size(); ++i) {
    const float sum = scale * Sum(chunk, i);
    if (parameter.has_statistic_momentum()) {
      const auto momentum = static_cast<float>(parameter.statistic_momentum());
      chunk.values[i] += momentum * (sum - chunk.values[i]);
      if (!std::isfinite(sum)) chunk.squares = std::nan("");
      continue;
    }
    chunk.values[i] -= static_cast<float>(learning_rate) * sum;
    chunk.squares += static_cast<double>(sum) * sum;
  }
  chunk.gradients.clear();
  ++chunk.version;
}

void FakeShard::Answer(uint32_t rank, int index, const Chunk& chunk) {
  WireHeader params;
  params.kind = MessageKind::kParams;
  const WireFormat format = ValuesFormat(*plan_, ChunkId(index));
  params.dtype = format.dtype;
  params.generation = plan_->generation();
  params.job = plan_->job_number();
  params.step = chunk.version;
  if (mode() == v1::SSP || mode() == v1::ASP) {
    const auto own = chunk.versions.find(rank);
    params.step = own == chunk.versions.end() ? plan_->first_step() : own->second;
  }
  const int claimed = claimed_chunk_;
  params.chunk = static_cast<uint32_t>(claimed < 0 ? index : claimed);
  params.rank = rank;
  params.length = format.bytes;
  params.scalar = chunk.squares;
  params.loss_scale = static_cast<float>(plan_->spec().training().loss_scale().initial());
  // The next version must not overtake this one in memory: the message gets its own copy.
  auto copy = std::make_shared<std::vector<std::byte>>(format.bytes);
  ChunkEncoder::Create(format, /*seed=*/0)->Encode(chunk.values, absl::MakeSpan(*copy));
  transport_->Send(workers_.at(rank), params, *copy, [copy](const absl::Status&) {});
}

FakePs::FakePs(InProcessNetwork& network, const Options& options) {
  auto plan = std::make_shared<v1::JobPlan>();
  plan->set_job("test-1");
  plan->set_job_number(1);
  plan->set_generation(options.generation);
  plan->set_first_step(options.first_step);
  plan->set_session_token(std::string(kToken));
  *plan->mutable_spec() = options.spec;
  *plan->mutable_graph() = options.graph;
  const int64_t batch_size = options.spec.data().batch_size();
  const int64_t logical = options.spec.resources().workers().logical();
  for (int rank = 0; rank < options.workers; ++rank) {
    v1::PlanWorker* worker = plan->add_workers();
    worker->set_member(absl::StrCat("worker-", rank));
    BatchShare share;
    if (logical > 0) {
      const SumNode node = CutNode({.leaves = logical}, options.workers)[rank];
      share = ShareOfNode(batch_size, logical, node);
    } else {
      share.first = batch_size * rank / options.workers;
      share.count = batch_size * (rank + 1) / options.workers - share.first;
    }
    worker->set_first_position(share.first);
    worker->set_samples(share.count);
  }
  for (int i = 0; i < options.shards; ++i) {
    shards_.push_back(std::make_unique<FakeShard>(network));
    v1::PlanShard* shard = plan->add_shards();
    shard->set_member(absl::StrCat("ps-", i));
    shard->set_address(shards_[i]->address());
  }
  std::vector<v1::PlanChunk> chunks = CutIntoChunks(options.graph, options.chunk_bytes);
  PlaceChunks(absl::MakeSpan(chunks), options.shards);
  chunks = WithAveragedSlots(options.spec, std::move(chunks));
  plan->mutable_chunks()->Assign(chunks.begin(), chunks.end());
  plan_ = plan;
  for (int i = 0; i < options.shards; ++i)
    shards_[i]->Serve(plan_, i, options.total_steps, options.values);
}

std::vector<float> FakePs::parameter(int p) const {
  std::vector<float> values;
  for (int c = 0; c < plan_->chunks_size(); ++c) {
    if (plan_->chunks(c).parameter() != p || plan_->chunks(c).slot() > 0) continue;
    const std::vector<float> chunk = shards_[plan_->chunks(c).shard()]->values(c);
    values.insert(values.end(), chunk.begin(), chunk.end());
  }
  return values;
}

}  // namespace muster

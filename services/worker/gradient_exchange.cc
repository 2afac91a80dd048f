#include "services/worker/gradient_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/cluster/parameter_table.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kAnyShard = -1;

absl::Span<std::byte> BytesOf(absl::Span<float> tensor, const v1::PlanChunk& chunk) {
  return {reinterpret_cast<std::byte*>(tensor.data() + chunk.offset()),
          static_cast<size_t>(chunk.elements()) * sizeof(float)};
}

// The plan comes from another process.
absl::Status CheckChunks(const v1::JobPlan& plan) {
  std::vector<int64_t> covered(plan.graph().parameters_size(), 0);
  for (int c = 0; c < plan.chunks_size(); ++c) {
    const v1::PlanChunk& chunk = plan.chunks(c);
    if (chunk.shard() < 0 || chunk.shard() >= plan.shards_size() || chunk.parameter() < 0 ||
        chunk.parameter() >= plan.graph().parameters_size() ||
        chunk.offset() != covered[chunk.parameter()] || chunk.elements() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan of ", plan.job(), ": chunk ", c, " is not the next part of parameter ",
                       chunk.parameter(), " on a shard of the plan: ", chunk.ShortDebugString()));
    }
    covered[chunk.parameter()] += chunk.elements();
  }
  for (int p = 0; p < plan.graph().parameters_size(); ++p) {
    const v1::Parameter& parameter = plan.graph().parameters(p);
    if (covered[p] != ElementCount(parameter)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plan of ", plan.job(), ": chunks hold ", covered[p], " elements, parameter '",
          parameter.name(), "' has ", ElementCount(parameter)));
    }
  }
  return absl::OkStatus();
}

// By parameter: the first node that reads it.
std::vector<int> FirstReaders(const v1::Graph& graph) {
  absl::flat_hash_map<std::string, int> parameter_of;
  for (int p = 0; p < graph.parameters_size(); ++p) parameter_of[graph.parameters(p).name()] = p;
  std::vector<int> reader(graph.parameters_size(), graph.nodes_size());
  for (int n = graph.nodes_size() - 1; n >= 0; --n) {
    for (const std::string& input : graph.nodes(n).inputs()) {
      auto parameter = parameter_of.find(input);
      if (parameter != parameter_of.end()) reader[parameter->second] = n;
    }
  }
  return reader;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> GradientExchange::Create(Options options) {
  if (options.plan->shards().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("plan of ", options.plan->job(), ": no shards"));
  }
  RETURN_IF_ERROR(CheckChunks(*options.plan));
  return std::unique_ptr<GradientExchange>(new GradientExchange(std::move(options)));
}

GradientExchange::GradientExchange(Options options)
    : options_(std::move(options)),
      plan_(*options_.plan),
      has_loss_scale_(plan_.spec().training().precision() == v1::FP16),
      chunks_of_parameter_(plan_.graph().parameters_size()),
      send_order_(plan_.chunks_size()),
      place_in_order_(plan_.chunks_size()),
      chunks_(plan_.chunks_size()),
      unanswered_(plan_.graph().parameters_size(), 0),
      parameters_behind_(plan_.graph().parameters_size()),
      parameter_versions_(plan_.graph().parameters_size()),
      version_(plan_.first_step() - 1),
      parameters_awaited_(plan_.graph().parameters_size()),
      loss_scale_version_(plan_.first_step() - 1) {
  CHECK_EQ(options_.parameters.size(), chunks_of_parameter_.size());
  CHECK_EQ(options_.gradients.size(), chunks_of_parameter_.size());
  CHECK(options_.metrics != nullptr);
  for (std::atomic<int64_t>& version : parameter_versions_) version = plan_.first_step() - 1;
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    chunks_[c].version = plan_.first_step() - 1;
    chunks_of_parameter_[plan_.chunks(c).parameter()].push_back(c);
    ++unanswered_[plan_.chunks(c).parameter()];
  }
  const std::vector<int> reader = FirstReaders(plan_.graph());
  std::iota(send_order_.begin(), send_order_.end(), 0);
  std::ranges::stable_sort(send_order_, {},
                           [&](int c) { return reader[plan_.chunks(c).parameter()]; });
  for (int place = 0; place < std::ssize(send_order_); ++place) {
    place_in_order_[send_order_[place]] = place;
  }
  ready_.reserve(chunks_.size());
  taken_.reserve(chunks_of_parameter_.size());
  absl::MutexLock lock(&mu_);
  pushed_.reserve(chunks_of_parameter_.size());
}

GradientExchange::~GradientExchange() {
  closing_.store(true, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  if (waking_ != nullptr) waking_->Wake();
}

absl::Status GradientExchange::Connect() {
  thread_ = std::jthread([this] { Serve(); });
  absl::MutexLock lock(&mu_);
  for (int shard = 0; shard < plan_.shards_size(); ++shard) {
    auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return greeted_ > shard || !failure_.ok();
    };
    if (mu_.AwaitWithTimeout(absl::Condition(&settled), options_.hello_timeout)) continue;
    SetFailure(WithReason(absl::UnavailableError(absl::StrCat(
                              NameOfShard(shard), " has not answered HELLO for ",
                              absl::FormatDuration(options_.hello_timeout), " at step ", step())),
                          "PS_UNREACHABLE"),
               plan_.shards(shard).member());
  }
  return failure_;
}

// ---------------------------------------------------------------- any thread

absl::Status GradientExchange::Await(absl::FunctionRef<bool()> reached, int64_t version) {
  absl::MutexLock lock(&mu_);
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return reached() || interrupted_ || !failure_.ok();
  };
  const bool in_time = mu_.AwaitWithTimeout(absl::Condition(&settled), options_.answer_timeout);
  if (!failure_.ok()) return failure_;
  if (reached()) return absl::OkStatus();
  if (in_time) return absl::AbortedError(absl::StrCat("interrupted before step ", version));
  const int missing = FirstChunkBehind(version, kAnyShard);
  const std::string what = missing < 0 ? "a gradient could not be sent"
                                       : absl::StrCat(NameOfChunk(missing), " has not come from ",
                                                      NameOfShard(plan_.chunks(missing).shard()));
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat("step ", version, ": ", what, " for ",
                                               absl::FormatDuration(options_.answer_timeout))),
      "STEP_TIMEOUT");
}

absl::Status GradientExchange::AwaitParameter(int parameter, int64_t version) {
  if (HasParameter(parameter, version) && !failed()) {
    return absl::OkStatus();
  }
  return Await([&] { return HasParameter(parameter, version); }, version);
}

absl::Status GradientExchange::AwaitVersion(int64_t version) {
  return Await([&] { return this->version() >= version; }, version);
}

absl::StatusOr<float> GradientExchange::AwaitLossScale(int64_t version) {
  float loss_scale = 0;
  RETURN_IF_ERROR(Await(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        loss_scale = loss_scale_;
        return loss_scale_version_ >= version;
      },
      version));
  return loss_scale;
}

absl::Status GradientExchange::AwaitAnswers() {
  absl::MutexLock lock(&mu_);
  auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return parameters_awaited_ == 0 || !failure_.ok();
  };
  mu_.Await(absl::Condition(&settled));
  return failure_;
}

absl::Status GradientExchange::Push(int parameter, int64_t step) {
  CHECK_EQ(parameter_versions_[parameter].load(std::memory_order_acquire), step)
      << "parameter " << parameter;
  Transport* to_wake = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    if (pushed_.empty()) to_wake = waking_;
    pushed_.push_back(parameter);
    ++parameters_awaited_;
  }
  if (to_wake != nullptr) to_wake->Wake();
  return absl::OkStatus();
}

double GradientExchange::GradientNorm(int64_t version) const {
  double squares = 0;
  for (const Chunk& chunk : chunks_) squares += chunk.squares[version & 1];
  return std::sqrt(squares);
}

void GradientExchange::Interrupt() {
  absl::MutexLock lock(&mu_);
  interrupted_ = true;
}

void GradientExchange::Fail(absl::Status why) {
  absl::MutexLock lock(&mu_);
  SetFailure(std::move(why), "");
}

void GradientExchange::FailBecauseOf(int shard, absl::Status why) {
  absl::MutexLock lock(&mu_);
  SetFailure(std::move(why), plan_.shards(shard).member());
}

void GradientExchange::SetFailure(absl::Status why, absl::string_view culprit) {
  CHECK(!why.ok());
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  culprit_ = std::string(culprit);
  failed_.store(true, std::memory_order_release);
}

std::string GradientExchange::culprit() const {
  absl::MutexLock lock(&mu_);
  return culprit_;
}

std::string GradientExchange::NameOfShard(int shard) const {
  return absl::StrCat("shard ", shard, " of ", plan_.shards(shard).member());
}

std::string GradientExchange::NameOfChunk(int chunk) const {
  return absl::StrCat("chunk ", chunk, " of parameter '",
                      plan_.graph().parameters(plan_.chunks(chunk).parameter()).name(), "'");
}

int GradientExchange::FirstChunkBehind(int64_t version, int shard) const {
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    if ((shard == kAnyShard || plan_.chunks(c).shard() == shard) && chunks_[c].version < version) {
      return c;
    }
  }
  return -1;
}

// ---------------------------------------------------------------- the communication thread

void GradientExchange::Serve() {
  if (absl::Status opened = Open(); !opened.ok()) Fail(std::move(opened));
  while (transport_ != nullptr && !closing_.load(std::memory_order_acquire)) {
    TakePushed();
    SendReady();
    if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(1));
  }
  {
    absl::MutexLock lock(&mu_);
    waking_ = nullptr;
  }
  transport_.reset();  // first: a transfer under way still uses the memory
  registered_parameters_.reset();
  registered_gradients_.reset();
}

absl::Status GradientExchange::Open() {
  ASSIGN_OR_RETURN(transport_, options_.transport());
  transport_->SetReceiver(this);
  {
    absl::MutexLock lock(&mu_);
    waking_ = transport_.get();
  }
  ASSIGN_OR_RETURN(registered_parameters_, transport_->RegisterMemory(options_.parameter_memory));
  ASSIGN_OR_RETURN(registered_gradients_, transport_->RegisterMemory(options_.gradient_memory));

  greeting_ = absl::StrCat(plan_.session_token(), transport_->address());
  for (int shard = 0; shard < plan_.shards_size(); ++shard) {
    absl::StatusOr<PeerId> peer = transport_->Connect(plan_.shards(shard).address());
    if (!peer.ok()) {
      FailBecauseOf(shard, Annotate(peer.status(), NameOfShard(shard)));
      return peer.status();
    }
    peers_.push_back(*peer);
  }
  Greet(0);
  return absl::OkStatus();
}

WireHeader GradientExchange::HeaderOf(MessageKind kind, int chunk, int64_t step) const {
  WireHeader header;
  header.kind = kind;
  header.generation = plan_.generation();
  header.job = plan_.job_number();
  header.step = step;
  header.chunk = static_cast<uint32_t>(chunk);
  header.rank = static_cast<uint32_t>(options_.rank);
  return header;
}

void GradientExchange::TakePushed() {
  {
    absl::MutexLock lock(&mu_);
    taken_.swap(pushed_);
  }
  for (int parameter : taken_) {
    unanswered_[parameter] = static_cast<int>(chunks_of_parameter_[parameter].size());
    for (int c : chunks_of_parameter_[parameter]) {
      chunks_[c].awaited = chunks_[c].version.load(std::memory_order_relaxed) + 1;
      chunks_[c].sending = true;
      ready_.push_back(place_in_order_[c]);
      std::ranges::push_heap(ready_, std::greater<>());
    }
  }
  taken_.clear();
}

void GradientExchange::SendReady() {
  while (!ready_.empty() && !failed()) {
    const int c = send_order_[ready_.front()];
    const v1::PlanChunk& chunk = plan_.chunks(c);
    const absl::Span<std::byte> gradient = BytesOf(options_.gradients[chunk.parameter()], chunk);
    const int64_t bytes = static_cast<int64_t>(gradient.size());
    if (inflight_bytes_ > 0 && inflight_bytes_ + bytes > options_.inflight_bytes_max) return;
    std::ranges::pop_heap(ready_, std::greater<>());
    ready_.pop_back();
    inflight_bytes_ += bytes;
    WireHeader push = HeaderOf(MessageKind::kPush, c, chunks_[c].awaited - 1);
    push.dtype = WireDType::kF32;
    push.length = gradient.size();
    options_.metrics->push_bytes.Increment(static_cast<double>(bytes));
    transport_->Send(peers_[chunk.shard()], push, gradient,
                     [this, c](const absl::Status& status) { Sent(c, status); });
  }
}

void GradientExchange::Sent(int chunk, const absl::Status& status) {
  inflight_bytes_ -= plan_.chunks(chunk).elements() * static_cast<int64_t>(sizeof(float));
  chunks_[chunk].sending = false;
  if (!status.ok()) {
    if (closing_) return;
    FailBecauseOf(plan_.chunks(chunk).shard(),
                  WithReason(absl::UnavailableError(
                                 absl::StrCat("cannot push ", NameOfChunk(chunk), " to ",
                                              NameOfShard(plan_.chunks(chunk).shard()), " at step ",
                                              step(), ": ", status.message())),
                             "PS_UNREACHABLE"));
    return;
  }
  if (chunks_[chunk].awaited < 0) Answered(chunk);
}

bool GradientExchange::IsOurs(const WireHeader& header) const {
  return header.job == plan_.job_number() && header.generation == plan_.generation() &&
         header.rank == static_cast<uint32_t>(options_.rank);
}

// Stale and repeated messages find no memory: the parameter may be in use by now.
absl::Span<std::byte> GradientExchange::PlacePayload(const WireHeader& header) {
  if (header.kind != MessageKind::kParams || !IsOurs(header) || header.chunk >= chunks_.size()) {
    return {};
  }
  const v1::PlanChunk& chunk = plan_.chunks(static_cast<int>(header.chunk));
  // A negative step would look like the -1 of a chunk that awaits nothing.
  if (header.step < 0 || chunks_[header.chunk].awaited != header.step) return {};
  const absl::Span<std::byte> values = BytesOf(options_.parameters[chunk.parameter()], chunk);
  if (header.length != values.size() || header.dtype != WireDType::kF32) {
    FailBecauseOf(chunk.shard(),
                  WithReason(absl::InvalidArgumentError(absl::StrCat(
                                 NameOfShard(chunk.shard()), " sent ", header.length, " bytes for ",
                                 NameOfChunk(static_cast<int>(header.chunk)), " of ", values.size(),
                                 " bytes at step ", step())),
                             "PS_PROTOCOL"));
    return {};
  }
  return values;
}

void GradientExchange::Received(const WireHeader& header, absl::Span<const std::byte> payload) {
  if (!IsOurs(header)) return;
  if (header.kind == MessageKind::kHello) {
    Greeted();
    return;
  }
  if (header.chunk >= chunks_.size()) return;
  if (header.kind == MessageKind::kRefused) return Refused(header);
  Chunk& chunk = chunks_[header.chunk];
  if (header.kind != MessageKind::kParams || payload.empty() || header.step < 0 ||
      chunk.awaited != header.step) {
    return;
  }
  if (has_loss_scale_ && !TakeLossScale(header)) return;
  options_.metrics->params_bytes.Increment(static_cast<double>(payload.size()));
  chunk.squares[header.step & 1] = header.scalar;
  chunk.version.store(header.step, std::memory_order_relaxed);
  chunk.awaited = -1;
  if (!chunk.sending) Answered(static_cast<int>(header.chunk));
}

// It is the same in all values of a version: the first one brings it. False: it is none.
bool GradientExchange::TakeLossScale(const WireHeader& header) {
  if (!(header.loss_scale >= 1 && std::isfinite(header.loss_scale))) {
    const int shard = plan_.chunks(static_cast<int>(header.chunk)).shard();
    FailBecauseOf(shard, WithReason(absl::InvalidArgumentError(
                                        absl::StrCat(NameOfShard(shard), " sent the loss scale ",
                                                     header.loss_scale, " at step ", step())),
                                    "PS_PROTOCOL"));
    return false;
  }
  absl::MutexLock lock(&mu_);
  if (loss_scale_version_ < header.step) {
    loss_scale_version_ = header.step;
    loss_scale_ = header.loss_scale;
  }
  return true;
}

// The chunk has its new values and its gradient's memory is free.
void GradientExchange::Answered(int chunk) {
  const int parameter = plan_.chunks(chunk).parameter();
  if (--unanswered_[parameter] > 0) return;
  absl::MutexLock lock(&mu_);
  --parameters_awaited_;
  parameter_versions_[parameter].fetch_add(1, std::memory_order_release);
  if (--parameters_behind_ > 0) return;
  parameters_behind_ = static_cast<int>(chunks_of_parameter_.size());
  version_.fetch_add(1, std::memory_order_release);
}

void GradientExchange::Greet(int shard) {
  WireHeader hello = HeaderOf(MessageKind::kHello, 0, plan_.first_step());
  hello.length = greeting_.size();
  transport_->Send(peers_[shard], hello,
                   {reinterpret_cast<const std::byte*>(greeting_.data()), greeting_.size()}, {});
}

// An answer does not say from which shard it is: they are greeted one after the other.
void GradientExchange::Greeted() {
  int shard = 0;
  {
    absl::MutexLock lock(&mu_);
    if (greeted_ == plan_.shards_size()) return;
    shard = greeted_++;
  }
  Fetch(shard);
  if (shard + 1 < plan_.shards_size()) return Greet(shard + 1);
  options_.metrics->ShowTransport(transport_->name());
  LOG(INFO) << plan_.job() << ": rank " << options_.rank << " exchanges " << chunks_.size()
            << " chunks with " << peers_.size() << " shards over " << transport_->name();
}

void GradientExchange::Fetch(int shard) {
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    if (plan_.chunks(c).shard() != shard) continue;
    chunks_[c].awaited = plan_.first_step();
    transport_->Send(peers_[shard], HeaderOf(MessageKind::kFetch, c, plan_.first_step()), {}, {});
  }
}

void GradientExchange::Refused(const WireHeader& header) {
  const int shard = plan_.chunks(static_cast<int>(header.chunk)).shard();
  FailBecauseOf(shard, WithReason(absl::FailedPreconditionError(absl::StrCat(
                                      NameOfShard(shard), " refused ",
                                      NameOfChunk(static_cast<int>(header.chunk)), " of step ",
                                      header.step, ": ", RefusalReasonName(header.reason))),
                                  "PS_REFUSED"));
}

void GradientExchange::PeerLost(PeerId peer, const absl::Status& why) {
  const int shard = static_cast<int>(std::ranges::find(peers_, peer) - peers_.begin());
  if (shard == std::ssize(peers_) || closing_) return;
  const int missing = FirstChunkBehind(version() + 1, shard);
  FailBecauseOf(
      shard, WithReason(absl::UnavailableError(absl::StrCat(
                            "lost ", NameOfShard(shard), " at step ", step(),
                            missing < 0 ? "" : absl::StrCat(", waiting for ", NameOfChunk(missing)),
                            ": ", why.message())),
                        "PS_UNREACHABLE"));
}

}  // namespace muster

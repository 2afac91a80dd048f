#include "lib/exchange/ps_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/cluster/parameter_group.h"
#include "lib/exchange/chunk_order.h"
#include "lib/shard/plan_credentials.h"
#include "lib/status/status.h"
#include "lib/telemetry/trace.h"

namespace muster {
namespace {

constexpr int kAnyShard = -1;
constexpr int64_t kPayloadAlignment = 64;

template <typename T>
absl::Span<T> PartOf(absl::Span<T> tensor, const v1::PlanChunk& chunk) {
  return tensor.subspan(chunk.offset(), chunk.elements());
}

absl::Span<std::byte> BytesOf(absl::Span<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

absl::Span<const std::byte> BytesOf(absl::Span<const float> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
}

bool IsPlain(const WireFormat& format) {
  return format.codec == WireCodec::kRaw && format.dtype == WireDType::kF32;
}

int64_t Aligned(int64_t bytes) {
  return (bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

// "ps-0/1"
std::string NameOfLink(const v1::PlanShard& shard) {
  return absl::StrCat(shard.member(), "/", shard.thread());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsExchange>> PsExchange::Create(Options options) {
  if (options.plan->shards().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("plan of ", options.plan->job(), ": no shards"));
  }
  RETURN_IF_ERROR(CheckChunks(*options.plan));
  auto exchange = std::unique_ptr<PsExchange>(new PsExchange(std::move(options)));
  RETURN_IF_ERROR(exchange->AllocatePayloads());
  return exchange;
}

PsExchange::PsExchange(Options options)
    : options_(std::move(options)),
      plan_(*options_.plan),
      trace_(options_.tuning.trace, plan_.chunks_size()),
      has_loss_scale_(plan_.spec().training().precision() == v1::FP16),
      may_be_overtaken_(plan_.spec().sync().backup_workers() > 0),
      averages_(plan_.spec().sync().mode() == v1::LOCAL_SGD),
      chunks_of_parameter_(plan_.graph().parameters_size()),
      chunks_(plan_.chunks_size()),
      unanswered_(plan_.graph().parameters_size(), 0),
      parameters_behind_(plan_.graph().parameters_size()),
      window_(options_.tuning.inflight_bytes_max, plan_.chunks_size()),
      parameter_versions_(plan_.graph().parameters_size()),
      version_(plan_.first_step() - 1),
      chunks_awaited_(plan_.chunks_size()),
      loss_scale_version_(plan_.first_step() - 1) {
  CHECK_EQ(options_.parameters.size(), chunks_of_parameter_.size());
  CHECK_EQ(options_.gradients.size(), averages_ ? 0 : chunks_of_parameter_.size());
  CHECK(options_.metrics != nullptr);
  for (std::atomic<int64_t>& version : parameter_versions_) version = plan_.first_step() - 1;
  std::vector<bool> frozen;
  for (const v1::Parameter& parameter : plan_.graph().parameters()) {
    frozen.push_back(TreatmentOf(plan_.spec().training(), parameter).frozen);
  }
  trained_ = static_cast<int>(std::ranges::count(frozen, false));
  std::vector<int> chunks_of_shard(plan_.shards_size(), 0);
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    const int parameter = plan_.chunks(c).parameter();
    Chunk& chunk = chunks_[c];
    chunk.version = plan_.first_step() - 1;
    chunk.frozen = frozen[parameter];
    chunk.push_format = PushFormat(plan_, c);
    chunk.values_format = ValuesFormat(plan_, c);
    chunks_of_parameter_[parameter].push_back(c);
    ++unanswered_[parameter];
    ++chunks_of_shard[ShardOf(c)];
  }
  const std::vector<int> order = ChunksByFirstUse(plan_);
  for (size_t place = 0; place < order.size(); ++place) chunks_[order[place]].urgency = place;
  for (int shard = 0; shard < plan_.shards_size(); ++shard) {
    links_.push_back(
        {.queue = SendQueue(options_.tuning.inflight_bytes_max, chunks_of_shard[shard]),
         .metrics = options_.metrics->Link(NameOfLink(plan_.shards(shard)))});
  }
  taken_.reserve(chunks_.size());
  absl::MutexLock lock(&mu_);
  pushed_.reserve(chunks_.size());
  greeted_.resize(plan_.shards_size());
}

// One piece of memory for all payloads that are made here: sent without a copy over shared memory.
absl::Status PsExchange::AllocatePayloads() {
  int64_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    if (!chunk.frozen && !IsPlain(chunk.push_format)) bytes += Aligned(chunk.push_format.bytes);
    if (!IsPlain(chunk.values_format)) bytes += Aligned(chunk.values_format.bytes);
  }
  ASSIGN_OR_RETURN(payloads_, SharedSlab::Allocate(bytes));
  absl::Span<std::byte> rest = payloads_->memory();
  auto take = [&rest](int64_t size) {
    const absl::Span<std::byte> taken = rest.first(size);
    rest.remove_prefix(Aligned(size));
    return taken;
  };
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    Chunk& chunk = chunks_[c];
    if (!chunk.frozen && !IsPlain(chunk.push_format)) {
      chunk.packed = take(chunk.push_format.bytes);
      chunk.encoder = ChunkEncoder::Create(chunk.push_format, plan_.spec().training().seed() + c);
    }
    if (!IsPlain(chunk.values_format)) chunk.narrow = take(chunk.values_format.bytes);
  }
  return absl::OkStatus();
}

PsExchange::~PsExchange() {
  closing_.store(true, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  if (waking_ != nullptr) waking_->Wake();
}

absl::Status PsExchange::Connect(int64_t total_steps, std::vector<std::string>) {
  total_steps_ = total_steps;
  thread_ = std::jthread([this] { Serve(); });
  absl::MutexLock lock(&mu_);
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return greetings_ == plan_.shards_size() || !failure_.ok();
  };
  if (mu_.AwaitWithTimeout(absl::Condition(&settled), options_.hello_timeout)) return failure_;
  const int silent = static_cast<int>(std::ranges::find(greeted_, false) - greeted_.begin());
  SetFailure(WithReason(absl::UnavailableError(absl::StrCat(
                            NameOfShard(silent), " has not answered HELLO for ",
                            absl::FormatDuration(options_.hello_timeout), " at step ", step())),
                        "PS_UNREACHABLE"),
             plan_.shards(silent).member());
  return failure_;
}

int64_t PsExchange::VersionAfter(int64_t version) const {
  if (!averages_) return version + 1;
  const int64_t every = plan_.spec().sync().every();
  return std::min((version / every + 1) * every, total_steps_);
}

// ---------------------------------------------------------------- any thread

absl::Status PsExchange::Await(absl::FunctionRef<bool()> reached, int64_t version) {
  absl::MutexLock lock(&mu_);
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return reached() || overtaken() || interrupted_ || !failure_.ok();
  };
  const bool in_time = mu_.AwaitWithTimeout(absl::Condition(&settled), options_.answer_timeout);
  if (!failure_.ok()) return failure_;
  if (reached()) return absl::OkStatus();
  if (overtaken()) return absl::AbortedError(absl::StrCat("overtaken at step ", version));
  if (in_time) return absl::AbortedError(absl::StrCat("interrupted before step ", version));
  const int missing = FirstChunkBehind(version, kAnyShard);
  const std::string what = missing < 0 ? "a gradient could not be sent"
                                       : absl::StrCat(NameOfChunk(missing), " has not come from ",
                                                      NameOfShard(ShardOf(missing)));
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat("step ", version, ": ", what, " for ",
                                               absl::FormatDuration(options_.answer_timeout))),
      "STEP_TIMEOUT");
}

bool PsExchange::HasParameter(int parameter, int64_t version) const {
  const int64_t has = parameter_versions_[parameter].load(std::memory_order_acquire);
  if (has != version && has != kEveryVersion) return false;
  return options_.tuning.overlap || this->version() >= version;
}

absl::Status PsExchange::AwaitParameter(int parameter, int64_t version) {
  if (HasParameter(parameter, version) && !failed()) return absl::OkStatus();
  return Await([&] { return HasParameter(parameter, version); }, version);
}

absl::Status PsExchange::AwaitVersion(int64_t version) {
  return Await([&] { return this->version() >= version; }, version);
}

absl::StatusOr<float> PsExchange::AwaitLossScale(int64_t version) {
  float loss_scale = 0;
  RETURN_IF_ERROR(Await(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        loss_scale = loss_scale_;
        return loss_scale_version_ >= version;
      },
      version));
  return loss_scale;
}

absl::Status PsExchange::AwaitAnswers() {
  absl::MutexLock lock(&mu_);
  auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return chunks_awaited_ == 0 || !failure_.ok();
  };
  mu_.Await(absl::Condition(&settled));
  return failure_;
}

absl::Status PsExchange::Push(int chunk, int64_t version) {
  if (chunks_[chunk].frozen) return absl::OkStatus();
  CHECK_EQ(chunks_[chunk].version.load(std::memory_order_acquire), version) << NameOfChunk(chunk);
  trace_.Begin(chunk, version, ShardOf(chunk));
  Transport* to_wake = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    if (pushed_.empty()) to_wake = waking_;
    pushed_.push_back(chunk);
    chunks_awaited_.fetch_add(1, std::memory_order_relaxed);
    posted_.store(true, std::memory_order_release);
  }
  if (to_wake != nullptr) to_wake->Wake();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PsExchange::CatchUp() {
  absl::MutexLock lock(&mu_);
  catching_up_.store(true, std::memory_order_release);
  if (waking_ != nullptr) waking_->Wake();
  auto settled = [this]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !catching_up_ || !failure_.ok(); };
  mu_.Await(absl::Condition(&settled));
  if (!failure_.ok()) return failure_;
  return version();
}

double PsExchange::GradientNorm(int64_t version) const {
  double squares = 0;
  for (const Chunk& chunk : chunks_) squares += chunk.squares[version & 1];
  return static_cast<float>(std::sqrt(squares));  // the sum's last bits depend on the cut
}

void PsExchange::Interrupt() {
  absl::MutexLock lock(&mu_);
  interrupted_ = true;
}

void PsExchange::Fail(absl::Status why) {
  absl::MutexLock lock(&mu_);
  SetFailure(std::move(why), "");
}

void PsExchange::FailBecauseOf(int shard, absl::Status why) {
  absl::MutexLock lock(&mu_);
  SetFailure(std::move(why), plan_.shards(shard).member());
}

void PsExchange::SetFailure(absl::Status why, absl::string_view culprit) {
  CHECK(!why.ok());
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  culprit_ = std::string(culprit);
  failed_.store(true, std::memory_order_release);
}

std::string PsExchange::culprit() const {
  absl::MutexLock lock(&mu_);
  return culprit_;
}

absl::Status PsExchange::failure() const {
  if (!failed()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return failure_;
}

std::string PsExchange::NameOfShard(int shard) const {
  return absl::StrCat("shard ", shard, " of ", plan_.shards(shard).member());
}

std::string PsExchange::NameOfChunk(int chunk) const {
  return absl::StrCat("chunk ", chunk, " of parameter '",
                      plan_.graph().parameters(plan_.chunks(chunk).parameter()).name(), "'");
}

int PsExchange::FirstChunkBehind(int64_t version, int shard) const {
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    if ((shard == kAnyShard || ShardOf(c) == shard) && chunks_[c].version < version) return c;
  }
  return -1;
}

absl::Span<float> PsExchange::ValuesOf(int chunk) const {
  const v1::PlanChunk& planned = plan_.chunks(chunk);
  const auto& tensors =
      planned.slot() == 0 ? options_.parameters : options_.slots[planned.slot() - 1];
  return PartOf(tensors[planned.parameter()], planned);
}

// What a push sends, before it is packed.
absl::Span<const float> PsExchange::PushedOf(int chunk) const {
  if (averages_) return ValuesOf(chunk);
  const v1::PlanChunk& planned = plan_.chunks(chunk);
  return PartOf(options_.gradients[planned.parameter()], planned);
}

// ---------------------------------------------------------------- the communication thread

void PsExchange::Serve() {
  if (absl::Status opened = Open(); !opened.ok()) Fail(std::move(opened));
  while (transport_ != nullptr && !closing_.load(std::memory_order_acquire)) {
    if (posted_.load(std::memory_order_acquire)) TakePushed();
    if (catching_up_.load(std::memory_order_acquire) && chunks_awaited_ == 0) FetchWhatIsBehind();
    if (waiting_chunks_ > 0 && !failed()) SendReady();
    if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(1));
  }
  {
    absl::MutexLock lock(&mu_);
    waking_ = nullptr;
  }
  transport_.reset();  // first: a transfer under way still uses the memory
  registrations_.clear();
  for (const Link& link : links_) link.metrics.inflight_bytes.Set(0);
}

absl::Status PsExchange::Open() {
  ASSIGN_OR_RETURN(transport_, options_.transport());
  transport_->SetReceiver(this);
  {
    absl::MutexLock lock(&mu_);
    waking_ = transport_.get();
  }
  std::vector<absl::Span<std::byte>> memory = options_.memory;
  memory.push_back(payloads_->memory());
  for (const absl::Span<std::byte> span : memory) {
    if (span.empty()) continue;
    ASSIGN_OR_RETURN(registrations_.emplace_back(), transport_->RegisterMemory(span));
  }
  ASSIGN_OR_RETURN(const LinkCredentials credentials,
                   CredentialsOf(plan_, LinkRole::kWorker, options_.rank));
  for (int shard = 0; shard < plan_.shards_size(); ++shard) {
    absl::StatusOr<PeerId> peer = transport_->Connect(plan_.shards(shard).address(), credentials);
    if (!peer.ok()) {
      FailBecauseOf(shard, Annotate(peer.status(), NameOfShard(shard)));
      return peer.status();
    }
    links_[shard].peer = *peer;
    // Nothing is on a wire there, but lent: it comes back once every rank's gradient of the chunk
    // is in. Ranks that push in different orders would wait for each other's credit.
    if (transport_->Describe(*peer).shares_memory()) links_[shard].queue.Unlimit();
  }
  for (int shard = 0; shard < plan_.shards_size(); ++shard) Greet(shard);
  return absl::OkStatus();
}

WireHeader PsExchange::HeaderOf(MessageKind kind, int chunk, int64_t step) const {
  WireHeader header;
  header.kind = kind;
  header.generation = plan_.generation();
  header.job = plan_.job_number();
  header.step = step;
  header.chunk = static_cast<uint32_t>(chunk);
  header.rank = static_cast<uint32_t>(options_.rank);
  return header;
}

void PsExchange::TakePushed() {
  {
    absl::MutexLock lock(&mu_);
    taken_.swap(pushed_);
    posted_.store(false, std::memory_order_relaxed);
  }
  const int64_t now = Trace::Now();
  for (const int c : taken_) {
    Chunk& chunk = chunks_[c];
    SendQueue& queue = links_[ShardOf(c)].queue;
    chunk.awaited = VersionAfter(chunk.version.load(std::memory_order_relaxed));
    chunk.sending = true;
    chunk.ready_time = now;
    const int64_t urgency = options_.tuning.priority ? chunk.urgency : pushes_taken_++;
    queue.Add({.urgency = urgency, .chunk = c, .bytes = chunk.push_format.bytes});
    options_.metrics->queued_bytes.Increment(static_cast<double>(chunk.push_format.bytes));
    trace_.Queued(c, chunk.version, urgency, queue.credit_left());
  }
  waiting_chunks_ += static_cast<int>(taken_.size());
  taken_.clear();
}

void PsExchange::SendReady() {
  while (Link* const link = MostUrgentLink()) SendPush(*link, *link->queue.Take());
  options_.metrics->queued_chunks.Set(waiting_chunks_);
}

// All workers push in the same order: chunks that are on their way at the same time are a few
// neighbours in it, whichever links they take, and a shard has the last gradient of a chunk soon
// after the first.
PsExchange::Link* PsExchange::MostUrgentLink() {
  Link* unbound = nullptr;
  Link* bound = nullptr;  // by the window
  for (Link& link : links_) {
    const SendQueue::Entry* const entry = link.queue.Next();
    if (entry == nullptr) continue;
    Link*& best = link.queue.limited() ? bound : unbound;
    if (best == nullptr || entry->urgency < best->queue.Next()->urgency) best = &link;
  }
  if (unbound != nullptr) return unbound;
  return bound != nullptr && window_.Admits(bound->queue.Next()->bytes) ? bound : nullptr;
}

void PsExchange::SendPush(Link& link, const SendQueue::Entry& entry) {
  const int c = entry.chunk;
  Chunk& chunk = chunks_[c];
  --waiting_chunks_;
  if (link.queue.limited()) chunk.ticket = window_.Begin(entry.bytes);
  options_.metrics->queued_bytes.Decrement(static_cast<double>(entry.bytes));
  options_.metrics->credit_duration.Observe(static_cast<double>(Trace::Now() - chunk.ready_time) *
                                            1e-9);
  absl::Span<const std::byte> payload = BytesOf(PushedOf(c));
  if (chunk.encoder != nullptr) {
    chunk.encoder->Encode(PushedOf(c), chunk.packed);
    payload = chunk.packed;
  }
  // A local_sgd chunk is at its round's first version; all others are at the step of the gradient.
  WireHeader push = HeaderOf(MessageKind::kPush, c, chunk.version);
  push.dtype = chunk.push_format.dtype;
  push.codec = chunk.push_format.codec;
  push.length = payload.size();
  options_.metrics->push_bytes.Increment(static_cast<double>(payload.size()));
  link.metrics.sent_bytes.Increment(static_cast<double>(payload.size()));
  link.metrics.inflight_bytes.Set(static_cast<double>(link.queue.inflight_bytes()));
  trace_.Sent(c, chunk.version, entry.bytes, link.queue.credit_left());
  transport_->Send(link.peer, push, payload,
                   [this, c](const absl::Status& status) { Sent(c, status); });
}

void PsExchange::Sent(int chunk, const absl::Status& status) {
  Link& link = links_[ShardOf(chunk)];
  link.queue.Sent(chunks_[chunk].push_format.bytes);
  if (link.queue.limited()) window_.End(chunks_[chunk].ticket);
  link.metrics.inflight_bytes.Set(static_cast<double>(link.queue.inflight_bytes()));
  chunks_[chunk].sending = false;
  if (!status.ok()) {
    if (closing_) return;
    FailBecauseOf(
        ShardOf(chunk),
        WithReason(absl::UnavailableError(absl::StrCat("cannot push ", NameOfChunk(chunk), " to ",
                                                       NameOfShard(ShardOf(chunk)), " at step ",
                                                       step(), ": ", status.message())),
                   "PS_UNREACHABLE"));
    return;
  }
  if (chunks_[chunk].awaited < 0) Answered(chunk);
}

bool PsExchange::IsOurs(const WireHeader& header) const {
  return header.job == plan_.job_number() && header.generation == plan_.generation() &&
         header.rank == static_cast<uint32_t>(options_.rank);
}

// The link says which shard speaks; one that speaks for another is at fault. -1: nobody.
int PsExchange::SenderOf(PeerId from, const WireHeader& header) {
  const auto link = std::ranges::find(links_, from, &Link::peer);
  if (link == links_.end() || !IsOurs(header)) return -1;
  const int shard = static_cast<int>(link - links_.begin());
  const bool hello = header.kind == MessageKind::kHello;
  const uint32_t count = hello ? links_.size() : chunks_.size();
  if (header.chunk >= count) return -1;
  const int chunk = static_cast<int>(header.chunk);
  if ((hello ? chunk : ShardOf(chunk)) == shard) return shard;
  FailBecauseOf(shard,
                WithReason(absl::InvalidArgumentError(absl::StrCat(
                               NameOfShard(shard), " speaks for ",
                               NameOfShard(hello ? chunk : ShardOf(chunk)), " at step ", step())),
                           "PS_PROTOCOL"));
  return -1;
}

// A negative step would look like the -1 of a chunk that awaits nothing. An answer to a latecomer
// may be of any later version; one to a worker that catches up may be of an earlier one than it
// asked for, where this shard is behind the others.
bool PsExchange::Wants(const Chunk& chunk, int64_t version) const {
  if (version < 0 || chunk.awaited < 0) return false;
  if (version == chunk.awaited || !may_be_overtaken_) return version == chunk.awaited;
  return version > chunk.awaited || (catching_up_ && version >= chunk.version);
}

absl::Status PsExchange::ProtocolFault(int chunk, absl::string_view what) const {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(NameOfShard(ShardOf(chunk)), " sent ", what, " for ",
                                              NameOfChunk(chunk), " at step ", step())),
      "PS_PROTOCOL");
}

// Stale and repeated messages find no memory: the parameter may be in use by now.
PayloadPlace PsExchange::PlacePayload(PeerId from, const WireHeader& header) {
  if (header.kind != MessageKind::kParams || SenderOf(from, header) < 0) return {};
  const int c = static_cast<int>(header.chunk);
  const Chunk& chunk = chunks_[c];
  if (!Wants(chunk, header.step)) return {};
  const WireFormat& format = chunk.values_format;
  if (header.length != static_cast<uint64_t>(format.bytes) || header.dtype != format.dtype ||
      header.codec != format.codec) {
    FailBecauseOf(ShardOf(c), ProtocolFault(c, absl::StrCat(header.length, " bytes of type ",
                                                            static_cast<int>(header.dtype), "/",
                                                            static_cast<int>(header.codec),
                                                            " instead of ", format.bytes)));
    return {};
  }
  if (IsPlain(format)) return BytesOf(ValuesOf(c));
  return {chunk.narrow, /*in_place=*/true};
}

void PsExchange::Received(PeerId from, const WireHeader& header,
                          absl::Span<const std::byte> payload, PayloadLease) {
  const int shard = SenderOf(from, header);
  if (shard < 0) return;
  if (header.kind == MessageKind::kHello) return Greeted(shard);
  if (header.kind == MessageKind::kRefused) return Refused(header);
  const int c = static_cast<int>(header.chunk);
  Chunk& chunk = chunks_[c];
  if (header.kind != MessageKind::kParams || payload.empty() || !Wants(chunk, header.step)) return;
  if (has_loss_scale_ && !TakeLossScale(header)) return;
  if (absl::Status taken = TakeValues(c, payload); !taken.ok()) {
    return FailBecauseOf(ShardOf(c), std::move(taken));
  }
  options_.metrics->params_bytes.Increment(static_cast<double>(payload.size()));
  links_[ShardOf(c)].metrics.received_bytes.Increment(static_cast<double>(payload.size()));
  if (chunk.version >= plan_.first_step()) trace_.End(c, chunk.version);
  if (header.step != chunk.awaited && !overtaken()) {
    absl::MutexLock lock(&mu_);  // ends waits
    overtaken_.store(true, std::memory_order_release);
  }
  chunk.squares[header.step & 1] = header.scalar;
  chunk.version.store(header.step, std::memory_order_relaxed);
  chunk.awaited = -1;
  if (!chunk.sending) Answered(c);
}

// The shard has the value and sends it again.
void PsExchange::PayloadLost(PeerId from, const WireHeader& header) {
  if (SenderOf(from, header) < 0 || failed()) return;
  const int c = static_cast<int>(header.chunk);
  if (Wants(chunks_[c], header.step)) Fetch(c, header.step);
}

// Values that travelled as f32 are where they belong.
absl::Status PsExchange::TakeValues(int chunk, absl::Span<const std::byte> payload) {
  const WireFormat& format = chunks_[chunk].values_format;
  if (IsPlain(format)) return absl::OkStatus();
  absl::Status decoded = Decode(format, payload, ValuesOf(chunk));
  return decoded.ok() ? decoded : ProtocolFault(chunk, decoded.message());
}

// It is the same in all values of a version: the first one brings it. False: it is none.
bool PsExchange::TakeLossScale(const WireHeader& header) {
  if (!(header.loss_scale >= 1 && std::isfinite(header.loss_scale))) {
    const int c = static_cast<int>(header.chunk);
    FailBecauseOf(ShardOf(c), ProtocolFault(c, absl::StrCat("the loss scale ", header.loss_scale)));
    return false;
  }
  absl::MutexLock lock(&mu_);
  if (loss_scale_version_ < header.step) {
    loss_scale_version_ = header.step;
    loss_scale_ = header.loss_scale;
  }
  return true;
}

// The chunk has its new values and the memory that was sent is free. What an overtaken worker has
// is counted when it has caught up.
void PsExchange::Answered(int chunk) {
  const int parameter = plan_.chunks(chunk).parameter();
  if (!overtaken() && --unanswered_[parameter] == 0) ParameterIsBehindNoMore(parameter);
  AnswerIsIn();
}

void PsExchange::ParameterIsBehindNoMore(int parameter) {
  const bool frozen = chunks_[chunks_of_parameter_[parameter][0]].frozen;
  const int64_t before = version();
  const int64_t version = before < plan_.first_step() ? plan_.first_step() : VersionAfter(before);
  unanswered_[parameter] = static_cast<int>(chunks_of_parameter_[parameter].size());
  absl::MutexLock lock(&mu_);  // ends waits
  if (--parameters_behind_ == 0) {
    parameters_behind_ = trained_;
    version_.store(version, std::memory_order_release);
  }
  parameter_versions_[parameter].store(frozen ? kEveryVersion : version, std::memory_order_release);
}

void PsExchange::AnswerIsIn() {
  if (chunks_awaited_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  absl::MutexLock lock(&mu_);  // ends waits
}

// Everything that was pushed has been answered: once more asks for the newest version that was
// seen, until all chunks have it. The shards keep it while the others compute one step, so that one
// round is enough unless the link is slower than they are.
void PsExchange::FetchWhatIsBehind() {
  int64_t newest = plan_.first_step();
  for (const Chunk& chunk : chunks_) newest = std::max<int64_t>(newest, chunk.version);
  int64_t behind = 0;
  for (const Chunk& chunk : chunks_) behind += !chunk.frozen && chunk.version < newest;
  if (behind == 0) return HaveCaughtUp(newest);
  chunks_awaited_.fetch_add(behind, std::memory_order_relaxed);
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    if (!chunks_[c].frozen && chunks_[c].version < newest) Fetch(c, newest);
  }
}

void PsExchange::HaveCaughtUp(int64_t version) {
  for (size_t p = 0; p < chunks_of_parameter_.size(); ++p) {
    unanswered_[p] = static_cast<int>(chunks_of_parameter_[p].size());
  }
  parameters_behind_ = trained_;
  absl::MutexLock lock(&mu_);  // ends waits
  for (size_t p = 0; p < chunks_of_parameter_.size(); ++p) {
    const bool frozen = chunks_[chunks_of_parameter_[p][0]].frozen;
    parameter_versions_[p].store(frozen ? kEveryVersion : version, std::memory_order_release);
  }
  version_.store(version, std::memory_order_release);
  overtaken_.store(false, std::memory_order_release);
  catching_up_.store(false, std::memory_order_release);
}

void PsExchange::Greet(int shard) {
  transport_->Send(links_[shard].peer, HeaderOf(MessageKind::kHello, shard, plan_.first_step()), {},
                   {});
}

// The answer's chunk is the shard that gave it.
void PsExchange::Greeted(int shard) {
  bool all = false;
  {
    absl::MutexLock lock(&mu_);
    if (greeted_[shard]) return;
    greeted_[shard] = true;
    all = ++greetings_ == plan_.shards_size();
  }
  options_.metrics->ShowLink(NameOfLink(plan_.shards(shard)),
                             transport_->Describe(links_[shard].peer));
  for (int c = 0; c < plan_.chunks_size(); ++c) {
    if (ShardOf(c) == shard) Fetch(c, plan_.first_step());
  }
  LOG_IF(INFO, all) << plan_.job() << ": rank " << options_.rank << " exchanges " << chunks_.size()
                    << " chunks with " << links_.size() << " shards over " << transport_->name();
}

void PsExchange::Fetch(int chunk, int64_t version) {
  chunks_[chunk].awaited = version;
  transport_->Send(links_[ShardOf(chunk)].peer, HeaderOf(MessageKind::kFetch, chunk, version), {},
                   {});
}

void PsExchange::Refused(const WireHeader& header) {
  const int c = static_cast<int>(header.chunk);
  FailBecauseOf(ShardOf(c),
                WithReason(absl::FailedPreconditionError(absl::StrCat(
                               NameOfShard(ShardOf(c)), " refused ", NameOfChunk(c), " of step ",
                               header.step, ": ", RefusalReasonName(header.reason))),
                           "PS_REFUSED"));
}

void PsExchange::PeerLost(PeerId peer, const absl::Status& why) {
  const int shard = static_cast<int>(std::ranges::find(links_, peer, &Link::peer) - links_.begin());
  if (shard == std::ssize(links_) || closing_) return;
  const int missing = FirstChunkBehind(version() + 1, shard);
  FailBecauseOf(
      shard, WithReason(absl::UnavailableError(absl::StrCat(
                            "lost ", NameOfShard(shard), " at step ", step(),
                            missing < 0 ? "" : absl::StrCat(", waiting for ", NameOfChunk(missing)),
                            ": ", why.message())),
                        "PS_UNREACHABLE"));
}

}  // namespace muster

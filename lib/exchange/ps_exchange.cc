#include "lib/exchange/ps_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/exchange/chunk_name.h"
#include "lib/exchange/chunk_order.h"
#include "lib/plan/chunk_check.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/status/status.h"
#include "lib/telemetry/trace.h"

namespace muster {
namespace {

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
  if (options.plan->shards().empty()) return BadPlan(*options.plan, "no shards");
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
      has_terms_(plan_.spec().model().has_external()),
      rounds_(RoundSchedule::Of(plan_)),
      board_(plan_, {.overlap = options_.tuning.overlap,
                     .answer_timeout = options_.answer_timeout,
                     .on_failure = options_.on_failure}),
      chunks_(plan_.chunks_size()),
      greeted_(plan_.shards_size()),
      waits_(options_.metrics),
      window_(options_.tuning.inflight_bytes_max, plan_.chunks_size()),
      thread_(options_.transport, plan_.chunks_size(), this) {
  CHECK_EQ(std::ssize(options_.parameters), plan_.graph().parameters_size());
  CHECK(options_.odd_parameters.empty() ||
        (!averages_ && options_.narrow_parameters.empty() &&
         std::ssize(options_.odd_parameters) == plan_.graph().parameters_size()));
  CHECK_EQ(std::ssize(options_.gradients), averages_ ? 0 : plan_.graph().parameters_size());
  CHECK(options_.narrow_parameters.empty() ||
        (!averages_ && std::ssize(options_.narrow_parameters) == plan_.graph().parameters_size()));
  CHECK(options_.metrics != nullptr);
  NumberedVector<ShardIndex, int> chunks_of_shard(plan_.shards_size(), 0);
  for (const ChunkId c : chunks_.numbers()) {
    chunks_[c].version = plan_.first_step() - 1;
    chunks_[c].push_format = PushFormat(plan_, c);
    chunks_[c].values_format = ValuesFormat(plan_, c);
    CHECK(!StaysNarrow(c) || chunks_[c].values_format.bytes == 2 * Planned(c).elements());
    values_bytes_ += chunks_[c].values_format.bytes;
    ++chunks_of_shard[ShardOf(c)];
  }
  const std::vector<ChunkId> order = ChunksByFirstUse(plan_);
  for (size_t place = 0; place < order.size(); ++place) chunks_[order[place]].urgency = place;
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan_.shards_size())) {
    links_.emplace_back(
        Link{.queue = SendQueue(options_.tuning.inflight_bytes_max, chunks_of_shard[shard]),
             .metrics = options_.metrics->Link(NameOfLink(plan_.shards(ToInt(shard))))});
  }
}

// Allocates a SharedSlab for packed gradients and narrow values, so that shared-memory links send
// packed gradients without a copy.
absl::Status PsExchange::AllocatePayloads() {
  int64_t bytes = 0;
  for (const ChunkId c : chunks_.numbers()) {
    const Chunk& chunk = chunks_[c];
    if (!IsFrozen(c) && !IsPlain(chunk.push_format)) bytes += Aligned(chunk.push_format.bytes);
    if (IsWidened(c)) bytes += Aligned(chunk.values_format.bytes);
  }
  ASSIGN_OR_RETURN(payloads_, SharedSlab::Allocate(bytes));
  absl::Span<std::byte> rest = payloads_->memory();
  auto take = [&rest](int64_t size) {
    const absl::Span<std::byte> taken = rest.first(size);
    rest.remove_prefix(Aligned(size));
    return taken;
  };
  for (const ChunkId c : chunks_.numbers()) {
    Chunk& chunk = chunks_[c];
    if (!IsFrozen(c) && !IsPlain(chunk.push_format)) {
      chunk.packed = take(chunk.push_format.bytes);
      chunk.encoder =
          ChunkEncoder::Create(chunk.push_format, plan_.spec().training().seed() + ToInt(c));
    }
    if (IsWidened(c)) chunk.narrow = take(chunk.values_format.bytes);
  }
  return absl::OkStatus();
}

PsExchange::~PsExchange() {
  thread_.Close();
  for (const Link& link : links_) link.metrics.inflight_bytes.Set(0);
  options_.metrics->ForgetLinks(plan_.job());
}

absl::Status PsExchange::Connect(int64_t total_steps, std::vector<std::string>) {
  rounds_.total_steps = total_steps;
  std::vector<absl::Span<std::byte>> memory = options_.memory;
  memory.push_back(payloads_->memory());
  if (absl::Status opened = thread_.Start(std::move(memory)); !opened.ok()) Fail(std::move(opened));
  if (board_.AwaitConnected(options_.hello_timeout)) return failure();
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan_.shards_size())) {
    if (greeted_[shard]) continue;
    FailBecauseOf(
        shard, WithReason(absl::UnavailableError(absl::StrCat(
                              NameOfShard(shard), " has not answered HELLO for ",
                              absl::FormatDuration(options_.hello_timeout), " at step ", step())),
                          "PS_UNREACHABLE"));
  }
  return failure();
}

// ---------------------------------------------------------------- any thread

absl::Status PsExchange::AwaitParameter(int parameter, int64_t version) {
  return board_.AwaitParameter(parameter, version, [&] { return NameOfMissing(version); });
}

absl::Status PsExchange::AwaitVersion(int64_t version) {
  return board_.AwaitVersion(version, [&] { return NameOfMissing(version); });
}

absl::StatusOr<float> PsExchange::AwaitLossScale(int64_t version) {
  return board_.AwaitLossScale(version, [&] { return NameOfMissing(version); });
}

absl::Status PsExchange::AwaitAnswers() {
  return board_.AwaitAnswers([this] { return NameOfUnanswered(); });
}

absl::Status PsExchange::Push(ChunkId chunk, int64_t version) {
  if (IsFrozen(chunk)) return absl::OkStatus();
  CHECK_EQ(chunks_[chunk].version.load(std::memory_order_acquire), version) << NameOfChunk(chunk);
  trace_.Begin(chunk, version, ShardOf(chunk));
  RETURN_IF_ERROR(failure());
  board_.Expect(1);
  thread_.Post(chunk);
  return absl::OkStatus();
}

absl::Status PsExchange::Push(ChunkId chunk, int64_t version, const PushTerms& terms) {
  CHECK(has_terms_);
  chunks_[chunk].terms = terms;
  return Push(chunk, version);
}

absl::StatusOr<int64_t> PsExchange::CatchUp() {
  board_.BeginCatchUp();
  thread_.Wake();
  RETURN_IF_ERROR(board_.AwaitCaughtUp([this] { return NameOfUnanswered(); }));
  return version();
}

double PsExchange::GradientNorm(int64_t version) const {
  double squares = 0;
  for (const Chunk& chunk : chunks_) squares += chunk.squares[version & 1];
  // Rounded to float, because the last bits of the sum depend on how parameters are cut into
  // chunks.
  return static_cast<float>(std::sqrt(squares));
}

void PsExchange::FailBecauseOf(ShardIndex shard, absl::Status why) {
  board_.Fail(std::move(why), plan_.shards(ToInt(shard)).member());
}

std::string PsExchange::NameOfShard(ShardIndex shard) const {
  return absl::StrCat("shard ", ToInt(shard), " of ", plan_.shards(ToInt(shard)).member());
}

std::string PsExchange::NameOfChunk(ChunkId chunk) const {
  return muster::NameOfChunk(plan_, chunk);
}

std::string PsExchange::NameOfMissing(int64_t version) const {
  return NameOfMissingChunk(FirstChunkBehind(version));
}

std::string PsExchange::NameOfUnanswered() const {
  for (const ChunkId c : chunks_.numbers()) {
    if (chunks_[c].awaited >= 0) return NameOfMissingChunk(c);
  }
  return NameOfMissingChunk(std::nullopt);
}

// No chunk means that all values are here.
std::string PsExchange::NameOfMissingChunk(std::optional<ChunkId> chunk) const {
  if (!chunk) return "a gradient could not be sent";
  return absl::StrCat(NameOfChunk(*chunk), " has not come from ", NameOfShard(ShardOf(*chunk)));
}

std::optional<ChunkId> PsExchange::FirstChunkBehind(int64_t version,
                                                    std::optional<ShardIndex> shard) const {
  for (const ChunkId c : chunks_.numbers()) {
    if (shard && ShardOf(c) != *shard) continue;
    if (chunks_[c].version < board_.ChunkVersionFor(Planned(c).parameter(), version)) return c;
  }
  return std::nullopt;
}

absl::Span<float> PsExchange::ValuesOf(ChunkId chunk, int64_t version) const {
  const v1::PlanChunk& planned = Planned(chunk);
  const bool odd = !options_.odd_parameters.empty() && (version & 1) != 0;
  const auto& tensors = planned.slot() != 0 ? options_.slots[planned.slot() - 1]
                        : odd               ? options_.odd_parameters
                                            : options_.parameters;
  return PartOf(tensors[planned.parameter()], planned);
}

bool PsExchange::StaysNarrow(ChunkId chunk) const {
  return !options_.narrow_parameters.empty() &&
         options_.narrow_parameters[Planned(chunk).parameter()];
}

bool PsExchange::IsWidened(ChunkId chunk) const {
  return !IsPlain(chunks_[chunk].values_format) && !StaysNarrow(chunk);
}

absl::Span<std::byte> PsExchange::NarrowValuesOf(ChunkId chunk) const {
  const v1::PlanChunk& planned = Planned(chunk);
  return BytesOf(options_.parameters[planned.parameter()])
      .subspan(2 * planned.offset(), 2 * planned.elements());
}

// The unpacked content of a push.
absl::Span<const float> PsExchange::PushedOf(ChunkId chunk) const {
  if (averages_) return ValuesOf(chunk, chunks_[chunk].version);
  const v1::PlanChunk& planned = Planned(chunk);
  return PartOf(options_.gradients[planned.parameter()], planned);
}

// ---------------------------------------------------------------- the communication thread

absl::Status PsExchange::Open(Transport& transport) {
  transport_ = &transport;
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan_.shards_size())) {
    links_[shard].session = SessionOf(plan_, shard);
    ASSIGN_OR_RETURN(const LinkCredentials credentials,
                     CredentialsFor(links_[shard].session, plan_, options_.rank));
    absl::StatusOr<PeerId> peer =
        transport_->Connect(plan_.shards(ToInt(shard)).address(), credentials);
    if (!peer.ok()) {
      FailBecauseOf(shard,
                    WithReason(Annotate(peer.status(), NameOfShard(shard)), "PS_UNREACHABLE"));
      return peer.status();
    }
    links_[shard].peer = *peer;
    // A shared-memory link lends gradients instead of sending them. A loan is returned once every
    // rank's gradient of the chunk has arrived. With a credit, ranks that push in different orders
    // would wait for each other.
    const LinkDescription link = transport_->Describe(*peer);
    if (link.shares_memory()) links_[shard].queue.Unlimit();
    links_[shard].pull_duration = &options_.metrics->PullDuration(link.transport);
  }
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan_.shards_size())) Greet(shard);
  return absl::OkStatus();
}

WireHeader PsExchange::HeaderOf(MessageKind kind, ChunkId chunk, int64_t step) const {
  WireHeader header;
  header.kind = kind;
  header.generation = plan_.generation();
  header.job = links_[ShardOf(chunk)].session;
  header.step = step;
  header.chunk = static_cast<uint32_t>(chunk);
  header.rank = static_cast<uint32_t>(options_.rank);
  return header;
}

void PsExchange::Turn(absl::Span<const ChunkId> posted) {
  if (!posted.empty()) Enqueue(posted);
  if (board_.catching_up() && board_.chunks_awaited() == 0) FetchWhatIsBehind();
  if (waits_.chunks() > 0 && !failed()) SendReady();
}

void PsExchange::Enqueue(absl::Span<const ChunkId> chunks) {
  const int64_t now = Trace::Now();
  for (const ChunkId c : chunks) {
    Chunk& chunk = chunks_[c];
    SendQueue& queue = links_[ShardOf(c)].queue;
    chunk.awaited = rounds_.EndAfter(chunk.version.load(std::memory_order_relaxed));
    chunk.sending = true;
    chunk.ready_time = now;
    const int64_t urgency = options_.tuning.priority ? chunk.urgency : pushes_taken_++;
    queue.Add({.urgency = urgency, .chunk = c, .bytes = chunk.push_format.bytes});
    waits_.Begin(chunk.push_format.bytes);
    trace_.Queued(c, chunk.version, urgency, queue.credit_left());
  }
}

void PsExchange::SendReady() {
  while (Link* const link = MostUrgentLink()) SendPush(*link, *link->queue.Take());
  waits_.Settle();
}

// Returns the link to send on next, or null. Links without a credit go first, then the link with
// the most urgent chunk. All workers push in the same order, so chunks under way at the same time
// are close in this order. A shard gets the last gradient of a chunk soon after the first.
PsExchange::Link* PsExchange::MostUrgentLink() {
  Link* unbound = nullptr;
  Link* bound = nullptr;  // limited by the window
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
  const ChunkId c = entry.chunk;
  Chunk& chunk = chunks_[c];
  if (link.queue.limited()) chunk.ticket = window_.Begin(entry.bytes);
  const int64_t now = Trace::Now();
  waits_.End(entry.bytes, chunk.ready_time, now);
  chunk.asked_time = now;
  const bool has_payload = !has_terms_ || chunk.terms.has_gradient;
  absl::Span<const std::byte> payload;
  if (has_payload) payload = BytesOf(PushedOf(c));
  if (has_payload && chunk.encoder != nullptr) {
    chunk.encoder->Encode(PushedOf(c), chunk.packed);
    payload = chunk.packed;
  }
  // A local_sgd chunk is at its round's first version; other chunks are at the step of their
  // gradient.
  WireHeader push = HeaderOf(MessageKind::kPush, c, chunk.version);
  if (has_payload) {
    push.dtype = chunk.push_format.dtype;
    push.codec = chunk.push_format.codec;
  }
  push.length = payload.size();
  if (has_terms_) {
    push.scalar = chunk.terms.learning_rate;
    push.loss_scale = chunk.terms.weight;
  }
  options_.metrics->push_bytes.Increment(static_cast<double>(payload.size()));
  link.metrics.sent_bytes.Increment(static_cast<double>(payload.size()));
  link.metrics.inflight_bytes.Set(static_cast<double>(link.queue.inflight_bytes()));
  trace_.Sent(c, chunk.version, entry.bytes, link.queue.credit_left());
  transport_->Send(link.peer, push, payload,
                   [this, c](const absl::Status& status) { Sent(c, status); });
}

void PsExchange::Sent(ChunkId chunk, const absl::Status& status) {
  Link& link = links_[ShardOf(chunk)];
  link.queue.Sent(chunks_[chunk].push_format.bytes);
  if (link.queue.limited()) window_.End(chunks_[chunk].ticket);
  link.metrics.inflight_bytes.Set(static_cast<double>(link.queue.inflight_bytes()));
  chunks_[chunk].sending = false;
  if (!status.ok()) {
    if (thread_.closing()) return;
    FailBecauseOf(
        ShardOf(chunk),
        WithReason(absl::UnavailableError(absl::StrCat("cannot push ", NameOfChunk(chunk), " to ",
                                                       NameOfShard(ShardOf(chunk)), " at step ",
                                                       step(), ": ", status.message())),
                   "PS_UNREACHABLE"));
    return;
  }
  // The answer may come before the memory is free; the later of the two completes the push.
  if (chunks_[chunk].awaited < 0) Answered(chunk);
}

bool PsExchange::IsOurs(const Link& link, const WireHeader& header) const {
  return header.job == link.session && header.generation == plan_.generation() &&
         header.rank == static_cast<uint32_t>(options_.rank);
}

// The link identifies the shard. A shard that names another one is at fault. Returns nullopt for an
// unknown peer or after a fault.
std::optional<ShardIndex> PsExchange::SenderOf(PeerId from, const WireHeader& header) {
  const auto link = std::ranges::find(links_, from, &Link::peer);
  if (link == links_.end()) return std::nullopt;
  const ShardIndex shard = links_.NumberOf(*link);
  const auto fault = [&](const std::string& what) {
    FailBecauseOf(shard, WithReason(absl::InvalidArgumentError(absl::StrCat(
                                        NameOfShard(shard), what, " at step ", step())),
                                    "PS_PROTOCOL"));
    return std::nullopt;
  };
  const bool hello = header.kind == MessageKind::kHello;
  const bool answer = header.kind == MessageKind::kParams || header.kind == MessageKind::kRefused;
  if (!IsOurs(*link, header) || (!hello && !answer)) {
    return fault(absl::StrCat(" sent a message of kind ", static_cast<int>(header.kind),
                              " for rank ", header.rank, " of job ", header.job, ", generation ",
                              header.generation));
  }
  if (hello ? !links_.Has(ShardIndex(header.chunk)) : !chunks_.Has(ChunkId(header.chunk))) {
    return fault(absl::StrCat(" names ", hello ? "shard " : "chunk ", header.chunk));
  }
  const ShardIndex named = hello ? ShardIndex(header.chunk) : ShardOf(ChunkId(header.chunk));
  if (named != shard) return fault(absl::StrCat(" speaks for ", NameOfShard(named)));
  return shard;
}

// A negative step would match the -1 of a chunk that awaits nothing. An answer to an overtaken
// worker may have any later version. An answer to a worker that catches up may have an earlier
// version than requested, if this shard is behind the others.
bool PsExchange::Wants(const Chunk& chunk, int64_t version) const {
  if (version < 0 || chunk.awaited < 0) return false;
  if (version == chunk.awaited || !may_be_overtaken_) return version == chunk.awaited;
  return version > chunk.awaited || (board_.catching_up() && version >= chunk.version);
}

absl::Status PsExchange::ProtocolFault(ChunkId chunk, absl::string_view what) const {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(NameOfShard(ShardOf(chunk)), " sent ", what, " for ",
                                              NameOfChunk(chunk), " at step ", step())),
      "PS_PROTOCOL");
}

// Stale and repeated messages get no memory: the parameter may be in use by now.
PayloadPlace PsExchange::PlacePayload(PeerId from, const WireHeader& header) {
  if (!SenderOf(from, header) || header.kind != MessageKind::kParams) return {};
  const auto c = ChunkId(header.chunk);
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
  if (!StaysNarrow(c) && !IsPlain(format)) return {chunk.narrow, /*in_place=*/true};
  PayloadPlace place(StaysNarrow(c) ? NarrowValuesOf(c) : BytesOf(ValuesOf(c, header.step)));
  place.past_caches = values_bytes_ >= PayloadPlace::kUncachedBytesMin;
  return place;
}

void PsExchange::Received(PeerId from, const WireHeader& header,
                          absl::Span<const std::byte> payload, PayloadLease) {
  const std::optional<ShardIndex> shard = SenderOf(from, header);
  if (!shard) return;
  if (header.kind == MessageKind::kHello) return Greeted(*shard);
  if (header.kind == MessageKind::kRefused) return Refused(header);
  const auto c = ChunkId(header.chunk);
  Chunk& chunk = chunks_[c];
  if (header.kind != MessageKind::kParams || payload.empty() || !Wants(chunk, header.step)) return;
  if (has_loss_scale_ && !TakeLossScale(header)) return;
  if (absl::Status taken = TakeValues(c, header.step, payload); !taken.ok()) {
    return FailBecauseOf(ShardOf(c), std::move(taken));
  }
  options_.metrics->params_bytes.Increment(static_cast<double>(payload.size()));
  links_[ShardOf(c)].metrics.received_bytes.Increment(static_cast<double>(payload.size()));
  links_[ShardOf(c)].pull_duration->Observe(static_cast<double>(Trace::Now() - chunk.asked_time) *
                                            1e-9);
  if (chunk.version >= plan_.first_step()) trace_.End(c, chunk.version);
  if (header.step != chunk.awaited && !overtaken()) board_.SetOvertaken();
  // No thread reads the norm of a step in which this worker was overtaken. Such an answer may have
  // any later version, and its slot may still be read for the current version or the one before.
  if (header.step == chunk.awaited) chunk.squares[header.step & 1] = header.scalar;
  // Relaxed: threads that act on the version have read the parameter's version on the board, which
  // is stored later with release. Other threads only name what is missing.
  chunk.version.store(header.step, std::memory_order_relaxed);
  chunk.awaited = -1;
  if (!chunk.sending) Answered(c);
}

// Fetches the value again. The shard still has it.
void PsExchange::PayloadLost(PeerId from, const WireHeader& header) {
  if (!SenderOf(from, header) || failed()) return;
  const auto c = ChunkId(header.chunk);
  if (Wants(chunks_[c], header.step)) Fetch(c, header.step);
}

// Widens values that travelled in 16 bits. Values that travelled as f32 are in their own memory
// already.
absl::Status PsExchange::TakeValues(ChunkId chunk, int64_t version,
                                    absl::Span<const std::byte> payload) {
  if (!IsWidened(chunk)) return absl::OkStatus();
  absl::Status decoded = Decode(chunks_[chunk].values_format, payload, ValuesOf(chunk, version));
  return decoded.ok() ? decoded : ProtocolFault(chunk, decoded.message());
}

// Returns false if the header has no valid loss scale.
bool PsExchange::TakeLossScale(const WireHeader& header) {
  if (!(header.loss_scale >= 1 && std::isfinite(header.loss_scale))) {
    const auto c = ChunkId(header.chunk);
    FailBecauseOf(ShardOf(c), ProtocolFault(c, absl::StrCat("the loss scale ", header.loss_scale)));
    return false;
  }
  board_.SetLossScale(header.step, header.loss_scale);
  return true;
}

// Called when the chunk has its new values and the memory that was sent from is free.
void PsExchange::Answered(ChunkId chunk) {
  board_.Answered(Planned(chunk).parameter(), chunks_[chunk].version);
}

// Called when every push has been answered. Fetches the newest known version of all chunks
// behind it, until all chunks have it. Shards keep a version while the others compute one step, so
// one round is enough unless the link is slower than that.
void PsExchange::FetchWhatIsBehind() {
  int64_t newest = plan_.first_step();
  for (const Chunk& chunk : chunks_) newest = std::max<int64_t>(newest, chunk.version);
  int64_t behind = 0;
  for (const ChunkId c : chunks_.numbers()) {
    behind += !IsFrozen(c) && chunks_[c].version < newest;
  }
  if (behind == 0) return board_.HaveCaughtUp(newest);
  board_.Expect(behind);
  for (const ChunkId c : chunks_.numbers()) {
    if (!IsFrozen(c) && chunks_[c].version < newest) Fetch(c, newest);
  }
}

void PsExchange::Greet(ShardIndex shard) {
  WireHeader hello = HeaderOf(MessageKind::kHello, ChunkId(), plan_.first_step());
  hello.job = links_[shard].session;
  hello.chunk = static_cast<uint32_t>(shard);  // the chunk field of HELLO names the shard
  transport_->Send(links_[shard].peer, hello, {}, {});
}

// The chunk field of the answer names the shard. After a failure nothing new begins.
void PsExchange::Greeted(ShardIndex shard) {
  if (failed() || greeted_[shard].exchange(true)) return;
  const bool all = ++greetings_ == plan_.shards_size();
  if (all) board_.SetConnected();
  options_.metrics->ShowLink(plan_.job(), NameOfLink(plan_.shards(ToInt(shard))),
                             transport_->Describe(links_[shard].peer));
  for (const ChunkId c : chunks_.numbers()) {
    if (ShardOf(c) == shard) Fetch(c, plan_.first_step());
  }
  LOG_IF(INFO, all) << plan_.job() << ": rank " << options_.rank << " exchanges " << chunks_.size()
                    << " chunks with " << links_.size() << " shards over " << transport_->name();
}

void PsExchange::Fetch(ChunkId chunk, int64_t version) {
  if (chunks_[chunk].awaited < 0) chunks_[chunk].asked_time = Trace::Now();  // else: repeated
  chunks_[chunk].awaited = version;
  transport_->Send(links_[ShardOf(chunk)].peer, HeaderOf(MessageKind::kFetch, chunk, version), {},
                   {});
}

void PsExchange::Refused(const WireHeader& header) {
  const auto c = ChunkId(header.chunk);
  // No member is at fault, and another generation would be refused, too.
  if (header.reason == RefusalReason::kOtherLearningRate) {
    return Fail(WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            NameOfChunk(c), " of step ", header.step,
            ": the programs of two workers name different ",
            "learning rates; compute them from the step, or from a result of evaluate()")),
        "OTHER_LEARNING_RATE"));
  }
  FailBecauseOf(ShardOf(c),
                WithReason(absl::FailedPreconditionError(absl::StrCat(
                               NameOfShard(ShardOf(c)), " refused ", NameOfChunk(c), " of step ",
                               header.step, ": ", RefusalReasonName(header.reason),
                               "; run the same version on every member, else report it")),
                           "PS_REFUSED"));
}

void PsExchange::PeerLost(PeerId peer, const absl::Status& why) {
  const auto link = std::ranges::find(links_, peer, &Link::peer);
  if (link == links_.end() || thread_.closing()) return;
  const ShardIndex shard = links_.NumberOf(*link);
  const std::optional<ChunkId> missing = FirstChunkBehind(version() + 1, shard);
  FailBecauseOf(shard,
                WithReason(absl::UnavailableError(absl::StrCat(
                               "lost ", NameOfShard(shard), " at step ", step(),
                               missing ? absl::StrCat(", waiting for ", NameOfChunk(*missing)) : "",
                               ": ", why.message())),
                           "PS_UNREACHABLE"));
}

}  // namespace muster

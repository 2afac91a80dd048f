#include "lib/exchange/ring_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/exchange/chunk_name.h"
#include "lib/exchange/chunk_order.h"
#include "lib/plan/chunk_check.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kFloatsPerLine = 16;  // 64 bytes
// Added to the urgency of every sum. It is larger than the urgency of any value.
constexpr int64_t kUrgencyOfSums = int64_t{1} << 40;

absl::Span<std::byte> BytesOfFloats(absl::Span<float> elements) {
  return {reinterpret_cast<std::byte*>(elements.data()), elements.size() * sizeof(float)};
}

int64_t PaddedFloats(int64_t elements) {
  return (elements + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

absl::Status CheckRing(const v1::JobPlan& plan) {
  RETURN_IF_ERROR(CheckChunks(plan));
  bool same = plan.shards_size() == plan.workers_size();
  for (int r = 0; same && r < plan.workers_size(); ++r) {
    same = plan.shards(r).member() == plan.workers(r).member();
  }
  if (same) return absl::OkStatus();
  return BadPlan(plan, "its shards are not its workers'");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingExchange>> RingExchange::Create(Options options) {
  RETURN_IF_ERROR(CheckRing(*options.plan));
  auto exchange = absl::WrapUnique(new RingExchange(std::move(options)));
  RETURN_IF_ERROR(exchange->AllocateSlab());
  std::vector<absl::Span<std::byte>> memory = exchange->options_.memory;
  memory.push_back(exchange->slab_->memory());
  RETURN_IF_ERROR(exchange->thread_.Start(std::move(memory)));
  return exchange;
}

RingExchange::RingExchange(Options options)
    : options_(std::move(options)),
      plan_(*options_.plan),
      has_loss_scale_(plan_.spec().training().precision() == v1::FP16),
      judged_(StepsAreJudged(plan_.spec().training())),
      trace_(options_.tuning.trace, plan_.chunks_size()),
      place_in_order_(plan_.chunks_size()),
      board_(plan_,
             {.overlap = options_.tuning.overlap, .answer_timeout = options_.answer_timeout}),
      peers_(plan_.workers_size(), PeerId::kNone),
      hello_(plan_.workers_size()),
      chunks_(plan_.chunks_size()),
      to_next_(options_.tuning.inflight_bytes_max, 2 * plan_.chunks_size()),
      waits_(options_.metrics),
      thread_(options_.transport, plan_.chunks_size(), this) {
  CHECK_EQ(std::ssize(options_.parameters), plan_.graph().parameters_size());
  CHECK_EQ(std::ssize(options_.gradients), plan_.graph().parameters_size());
  CHECK(options_.shard != nullptr && options_.metrics != nullptr);
  for (const ChunkId c : chunks_.numbers()) {
    chunks_[c].version = plan_.first_step() - 1;
    chunks_[c].sum_step = plan_.first_step();
  }
  const std::vector<ChunkId> order = ChunksByFirstUse(plan_);
  for (int place = 0; place < std::ssize(order); ++place) place_in_order_[order[place]] = place;
  if (ranks() > 1) {
    next_link_.emplace(options_.metrics->Link(MemberOf(next())));
    previous_link_.emplace(options_.metrics->Link(MemberOf(previous())));
  }
}

// Allocates one place for every chunk with a sum that is received here.
absl::Status RingExchange::AllocateSlab() {
  int64_t floats = 0;
  auto receives = [this](ChunkId c) { return ranks() > 1 && !BeginsSum(c); };
  for (const ChunkId c : chunks_.numbers()) {
    if (receives(c)) floats += PaddedFloats(Planned(c).elements());
  }
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  ASSIGN_OR_RETURN(auto reservation, options_.shard->Reserve(bytes));
  ASSIGN_OR_RETURN(slab_, Slab::Allocate(bytes, std::move(reservation)));
  auto* next = reinterpret_cast<float*>(slab_->memory().data());
  for (const ChunkId c : chunks_.numbers()) {
    if (!receives(c)) continue;
    chunks_[c].slab = next;
    next += PaddedFloats(Planned(c).elements());
  }
  return absl::OkStatus();
}

RingExchange::~RingExchange() {
  thread_.Close();
  options_.metrics->ForgetLinks(plan_.job());
}

absl::Status RingExchange::Connect(int64_t total_steps, std::vector<std::string> addresses) {
  RETURN_IF_ERROR(board_.failure());
  if (std::ssize(addresses) != ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("started with ", addresses.size(), " addresses for ", ranks(), " shards"));
  }
  addresses_ = std::move(addresses);
  total_steps_ = total_steps;
  connecting_.store(true, std::memory_order_release);
  thread_.Wake();
  if (board_.AwaitConnected(options_.hello_timeout)) return board_.failure();
  for (const Rank rank : peers_.numbers()) {
    if (!IsPeer(rank) || hello_[rank]) continue;
    FailBecauseOf(
        rank, WithReason(absl::UnavailableError(absl::StrCat(
                             NameOfRank(rank), " has not said HELLO for ",
                             absl::FormatDuration(options_.hello_timeout), " at step ", step())),
                         "PEER_UNREACHABLE"));
  }
  return board_.failure();
}

// ---------------------------------------------------------------- any thread

absl::Status RingExchange::AwaitParameter(int parameter, int64_t version) {
  return board_.AwaitParameter(parameter, version, [&] { return NameOfMissing(version); });
}

absl::Status RingExchange::AwaitVersion(int64_t version) {
  return board_.AwaitVersion(version, [&] { return NameOfMissing(version); });
}

absl::StatusOr<float> RingExchange::AwaitLossScale(int64_t version) {
  return board_.AwaitLossScale(version, [&] { return NameOfMissing(version); });
}

absl::Status RingExchange::AwaitAnswers() {
  return board_.AwaitAnswers([this] { return NameOfUnanswered(); });
}

absl::Status RingExchange::Push(ChunkId chunk, int64_t step) {
  if (board_.frozen(Planned(chunk).parameter())) return absl::OkStatus();
  CHECK_EQ(chunks_[chunk].version.load(std::memory_order_acquire), step) << NameOfChunk(chunk);
  trace_.Begin(chunk, step, ShardIndex(Planned(chunk).shard()));
  RETURN_IF_ERROR(board_.failure());
  board_.Expect(1);
  thread_.Post(chunk);
  return absl::OkStatus();
}

// Rounds the norm to float: the last bits of the double sum depend on how parameters are split into
// chunks.
double RingExchange::GradientNorm(int64_t version) const {
  double squares = 0;
  for (const Chunk& chunk : chunks_) squares += chunk.squares[version & 1];
  return static_cast<float>(std::sqrt(squares));
}

void RingExchange::FailBecauseOf(Rank rank, absl::Status why) {
  board_.Fail(std::move(why), MemberOf(rank));
}

std::string RingExchange::NameOfRank(Rank rank) const {
  return absl::StrCat(MemberOf(rank), " (rank ", ToInt(rank), ")");
}

std::string RingExchange::NameOfChunk(ChunkId chunk) const {
  return muster::NameOfChunk(plan_, chunk);
}

std::string RingExchange::NameOfMissing(int64_t version) const {
  return NameOfMissingChunk(FirstChunkBehind(version));
}

std::string RingExchange::NameOfUnanswered() const {
  for (const ChunkId c : chunks_.numbers()) {
    const Chunk& chunk = chunks_[c];
    if (!chunk.answered || chunk.version < plan_.first_step()) return NameOfMissingChunk(c);
  }
  return NameOfMissingChunk(std::nullopt);
}

// No chunk means that all values are here.
std::string RingExchange::NameOfMissingChunk(std::optional<ChunkId> chunk) const {
  if (!chunk) return "a gradient could not be sent";
  return absl::StrCat(NameOfChunk(*chunk), " of ", NameOfRank(OwnerOf(*chunk)),
                      " has not come from ", NameOfRank(previous()));
}

std::optional<ChunkId> RingExchange::FirstChunkBehind(int64_t version) const {
  for (const ChunkId c : chunks_.numbers()) {
    if (chunks_[c].version < board_.ChunkVersionFor(Planned(c).parameter(), version)) return c;
  }
  return std::nullopt;
}

absl::Span<float> RingExchange::GradientOf(ChunkId chunk) const {
  const v1::PlanChunk& planned = Planned(chunk);
  return options_.gradients[planned.parameter()].subspan(planned.offset(), planned.elements());
}

absl::Span<float> RingExchange::ValuesOf(ChunkId chunk) const {
  const v1::PlanChunk& planned = Planned(chunk);
  return options_.parameters[planned.parameter()].subspan(planned.offset(), planned.elements());
}

// ---------------------------------------------------------------- the communication thread

absl::Status RingExchange::Open(Transport& transport) {
  ASSIGN_OR_RETURN(credentials_, CredentialsOf(plan_, options_.rank));
  transport_ = &transport;
  transport.OpenSession(plan_.job_number(), plan_.generation(), credentials_.token);
  address_ = transport.address();
  options_.shard->WakeBy([this] { thread_.Wake(); });
  options_.shard->parameters().set_output(this);
  return absl::OkStatus();
}

void RingExchange::Turn(absl::Span<const ChunkId> posted) {
  Join();
  options_.shard->Turn(ParameterShard::Clock::now);
  for (const ChunkId c : posted) {
    chunks_[c].pushed = true;
    chunks_[c].answered = false;
    Combine(c);
  }
  SendReady();
}

void RingExchange::Closing() {
  options_.shard->WakeBy(nullptr);
  for (Chunk& chunk : chunks_) chunk.lease = PayloadLease();
}

// After Connect() was called, connects to the peers of higher ranks and greets all connected peers.
// Peers of lower ranks connect to this worker, and may have done so already.
void RingExchange::Join() {
  if (joined_ || !connecting_.load(std::memory_order_acquire) || failed()) return;
  joined_ = true;
  options_.shard->parameters().Start(total_steps_);
  for (const Rank rank : peers_.numbers()) {
    if (IsPeer(rank) && rank > options_.rank && !Dial(rank, addresses_[ToInt(rank)])) return;
    if (peers_[rank] != PeerId::kNone) Greet(rank);
  }
  OpenIfAnswered();
}

// The relation is symmetric.
bool RingExchange::IsPeer(Rank rank) const {
  if (rank == options_.rank) return false;
  const Rank judge = OwnerOf(kFirstShard);
  const bool verdicts = judged_ && (rank == judge || options_.rank == judge);
  return rank == next() || rank == previous() || verdicts;
}

bool RingExchange::Dial(Rank rank, const std::string& address) {
  absl::StatusOr<PeerId> peer = transport_->Connect(address, credentials_);
  if (!peer.ok()) {
    FailBecauseOf(rank, WithReason(Annotate(peer.status(),
                                            absl::StrCat("cannot connect to ", NameOfRank(rank))),
                                   "PEER_UNREACHABLE"));
    return false;
  }
  peers_[rank] = *peer;
  return true;
}

// Tells the peer that this worker was started.
void RingExchange::Greet(Rank rank) {
  transport_->Send(peers_[rank], HeaderOf(MessageKind::kHello), {}, {});
}

// Accepts each peer of a lower rank once, and refuses all others.
void RingExchange::PeerJoined(PeerId peer, const LinkIdentity& who) {
  const auto rank = Rank(who.index);
  if (who.role != LinkRole::kWorker || !peers_.Has(rank) || rank >= options_.rank ||
      !IsPeer(rank) || peers_[rank] != PeerId::kNone) {
    LOG_EVERY_T(WARNING, 1) << plan_.job() << ": rank " << options_.rank
                            << " refuses a connection of " << NameOf(who);
    return transport_->Disconnect(peer);
  }
  peers_[rank] = peer;
  if (joined_) Greet(rank);
}

void RingExchange::OpenIfAnswered() {
  for (const Rank rank : peers_.numbers()) {
    if (open_ || (IsPeer(rank) && !hello_[rank])) return;
  }
  board_.SetConnected();
  open_ = true;
  for (const Rank rank : peers_.numbers()) {
    if (!IsPeer(rank)) continue;
    options_.metrics->ShowLink(plan_.job(), MemberOf(rank), transport_->Describe(peers_[rank]));
  }
  LOG(INFO) << plan_.job() << ": rank " << options_.rank << " of a ring of " << ranks()
            << " exchanges " << chunks_.size() << " chunks over " << transport_->name();
  for (const ChunkId c : chunks_.numbers()) {
    if (!Owns(c)) continue;
    WireHeader fetch = HeaderOf(MessageKind::kFetch);
    fetch.step = plan_.first_step();
    fetch.chunk = static_cast<uint32_t>(c);
    fetch.rank = 0;
    CHECK(options_.shard->parameters().Fetch(fetch) == RefusalReason::kNone) << NameOfChunk(c);
  }
}

WireHeader RingExchange::HeaderOf(MessageKind kind) const {
  WireHeader header;
  header.kind = kind;
  header.generation = plan_.generation();
  header.job = plan_.job_number();
  header.rank = static_cast<uint32_t>(options_.rank);
  return header;
}

// ---------------------------------------------------------------- the path of a chunk

// Adds this worker's gradient to the sum once both are here. Waits until the chunk's last value was
// sent, because the next value overwrites it. That next value cannot arrive without this gradient.
void RingExchange::Combine(ChunkId c) {
  Chunk& chunk = chunks_[c];
  const bool complete = ranks() == 1 || BeginsSum(c) || chunk.incoming == Incoming::kHere;
  if (!chunk.pushed || !complete || chunk.sending_value || failed()) return;
  chunk.pushed = false;
  // The chunk's next sum may arrive from now on, see PlaceSum().
  ++chunk.sum_step;
  if (chunk.incoming == Incoming::kHere) AddIncoming(c);
  if (Owns(c)) return GiveToShard(c);
  Enqueue(c, Payload::kSum);
}

// The sum is computed into this worker's gradient; the received sum is not needed afterwards.
void RingExchange::AddIncoming(ChunkId c) {
  Chunk& chunk = chunks_[c];
  const absl::Span<float> own = GradientOf(c);
  const kernels::Gradient terms[] = {{.elements = chunk.sum}, {.elements = own.data()}};
  kernels::SumGradients(own.data(), terms, 2, std::ssize(own));
  chunk.incoming = Incoming::kAwaited;
  chunk.sum = nullptr;
  chunk.lease = PayloadLease();
}

// Lends the sum in place: its memory does not change until the new value is here. The shard may
// answer inside PushArrived(), by SendTo().
void RingExchange::GiveToShard(ChunkId c) {
  ParameterShard& shard = options_.shard->parameters();
  const absl::Span<const std::byte> sum = BytesOfFloats(GradientOf(c));
  WireHeader push = HeaderOf(MessageKind::kPush);
  push.dtype = WireDType::kF32;
  push.step = chunks_[c].version.load(std::memory_order_relaxed);
  push.chunk = static_cast<uint32_t>(c);
  push.rank = 0;
  push.length = sum.size();
  CHECK_EQ(shard.PlacePush(push).memory.size(), sum.size())
      << NameOfChunk(c) << " at step " << push.step;
  CHECK(shard.PushArrived(push, sum, PayloadLease()) == RefusalReason::kNone) << NameOfChunk(c);
}

// Takes the shard's answer, which then goes around the ring.
void RingExchange::SendTo(Rank, const WireHeader& header, absl::Span<const std::byte> payload,
                          Transport::SendDone done) {
  const auto c = ChunkId(header.chunk);
  const absl::Span<std::byte> values = BytesOfFloats(ValuesOf(c));
  CHECK_EQ(values.size(), payload.size()) << NameOfChunk(c);
  std::memcpy(values.data(), payload.data(), payload.size());
  ValueHere(c, header);
  if (done) done(absl::OkStatus());
}

// Called when the chunk's values have version header.step.
void RingExchange::ValueHere(ChunkId c, const WireHeader& header) {
  Chunk& chunk = chunks_[c];
  if (header.step > plan_.first_step()) trace_.End(c, header.step - 1);
  chunk.squares[header.step & 1] = header.scalar;
  chunk.loss_scale = header.loss_scale;
  if (has_loss_scale_) board_.SetLossScale(header.step, header.loss_scale);
  chunk.version.store(header.step, std::memory_order_relaxed);
  chunk.answered = true;
  if (ranks() > 1 && !EndsGather(c)) Enqueue(c, Payload::kValue);
  if (!chunk.sending_sum) Answered(c);
}

// Called when the chunk has its new values and its gradient's memory is free.
void RingExchange::Answered(ChunkId c) {
  board_.Answered(Planned(c).parameter(), chunks_[c].version);
}

// Values go before sums. A worker that lacks a value cannot compute the gradient that a sum waits
// for, so a sum sent first would only wait there.
void RingExchange::Enqueue(ChunkId c, Payload payload) {
  (payload == Payload::kSum ? chunks_[c].sending_sum : chunks_[c].sending_value) = true;
  const int64_t place = options_.tuning.priority ? place_in_order_[c] : enqueued_++;
  const int64_t urgency = place + (payload == Payload::kSum ? kUrgencyOfSums : 0);
  const int64_t bytes = Planned(c).elements() * static_cast<int64_t>(sizeof(float));
  to_next_.Add({.urgency = urgency, .chunk = c, .bytes = bytes});
  chunks_[c].ready_time[payload == Payload::kSum] = Trace::Now();
  waits_.Begin(bytes);
  if (payload == Payload::kSum) {
    trace_.Queued(c, chunks_[c].version, urgency, to_next_.credit_left());
  }
}

void RingExchange::SendReady() {
  while (open_ && !failed()) {
    const std::optional<SendQueue::Entry> entry = to_next_.Take();
    if (!entry) break;
    const ChunkId c = entry->chunk;
    const Chunk& chunk = chunks_[c];
    const Payload payload = entry->urgency < kUrgencyOfSums ? Payload::kValue : Payload::kSum;
    waits_.End(entry->bytes, chunk.ready_time[payload == Payload::kSum], Trace::Now());
    WireHeader header =
        HeaderOf(payload == Payload::kSum ? MessageKind::kPush : MessageKind::kParams);
    header.dtype = WireDType::kF32;
    header.step = chunk.version.load(std::memory_order_relaxed);
    header.chunk = static_cast<uint32_t>(c);
    header.length = entry->bytes;
    if (payload == Payload::kValue) {
      header.scalar = chunk.squares[header.step & 1];
      header.loss_scale = chunk.loss_scale;
    } else {
      options_.metrics->push_bytes.Increment(static_cast<double>(entry->bytes));
      trace_.Sent(c, header.step, entry->bytes, to_next_.credit_left());
    }
    next_link_->sent_bytes.Increment(static_cast<double>(entry->bytes));
    transport_->Send(peers_[next()], header,
                     BytesOfFloats(payload == Payload::kSum ? GradientOf(c) : ValuesOf(c)),
                     [this, c, payload](const absl::Status& status) { Sent(c, payload, status); });
  }
  if (open_) waits_.Settle();
  if (next_link_) next_link_->inflight_bytes.Set(static_cast<double>(to_next_.inflight_bytes()));
}

void RingExchange::Sent(ChunkId c, Payload payload, const absl::Status& status) {
  Chunk& chunk = chunks_[c];
  to_next_.Sent(Planned(c).elements() * static_cast<int64_t>(sizeof(float)));
  (payload == Payload::kSum ? chunk.sending_sum : chunk.sending_value) = false;
  if (!status.ok()) {
    if (thread_.closing()) return;
    return FailBecauseOf(next(),
                         WithReason(absl::UnavailableError(absl::StrCat(
                                        "cannot send ", NameOfChunk(c), " to ", NameOfRank(next()),
                                        " at step ", step(), ": ", status.message())),
                                    "PEER_UNREACHABLE"));
  }
  // Combine() may have waited for this.
  if (payload == Payload::kValue) return Combine(c);
  if (chunk.answered) Answered(c);
}

// ---------------------------------------------------------------- messages

// Returns whether `rank` may send a message of this kind to this worker. Payloads go around the
// ring; shards agree through rank 0's shard.
bool RingExchange::MaySay(Rank rank, MessageKind kind) const {
  switch (kind) {
    case MessageKind::kHello:
      return true;
    case MessageKind::kPush:
    case MessageKind::kParams:
      return rank == previous();
    case MessageKind::kSquares:
    case MessageKind::kNorms:
      return judged_ && options_.rank == OwnerOf(kFirstShard);
    case MessageKind::kVerdict:
    case MessageKind::kTrust:
      return judged_ && rank == OwnerOf(kFirstShard);
    default:
      return false;
  }
}

// The link identifies the rank. A rank that sends a message that its role may not send is at fault.
// Returns nullopt for an unknown peer or after a fault.
std::optional<Rank> RingExchange::SenderOf(PeerId from, const WireHeader& header) {
  const auto peer = std::ranges::find(peers_, from);
  if (peer == peers_.end()) return std::nullopt;
  const Rank rank = peers_.NumberOf(*peer);
  if (header.job == plan_.job_number() && header.generation == plan_.generation() &&
      header.rank == static_cast<uint32_t>(rank) && MaySay(rank, header.kind)) {
    return rank;
  }
  FailBecauseOf(rank,
                WithReason(absl::InvalidArgumentError(absl::StrCat(
                               NameOfRank(rank), " sent a message of kind ",
                               static_cast<int>(header.kind), " as rank ", header.rank, " of job ",
                               header.job, " at step ", step(), ", which it may not send")),
                           "PEER_PROTOCOL"));
  return std::nullopt;
}

PayloadPlace RingExchange::PlacePayload(PeerId from, const WireHeader& header) {
  if (!SenderOf(from, header)) return {};
  switch (header.kind) {
    case MessageKind::kPush:
      return PlaceSum(header);
    case MessageKind::kParams:
      return PlaceValue(header);
    case MessageKind::kSquares:
    case MessageKind::kNorms:
    case MessageKind::kTrust:
      return options_.shard->parameters().PlaceReport(header);
    default:
      return {};
  }
}

// Accepts sums of this worker's current step or the next one: the rank that began the sum has the
// values of that step, which may still be on their way here. Stale and repeated messages get no
// memory.
PayloadPlace RingExchange::PlaceSum(const WireHeader& header) {
  const auto c = ChunkId(header.chunk);
  if (Rank(header.rank) != previous() || !chunks_.Has(c)) return {};
  Chunk& chunk = chunks_[c];
  if (chunk.slab == nullptr || header.step != chunk.sum_step ||
      chunk.incoming != Incoming::kAwaited || !IsWhole(header, c)) {
    return {};
  }
  chunk.incoming = Incoming::kPlacing;
  return {BytesOfFloats(absl::MakeSpan(chunk.slab, Planned(c).elements())), /*in_place=*/true};
}

PayloadPlace RingExchange::PlaceValue(const WireHeader& header) {
  const auto c = ChunkId(header.chunk);
  if (Rank(header.rank) != previous() || !chunks_.Has(c)) return {};
  if (Owns(c) || !AwaitsValue(c, header.step) || !IsWhole(header, c)) return {};
  return BytesOfFloats(ValuesOf(c));
}

// A value of step s + 1 contains this worker's gradient of step s.
bool RingExchange::AwaitsValue(ChunkId c, int64_t step) const {
  const Chunk& chunk = chunks_[c];
  return step == chunk.version.load(std::memory_order_relaxed) + 1 && step == chunk.sum_step;
}

// Returns whether the payload has the format of the plan. Otherwise the sender is at fault.
bool RingExchange::IsWhole(const WireHeader& header, ChunkId c) {
  const size_t bytes = Planned(c).elements() * sizeof(float);
  if (header.length == bytes && header.dtype == WireDType::kF32 &&
      header.codec == WireCodec::kRaw) {
    return true;
  }
  FailBecauseOf(previous(),
                WithReason(absl::InvalidArgumentError(absl::StrCat(
                               NameOfRank(previous()), " sent ", header.length, " bytes for ",
                               NameOfChunk(c), " of ", bytes, " bytes at step ", step())),
                           "PEER_PROTOCOL"));
  return false;
}

void RingExchange::Received(PeerId from, const WireHeader& header,
                            absl::Span<const std::byte> payload, PayloadLease lease) {
  const std::optional<Rank> rank = SenderOf(from, header);
  if (!rank) return;
  if (header.kind == MessageKind::kHello) return ReceivedHello(*rank);
  if (header.kind == MessageKind::kVerdict) {
    options_.shard->parameters().DecisionArrived(header, payload);
    return;
  }
  if (payload.empty()) return;
  switch (header.kind) {
    case MessageKind::kPush:
      return ReceivedSum(header, payload, std::move(lease));
    case MessageKind::kParams:
      return ReceivedValue(header, payload);
    case MessageKind::kSquares:
    case MessageKind::kNorms:
    case MessageKind::kTrust:
      return options_.shard->parameters().ReportArrived(header);
    default:
      return;
  }
}

// Fails the exchange: a lost payload is not sent again, so its step cannot be finished.
void RingExchange::PayloadLost(PeerId from, const WireHeader& header) {
  const std::optional<Rank> rank = SenderOf(from, header);
  if (!rank || thread_.closing()) return;
  // Messages between shards name no chunk.
  const bool of_chunk = header.kind == MessageKind::kPush || header.kind == MessageKind::kParams;
  if (!of_chunk) options_.shard->parameters().ReportLost(header);
  FailBecauseOf(*rank,
                WithReason(absl::UnavailableError(absl::StrCat(
                               "a payload of ", NameOfRank(*rank), " was lost on its way, of ",
                               of_chunk ? NameOfChunk(ChunkId(header.chunk)) : "the verdict",
                               " at step ", step())),
                           "PEER_UNREACHABLE"));
}

// HELLO says that the peer was started.
void RingExchange::ReceivedHello(Rank rank) {
  hello_[rank] = true;
  if (joined_) OpenIfAnswered();
}

void RingExchange::ReceivedSum(const WireHeader& header, absl::Span<const std::byte> payload,
                               PayloadLease lease) {
  const auto c = ChunkId(header.chunk);
  if (!chunks_.Has(c)) return;
  Chunk& chunk = chunks_[c];
  if (chunk.incoming != Incoming::kPlacing || header.step != chunk.sum_step) return;
  previous_link_->received_bytes.Increment(static_cast<double>(payload.size()));
  chunk.incoming = Incoming::kHere;
  chunk.sum = reinterpret_cast<const float*>(payload.data());
  chunk.lease = std::move(lease);
  Combine(c);
}

void RingExchange::ReceivedValue(const WireHeader& header, absl::Span<const std::byte> payload) {
  const auto c = ChunkId(header.chunk);
  if (!chunks_.Has(c) || !AwaitsValue(c, header.step)) return;
  if (has_loss_scale_ && !(header.loss_scale >= 1 && std::isfinite(header.loss_scale))) {
    return FailBecauseOf(previous(), WithReason(absl::InvalidArgumentError(absl::StrCat(
                                                    NameOfRank(previous()), " sent the loss scale ",
                                                    header.loss_scale, " at step ", step())),
                                                "PEER_PROTOCOL"));
  }
  options_.metrics->params_bytes.Increment(static_cast<double>(payload.size()));
  previous_link_->received_bytes.Increment(static_cast<double>(payload.size()));
  ValueHere(c, header);
}

void RingExchange::SendToShard(ShardIndex shard, const WireHeader& header,
                               absl::Span<const std::byte> payload, Transport::SendDone done) {
  const PeerId peer = peers_[OwnerOf(shard)];
  if (peer == PeerId::kNone) {
    return done(absl::UnavailableError(absl::StrCat(
        "shard ", ToInt(shard), " of ", NameOfRank(OwnerOf(shard)), " is not connected")));
  }
  transport_->Send(peer, header, payload, std::move(done));
}

void RingExchange::SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) {
  options_.shard->Taken(std::move(snapshot));
}

void RingExchange::SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                                    const std::string& message) {
  options_.shard->Declined(id, step, outcome, message);
}

void RingExchange::PeerLost(PeerId peer, const absl::Status& why) {
  const auto lost = std::ranges::find(peers_, peer);
  if (lost == peers_.end() || thread_.closing()) return;
  const Rank rank = peers_.NumberOf(*lost);
  const std::optional<ChunkId> missing = FirstChunkBehind(version() + 1);
  FailBecauseOf(rank,
                WithReason(absl::UnavailableError(absl::StrCat(
                               "lost ", NameOfRank(rank), " at step ", step(),
                               missing ? absl::StrCat(", waiting for ", NameOfChunk(*missing)) : "",
                               ": ", why.message())),
                           "PEER_UNREACHABLE"));
}

}  // namespace muster

#include "lib/transport/ucx/ucx_transport.h"

#include <glog/logging.h>
#include <openssl/rand.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_join.h"
#include "lib/status/status.h"
#include "lib/transport/core/address_envelope.h"
#include "lib/transport/ucx/ucx_context.h"
#include "lib/transport/ucx/ucx_greeting.h"

namespace muster {
namespace {

// The ids of our active messages.
constexpr unsigned kMessageId = 0;
constexpr unsigned kJoinId = 1;
constexpr unsigned kControlId = 2;

constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);
// After this time Disconnect() no longer waits until UCX has written a payload of the peer, but
// closes the endpoint. After kFetchEndMax the process aborts.
constexpr auto kFetchEndTime = std::chrono::milliseconds(20);
constexpr auto kFetchEndMax = std::chrono::seconds(60);

// The mark protects UCX, which crashes when it unpacks bytes that are no address of its own.
constexpr absl::string_view kAddressMark = "MUX1";

constexpr absl::string_view kNotLetIn =
    "not let in: no such session is open there, or its token differs";

constexpr size_t kLinkTagBytes = sizeof(LinkTag);
constexpr size_t kMessageBytes = WireHeader::kBytes + kLinkTagBytes;
constexpr size_t kHeaderBytesMax = std::max({UcxJoin::kBytes, UcxControl::kBytes, kMessageBytes});

}  // namespace

// A send in progress, or one that waits for its link. UCX reads `header` until the send has
// finished.
struct UcxTransport::Outgoing {
  UcxTransport* transport;
  Peer* peer = nullptr;  // null: free, of no link, or its peer was cut off before UCX finished it
  size_t index = 0;      // position in peer->under_way
  bool posted = false;   // UCX took it, and reports its end to OnSent()
  bool sent = false;     // it was sent or never will be; `status` has the result
  unsigned id = kMessageId;
  unsigned flags = 0;
  absl::Span<const std::byte> payload;
  absl::Status status;
  SendDone done;
  size_t header_bytes = 0;
  std::array<std::byte, kHeaderBytesMax> header;

  void SetHeader(absl::Span<const std::byte> bytes) {
    header_bytes = bytes.size();
    std::memcpy(header.data(), bytes.data(), bytes.size());
  }
};

// A large payload that is being received or waits for its turn.
struct UcxTransport::Incoming : FetchTurns::Payload {
  explicit Incoming(UcxTransport* transport) : transport(transport) {}

  UcxTransport* const transport;
  Arrival arrival;
  void* data = nullptr;  // UCX's handle
};

// A peer that has proved to be `identity` and waits for an answer.
struct UcxTransport::JoinRequest {
  LinkIdentity identity;
  SessionToken token;
  LinkTag tag;
  std::string ucx_address;
};

// A peer lives until UCX has closed its endpoint, because UCX's error callback refers to it.
struct UcxTransport::Peer {
  bool open() const { return endpoint != nullptr; }
  bool Closed();  // whether UCX has closed its endpoint

  UcxTransport* transport;
  PeerId id;
  LinkIdentity identity;  // of the connecting side
  SessionToken token;
  LinkTag tag;                  // of incoming messages
  LinkTag to = {};              // of outgoing messages, once `greeted`
  bool greeted = false;         // the peer has sent its tag
  bool ready = false;           // the peer accepts messages
  ucp_ep_h endpoint = nullptr;  // null while closing, or if UCX made none
  void* close_request = nullptr;
  bool broken = false;  // UCX has given up the endpoint
  bool disconnected = false;
  absl::Status lost;    // the reason, once it is lost
  absl::Status unsent;  // the status of sends that closing cuts off
  Clock::time_point close_by;
  int fetches = 0;  // number of its payloads being received now
  std::vector<Outgoing*> under_way;
  std::vector<Outgoing*> held;  // those in under_way that wait until the peer is ready
};

struct UcxTransport::Callbacks {
  static void OnError(void* argument, ucp_ep_h, ucs_status_t status) {
    auto* peer = static_cast<Peer*>(argument);
    peer->broken = true;
    peer->transport->Lose(*peer, UcxStatus(status == UCS_OK ? UCS_ERR_CONNECTION_RESET : status));
  }

  static void OnSent(void* request, ucs_status_t status, void* argument) {
    auto* outgoing = static_cast<Outgoing*>(argument);
    ucp_request_free(request);
    if (outgoing->peer == nullptr) {
      outgoing->transport->free_outgoing_.push_back(outgoing);
      return;
    }
    outgoing->sent = true;
    outgoing->status = UcxStatus(status);
    outgoing->transport->sent_.push_back(outgoing);
  }

  // UCX calls this for each message. If it returns OK without placing the payload, UCX drops the
  // payload, even if that is still at the sender.
  static ucs_status_t OnMessage(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    auto* transport = static_cast<UcxTransport*>(argument);
    if (transport->receiver_ == nullptr) return Ignore(param->recv_attr);
    const auto bytes = absl::MakeConstSpan(static_cast<const std::byte*>(header), header_bytes);
    if (bytes.size() != kMessageBytes) return Malformed(transport);
    const absl::StatusOr<WireHeader> decoded = DecodeHeader(bytes.first(WireHeader::kBytes));
    if (!decoded.ok() || decoded->length != length) return Malformed(transport);
    LinkTag tag;
    std::memcpy(tag.data(), bytes.data() + WireHeader::kBytes, kLinkTagBytes);
    Peer* const peer = transport->FindLink(tag);
    if (peer == nullptr || !peer->greeted) return Stray(transport);
    transport->NoteReady(*peer);
    if (length == 0) {
      transport->arrived_.push_back({peer, *decoded, {}});
      return UCS_OK;
    }
    const bool at_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (!transport->deferring_) return Place(transport, peer, *decoded, data, at_sender);
    Deferred& later = transport->deferred_.emplace_back(Deferred{peer, *decoded});
    if (at_sender) {
      later.fetched_by = data;
      return UCS_INPROGRESS;
    }
    const auto* const here = static_cast<const std::byte*>(data);
    later.payload.assign(here, here + length);
    return UCS_OK;
  }

  // Asks the receiver for memory and copies or fetches the payload into it. Returns UCS_OK if UCX
  // need not keep `data`.
  static ucs_status_t Place(UcxTransport* transport, Peer* peer, const WireHeader& header,
                            void* data, bool at_sender) {
    const absl::Span<std::byte> place = transport->receiver_->PlacePayload(peer->id, header).memory;
    if (place.empty()) return UCS_OK;
    CHECK_EQ(place.size(), header.length);
    if (!at_sender) {
      std::memcpy(place.data(), data, header.length);
      transport->arrived_.push_back({peer, header, place});
      return UCS_OK;
    }
    transport->Fetch(data, {peer, header, place});
    return UCS_INPROGRESS;
  }

  static void OnFetched(void* request, ucs_status_t status, size_t, void* argument) {
    auto* incoming = static_cast<Incoming*>(argument);
    UcxTransport* const transport = incoming->transport;
    ucp_request_free(request);
    transport->EndFetch(incoming, status);
    if (transport->receiver_ != nullptr) transport->FetchNext();
  }

  static ucs_status_t OnJoin(void* argument, const void* header, size_t header_bytes, void* data,
                             size_t length, const ucp_am_recv_param_t* param) {
    auto* transport = static_cast<UcxTransport*>(argument);
    if (transport->receiver_ == nullptr) return UCS_OK;
    const auto join = absl::MakeConstSpan(static_cast<const std::byte*>(header), header_bytes);
    const std::optional<UcxJoin> decoded = UcxJoin::Decode(join);
    if (!decoded.has_value() || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      return Malformed(transport);
    }
    const absl::string_view address(static_cast<const char*>(data), length);
    const SessionToken* const token =
        transport->sessions_.Find(decoded->identity.job, decoded->identity.generation);
    // The address is parsed only after the proof shows that a member sent it.
    if (token == nullptr || !UcxJoin::IsProven(join, *token, address, transport->address_)) {
      transport->refused_.fetch_add(1, std::memory_order_relaxed);
      Reply(transport, param, UcxControl::Kind::kRefused, decoded->tag);
      return UCS_OK;
    }
    const auto ucx_address = OpenAddress(kAddressMark, address, "UCX address");
    if (!ucx_address.ok()) return Malformed(transport);
    transport->joins_.push_back({.identity = decoded->identity,
                                 .token = *token,
                                 .tag = decoded->tag,
                                 .ucx_address = std::string(*ucx_address)});
    return UCS_OK;
  }

  static ucs_status_t OnControl(void* argument, const void* header, size_t header_bytes, void*,
                                size_t length, const ucp_am_recv_param_t* param) {
    auto* transport = static_cast<UcxTransport*>(argument);
    if (transport->receiver_ == nullptr) return UCS_OK;
    const auto bytes = absl::MakeConstSpan(static_cast<const std::byte*>(header), header_bytes);
    const std::optional<UcxControl> control = UcxControl::Decode(bytes);
    if (!control.has_value() || length != 0) return Malformed(transport);
    Peer* const peer = transport->FindLink(control->to);
    if (peer == nullptr) {
      // The link was disconnected before this side could tell the peer.
      if (control->kind == UcxControl::Kind::kWelcome) {
        Reply(transport, param, UcxControl::Kind::kBye, control->own);
      }
      return Stray(transport);
    }
    switch (control->kind) {
      case UcxControl::Kind::kWelcome:
        transport->Welcomed(*peer, *control);
        return UCS_OK;
      case UcxControl::Kind::kRefused:
        if (!peer->greeted) transport->Lose(*peer, absl::PermissionDeniedError(kNotLetIn));
        return UCS_OK;
      case UcxControl::Kind::kReady:
        transport->NoteReady(*peer);
        return UCS_OK;
      case UcxControl::Kind::kBye:
        transport->Lose(*peer, absl::UnavailableError("the peer has disconnected"));
        return UCS_OK;
      default:
        return Malformed(transport);
    }
  }

  // Returns the answer to UCX for a message that arrives while the transport is being destroyed. If
  // UCX learned that a payload is dropped, its sender would count it as arrived, so a payload that
  // is still at the sender is left to UCX.
  static ucs_status_t Ignore(uint64_t attributes) {
    return (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 ? UCS_OK : UCS_INPROGRESS;
  }

  static ucs_status_t Malformed(UcxTransport* transport) {
    transport->malformed_.fetch_add(1, std::memory_order_relaxed);
    return UCS_OK;
  }

  static ucs_status_t Stray(UcxTransport* transport) {
    transport->stray_.fetch_add(1, std::memory_order_relaxed);
    return UCS_OK;
  }

  // Answers a peer with which there is no link.
  static void Reply(UcxTransport* transport, const ucp_am_recv_param_t* param,
                    UcxControl::Kind kind, const LinkTag& to) {
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return;
    transport->PostControl(param->reply_ep, {.to = to, .kind = kind});
  }
};

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(EventLoop* loop,
                                                                   UcxTransportOptions options) {
  ASSIGN_OR_RETURN(std::shared_ptr<ucp_context> context, MakeUcxContext(options.networks));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  if (ucs_status_t status = ucp_worker_create(context.get(), &params, &worker); status != UCS_OK) {
    return UcxStatus(status);
  }
  absl::Cleanup destroy = [worker] { ucp_worker_destroy(worker); };
  int event_fd = -1;
  if (ucs_status_t status = ucp_worker_get_efd(worker, &event_fd); status != UCS_OK) {
    return UcxStatus(status);
  }
  ASSIGN_OR_RETURN(const std::string ucx_address, UcxAddressOf(worker));
  std::move(destroy).Cancel();
  auto transport = absl::WrapUnique(new UcxTransport(loop, std::move(context), worker, event_fd,
                                                     SealAddress(kAddressMark, ucx_address)));
  const std::pair<unsigned, ucp_am_recv_callback_t> handlers[] = {
      {kMessageId, Callbacks::OnMessage},
      {kJoinId, Callbacks::OnJoin},
      {kControlId, Callbacks::OnControl}};
  for (const auto& [id, callback] : handlers) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = callback;
    handler.arg = transport.get();
    if (auto status = ucp_worker_set_am_recv_handler(worker, &handler); status != UCS_OK) {
      return UcxStatus(status);
    }
  }
  RETURN_IF_ERROR(loop->Watch(event_fd, EPOLLIN, transport.get()));
  transport->watched_ = true;
  return transport;
}

UcxTransport::UcxTransport(EventLoop* loop, std::shared_ptr<ucp_context> context,
                           ucp_worker* worker, int event_fd, std::string address)
    : TransportBackend(loop),
      context_(std::move(context)),
      worker_(worker),
      event_fd_(event_fd),
      address_(std::move(address)) {}

UcxTransport::~UcxTransport() {
  if (watched_) loop().Unwatch(event_fd_, this);
  receiver_ = nullptr;  // messages are dropped from here on
  links_.clear();
  lost_.clear();
  for (auto& [id, peer] : peers_) {
    for (Outgoing* outgoing : peer->under_way) outgoing->done = nullptr;
    if (std::exchange(peer->disconnected, true)) continue;
    SayGoodbye(*peer);
    if (peer->open()) LetGo(*peer, kGoodbyeTime / 2);
  }
  const auto deadline = Clock::now() + kGoodbyeTime;
  while (!(leaving_.empty() && closing_.empty()) && Clock::now() < deadline) {
    ucp_worker_progress(worker_);
    FinishSends();
    ReapClosed();
  }
  // UCX requires that the close requests of the endpoints are freed before it destroys them.
  for (Peer* peer : closing_) {
    if (peer->close_request != nullptr) ucp_request_free(peer->close_request);
  }
  DestroyUcxWorker(worker_);
}

LinkDescription UcxTransport::Describe(PeerId id) const {
  const Peer& peer = Find(id);
  LinkDescription link = {
      .transport = "rdma", .device_memory = TakesDeviceMemory(context_.get()), .security = "auth"};
  if (!peer.open()) return link;
  const UcxLanes lanes = LanesOf(peer.endpoint);
  link.network = absl::StrJoin(lanes.networks, "+");
  link.device = absl::StrJoin(lanes.devices, "+");
  return link;
}

void UcxTransport::OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) {
  sessions_.Open(job, generation, token);
}

void UcxTransport::CloseSession(uint64_t job, uint32_t generation) {
  sessions_.Close(job, generation);
}

absl::StatusOr<PeerId> UcxTransport::Connect(absl::string_view address,
                                             const LinkCredentials& credentials) {
  ASSIGN_OR_RETURN(absl::string_view ucx_address,
                   OpenAddress(kAddressMark, address, "UCX address"));
  Peer& peer = Add(credentials.self, credentials.token);
  Open(peer, ucx_address);
  if (peer.open()) SendJoin(peer, address);
  return peer.id;
}

UcxTransport::Peer& UcxTransport::Add(const LinkIdentity& identity, const SessionToken& token) {
  const PeerId id{peers_made_++};
  std::unique_ptr<Peer>& peer = peers_[id] = std::make_unique<Peer>(
      Peer{.transport = this, .id = id, .identity = identity, .token = token});
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(peer->tag.data()), kLinkTagBytes), 1)
      << "no entropy";
  links_[peer->tag] = peer.get();
  return *peer;
}

// Opens an endpoint to the peer. If UCX makes none, the peer is lost.
void UcxTransport::Open(Peer& peer, absl::string_view ucx_address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(ucx_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = Callbacks::OnError;
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return;
  peer.endpoint = nullptr;
  Lose(peer, UcxStatus(status));
}

void UcxTransport::SendJoin(Peer& peer, absl::string_view to) {
  Outgoing* const join = TakeOutgoing();
  join->id = kJoinId;
  join->flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  join->payload =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(address_.data()), address_.size());
  const UcxJoin words = {.tag = peer.tag, .identity = peer.identity};
  join->SetHeader(words.Encode(peer.token, address_, to));
  PostUnheeded(peer.endpoint, join);
}

void UcxTransport::PlaceDeferred() {
  for (Deferred& later : std::exchange(deferred_, {})) {
    const bool at_sender = later.fetched_by != nullptr;
    void* const data = at_sender ? later.fetched_by : later.payload.data();
    const ucs_status_t status = Callbacks::Place(this, later.peer, later.header, data, at_sender);
    if (at_sender && status == UCS_OK) ucp_am_data_release(worker_, data);
  }
}

void UcxTransport::DropDeferred(const Peer& peer) {
  std::erase_if(deferred_, [&](const Deferred& later) {
    if (later.peer != &peer) return false;
    if (later.fetched_by != nullptr) ucp_am_data_release(worker_, later.fetched_by);
    return true;
  });
}

int UcxTransport::AnswerJoins() {
  answering_.swap(joins_);
  for (const JoinRequest& request : answering_) {
    Peer& peer = Add(request.identity, request.token);
    peer.to = request.tag;
    peer.greeted = true;
    Open(peer, request.ucx_address);
    if (peer.open()) {
      PostControl(peer.endpoint,
                  {.to = peer.to,
                   .kind = UcxControl::Kind::kWelcome,
                   .own = peer.tag,
                   .proof = ProveWelcome(peer.token, peer.identity, request.tag, peer.tag)});
    }
    receiver_->PeerJoined(peer.id, peer.identity);
  }
  const int answered = static_cast<int>(answering_.size());
  answering_.clear();
  return answered;
}

void UcxTransport::Welcomed(Peer& peer, const UcxControl& welcome) {
  if (peer.greeted || !peer.lost.ok()) return;
  if (!IsWelcomeProven(welcome.proof, peer.token, peer.identity, peer.tag, welcome.own)) {
    Lose(peer, absl::PermissionDeniedError(
                   "the process that answered does not know the session's token"));
    return;
  }
  peer.to = welcome.own;
  peer.greeted = true;
  PostControl(peer.endpoint, {.to = peer.to, .kind = UcxControl::Kind::kReady});
  NoteReady(peer);
}

// Posts the sends that waited until the peer accepts messages. Neither side may send before the
// other knows its tag, because a message may overtake another.
void UcxTransport::NoteReady(Peer& peer) {
  if (peer.ready || !peer.greeted) return;
  peer.ready = true;
  if (!peer.open()) return;
  for (Outgoing* outgoing : std::exchange(peer.held, {})) {
    std::memcpy(outgoing->header.data() + WireHeader::kBytes, peer.to.data(), kLinkTagBytes);
    if (Post(peer.endpoint, outgoing)) continue;
    outgoing->sent = true;
    sent_.push_back(outgoing);
  }
}

void UcxTransport::Send(PeerId id, const WireHeader& header, absl::Span<const std::byte> payload,
                        SendDone done) {
  CHECK_EQ(header.length, payload.size());
  Peer& peer = Find(id);
  if (!peer.lost.ok()) {
    if (done) done(peer.lost);
    return;
  }
  Outgoing* const outgoing = TakeOutgoing();
  outgoing->payload = payload;
  outgoing->header_bytes = kMessageBytes;
  const auto encoded = EncodeHeader(header);
  std::memcpy(outgoing->header.data(), encoded.data(), encoded.size());
  std::memcpy(outgoing->header.data() + WireHeader::kBytes, peer.to.data(), kLinkTagBytes);
  if (peer.ready && !Post(peer.endpoint, outgoing)) {
    const absl::Status status = outgoing->status;
    free_outgoing_.push_back(outgoing);
    if (done) done(status);
    return;
  }
  // NoteReady() posts the held sends as soon as the peer accepts messages.
  if (!peer.ready) peer.held.push_back(outgoing);
  outgoing->peer = &peer;
  outgoing->index = peer.under_way.size();
  outgoing->done = std::move(done);
  peer.under_way.push_back(outgoing);
}

// Returns whether UCX still has the send. If not, `status` has its result.
bool UcxTransport::Post(ucp_ep* endpoint, Outgoing* outgoing) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = Callbacks::OnSent;
  param.user_data = outgoing;
  param.flags = outgoing->flags;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, outgoing->id, outgoing->header.data(), outgoing->header_bytes,
                      outgoing->payload.data(), outgoing->payload.size(), &param);
  outgoing->posted = UCS_PTR_IS_PTR(request);
  if (!outgoing->posted) outgoing->status = UcxStatus(UCS_PTR_STATUS(request));
  return outgoing->posted;
}

// Sends without reporting the result: if the message does not arrive, the endpoint fails.
void UcxTransport::PostUnheeded(ucp_ep* endpoint, Outgoing* outgoing) {
  if (!Post(endpoint, outgoing)) free_outgoing_.push_back(outgoing);
}

void UcxTransport::PostControl(ucp_ep* endpoint, const UcxControl& control) {
  Outgoing* const outgoing = TakeOutgoing();
  outgoing->id = kControlId;
  outgoing->flags = control.kind == UcxControl::Kind::kWelcome ? UCP_AM_SEND_FLAG_REPLY : 0;
  outgoing->SetHeader(control.Encode());
  PostUnheeded(endpoint, outgoing);
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> UcxTransport::RegisterMemory(
    absl::Span<std::byte> memory) {
  return RegisterWithUcx(context_, memory);
}

void UcxTransport::Ready(uint32_t) { signalled_ = true; }

int UcxTransport::Advance() {
  CHECK(receiver_ != nullptr) << "SetReceiver() must be called before Progress()";
  PlaceDeferred();
  int events = static_cast<int>(ucp_worker_progress(worker_));
  // UCX's descriptor stays ready until the worker is armed, which succeeds only if no event is
  // left.
  if (signalled_ && events == 0) signalled_ = ucp_worker_arm(worker_) != UCS_OK;
  events += AnswerJoins();
  for (Peer* peer : lost_) {
    AbandonFetches(*peer);
    if (peer->broken && peer->open()) Close(*peer, peer->lost);
  }
  FetchNext();
  events += Deliver();
  events += FinishSends();
  events += ReportLosses();
  ReapClosed();
  return events;
}

bool UcxTransport::HasNews() const { return ucp_worker_progress(worker_) != 0 || HoldsNews(); }

bool UcxTransport::HoldsNews() const {
  return !arrived_.empty() || !sent_.empty() || !joins_.empty() || !deferred_.empty() ||
         std::ranges::any_of(lost_, [](const Peer* peer) { return peer->fetches == 0; });
}

bool UcxTransport::PrepareToSleep() { return !HoldsNews() && ucp_worker_arm(worker_) == UCS_OK; }

// The end of a close shows only in its request. UCX makes no event for it, so the thread must look.
absl::Duration UcxTransport::SleepMax() const {
  if (!closing_.empty() || !leaving_.empty() || !lost_.empty()) return absl::Milliseconds(10);
  return turns_.waiting() ? absl::FromChrono(turns_.patience()) : absl::InfiniteDuration();
}

UcxTransport::Peer& UcxTransport::Find(PeerId id) const {
  auto found = peers_.find(id);
  CHECK(found != peers_.end() && !found->second->disconnected)
      << "no peer " << static_cast<int>(id);
  return *found->second;
}

UcxTransport::Peer* UcxTransport::FindLink(const LinkTag& tag) const {
  const auto found = links_.find(tag);
  return found == links_.end() ? nullptr : found->second;
}

UcxTransport::Outgoing* UcxTransport::TakeOutgoing() {
  if (free_outgoing_.empty()) {
    outgoing_.push_back(std::make_unique<Outgoing>(Outgoing{.transport = this}));
    free_outgoing_.push_back(outgoing_.back().get());
  }
  Outgoing* const outgoing = free_outgoing_.back();
  free_outgoing_.pop_back();
  outgoing->posted = outgoing->sent = false;
  outgoing->id = kMessageId;
  outgoing->flags = 0;
  outgoing->payload = {};
  return outgoing;
}

// Removes a send from its peer.
Transport::SendDone UcxTransport::Detach(Outgoing* outgoing) {
  std::vector<Outgoing*>& under_way = std::exchange(outgoing->peer, nullptr)->under_way;
  under_way.back()->index = outgoing->index;
  under_way[outgoing->index] = under_way.back();
  under_way.pop_back();
  return std::move(outgoing->done);
}

void UcxTransport::Fetch(void* data, const Arrival& arrival) {
  if (free_incoming_.empty()) {
    incoming_.push_back(std::make_unique<Incoming>(this));
    free_incoming_.push_back(incoming_.back().get());
  }
  Incoming* incoming = free_incoming_.back();
  free_incoming_.pop_back();
  incoming->arrival = arrival;
  incoming->data = data;
  turns_.Wait(incoming, arrival.peer->id, arrival.payload.size());
  FetchNext();
}

void UcxTransport::FetchNext() {
  while (turns_.waiting()) {
    auto* incoming = static_cast<Incoming*>(turns_.Begin(Clock::now()));
    if (incoming == nullptr) return;
    BeginFetch(incoming);
  }
}

void UcxTransport::BeginFetch(Incoming* incoming) {
  const Arrival& arrival = incoming->arrival;
  ++arrival.peer->fetches;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = Callbacks::OnFetched;
  param.user_data = incoming;
  auto* place = const_cast<std::byte*>(arrival.payload.data());
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, incoming->data, place, arrival.payload.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) EndFetch(incoming, UCS_PTR_STATUS(request));
}

void UcxTransport::EndFetch(Incoming* incoming, int status) {
  turns_.End(incoming);
  Arrival& arrival = incoming->arrival;
  --arrival.peer->fetches;
  arrival.whole = status == UCS_OK;
  if (!arrival.peer->disconnected) arrived_.push_back(arrival);
  free_incoming_.push_back(incoming);
}

// Abandons the peer's payloads that wait for their turn.
void UcxTransport::AbandonFetches(Peer& peer) {
  while (auto* incoming = static_cast<Incoming*>(turns_.Abandon(peer.id))) {
    ucp_am_data_release(worker_, incoming->data);
    incoming->arrival.whole = false;
    if (!peer.disconnected) arrived_.push_back(incoming->arrival);
    free_incoming_.push_back(incoming);
  }
}

// Blocks until none of the peer's payloads is being written here. If that takes too long, the
// endpoint is closed.
void UcxTransport::AwaitFetches(Peer& peer) {
  const auto start = Clock::now();
  deferring_ = true;
  while (peer.fetches > 0) {
    ucp_worker_progress(worker_);
    const auto waited = Clock::now() - start;
    CHECK(waited < kFetchEndMax) << "UCX still receives from an endpoint that it has closed";
    if (waited > kFetchEndTime && peer.open()) Close(peer, absl::CancelledError("disconnected"));
  }
  deferring_ = false;
}

void UcxTransport::Lose(Peer& peer, absl::Status why) {
  if (peer.disconnected || !peer.lost.ok()) return;
  peer.lost = std::move(why);
  lost_.push_back(&peer);
}

void UcxTransport::Disconnect(PeerId id) {
  Peer& peer = Find(id);
  peer.disconnected = true;
  links_.erase(peer.tag);
  std::erase(lost_, &peer);
  SayGoodbye(peer);
  AbandonFetches(peer);
  // Nothing is written to the receiver's memory after this, as Disconnect() promises.
  AwaitFetches(peer);
  DropDeferred(peer);
  std::erase_if(arrived_, [&peer](const Arrival& arrival) { return arrival.peer == &peer; });
  if (peer.open()) {
    LetGo(peer, kGoodbyeTime);
  } else if (std::ranges::find(closing_, &peer) == closing_.end()) {
    closing_.push_back(&peer);
  }
}

// Tells the peer that the link ends: it may not notice a closed endpoint as long as it sends
// nothing itself.
void UcxTransport::SayGoodbye(Peer& peer) {
  if (!peer.open() || !peer.greeted || !peer.lost.ok()) return;
  PostControl(peer.endpoint, {.to = peer.to, .kind = UcxControl::Kind::kBye});
}

// Closes the endpoint when all sends have finished, or when the time is over.
void UcxTransport::LetGo(Peer& peer, std::chrono::nanoseconds time) {
  for (Outgoing* outgoing : std::exchange(peer.held, {})) {
    outgoing->sent = true;
    outgoing->status = absl::CancelledError("disconnected");
    sent_.push_back(outgoing);
  }
  peer.close_by = peer.lost.ok() ? Clock::now() + time : Clock::time_point();
  leaving_.push_back(&peer);
}

// Closes the endpoint; UCX finishes the close later. If nothing is in progress, UCX may take time
// to send what it has buffered. Otherwise, or if UCX has given the endpoint up, closing cuts
// everything off.
void UcxTransport::Close(Peer& peer, absl::Status unsent) {
  const bool gently = !peer.broken && peer.under_way.empty() && peer.fetches == 0;
  peer.unsent = std::move(unsent);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = gently ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) peer.close_request = request;
  closing_.push_back(&peer);
}

int UcxTransport::Deliver() {
  delivering_.swap(arrived_);
  for (const Arrival& arrival : delivering_) {
    if (arrival.peer->disconnected) continue;  // disconnected by the callback of an earlier arrival
    if (arrival.whole) {
      receiver_->Received(arrival.peer->id, arrival.header, arrival.payload, {});
    } else {
      receiver_->PayloadLost(arrival.peer->id, arrival.header);
    }
  }
  const int delivered = static_cast<int>(delivering_.size());
  delivering_.clear();
  return delivered;
}

int UcxTransport::FinishSends() {
  finishing_.swap(sent_);
  for (Outgoing* outgoing : finishing_) {
    if (outgoing->peer == nullptr) {  // CutOffPeer came first
      free_outgoing_.push_back(outgoing);
      continue;
    }
    // The first error names the cause. UCX's own status then only says that the send was cancelled.
    const absl::Status& unsent = outgoing->peer->unsent;
    const absl::Status status = outgoing->status.ok() || unsent.ok() ? outgoing->status : unsent;
    SendDone done = Detach(outgoing);
    free_outgoing_.push_back(outgoing);
    if (done) done(status);
  }
  const int finished = static_cast<int>(finishing_.size());
  finishing_.clear();
  return finished;
}

// The losses are reported one by one, because a callback may disconnect another peer, which must
// then not be reported. A peer waits if its payloads are still being written here, or were not
// delivered yet.
int UcxTransport::ReportLosses() {
  const auto done_with = [this](const Peer* peer) {
    return peer->fetches == 0 &&
           std::ranges::find(arrived_, peer, &Arrival::peer) == arrived_.end() &&
           std::ranges::find(deferred_, peer, &Deferred::peer) == deferred_.end();
  };
  int reported = 0;
  for (;;) {
    const auto next = std::ranges::find_if(lost_, done_with);
    if (next == lost_.end()) return reported;
    Peer& peer = **next;
    lost_.erase(next);
    links_.erase(peer.tag);
    const absl::Status why = peer.lost;
    if (peer.open()) Close(peer, why);
    receiver_->PeerLost(peer.id, why);
    ++reported;
  }
}

bool UcxTransport::Peer::Closed() {
  if (close_request == nullptr) return true;
  if (ucp_request_check_status(close_request) == UCS_INPROGRESS) return false;
  ucp_request_free(std::exchange(close_request, nullptr));
  return true;
}

void UcxTransport::ReapClosed() {
  std::erase_if(leaving_, [this](Peer* peer) {
    if (!peer->under_way.empty() && !peer->broken && Clock::now() < peer->close_by) return false;
    Close(*peer, absl::CancelledError("disconnected"));
    return true;
  });
  for (size_t i = 0; i < closing_.size();) {
    Peer* peer = closing_[i];
    if (!peer->Closed() || peer->fetches > 0) {
      ++i;
      continue;
    }
    CutOffPeer(*peer);  // may call Disconnect, which searches closing_ for the peer
    closing_[i] = closing_.back();
    closing_.pop_back();
    if (peer->disconnected) peers_.erase(peer->id);
  }
}

// Completes the remaining sends of a peer whose endpoint is closed, because UCX 1.13 does not
// complete every one. A later callback of UCX only returns them to the pool.
void UcxTransport::CutOffPeer(Peer& peer) {
  peer.held.clear();
  while (!peer.under_way.empty()) {
    Outgoing* outgoing = peer.under_way.back();
    const absl::Status status = outgoing->sent ? outgoing->status : peer.unsent;
    SendDone done = Detach(outgoing);
    if (!outgoing->posted && !outgoing->sent) free_outgoing_.push_back(outgoing);
    if (done) done(status);
  }
}

}  // namespace muster

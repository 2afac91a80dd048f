#include "lib/transport/ucx_transport.h"

#include <glog/logging.h>
#include <openssl/rand.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/status/status.h"
#include "lib/transport/address_envelope.h"
#include "lib/transport/ucx_library.h"

namespace muster {
namespace {

// Our kinds of active messages.
constexpr unsigned kMessageId = 0;
constexpr unsigned kJoinId = 1;
constexpr unsigned kControlId = 2;

constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);
// What is being written when a peer is disconnected may come to its end for so long.
constexpr auto kFetchEndTime = std::chrono::milliseconds(20);
constexpr auto kFetchEndMax = std::chrono::seconds(60);

// UCX does not survive unpacking bytes that are no address of its own.
constexpr absl::string_view kAddressMark = "MUX1";

constexpr absl::string_view kNotLetIn =
    "not let in: no such session is open there, or the token is another";

// Who joins, and what of it is proved (docs/protocol.md): offsets in the header of a JOIN, whose
// payload is the sealed address of the connector.
constexpr size_t kTagBytes = 16;
constexpr size_t kIdentityBytes = 24;
constexpr size_t kProofBytes = sizeof(SessionToken::Proof);
constexpr size_t kJoinBytes = kTagBytes + kIdentityBytes + kProofBytes;

// Control: to the link with this tag, kind, zeros, and of a WELCOME its own tag and the proof.
enum ControlKind : uint8_t { kWelcome = 1, kRefused = 2, kReady = 3, kBye = 4 };
constexpr size_t kControlKindBytes = 8;
constexpr size_t kControlBytes = kTagBytes + kControlKindBytes + kTagBytes + kProofBytes;

constexpr size_t kMessageBytes = WireHeader::kBytes + kTagBytes;
constexpr size_t kHeaderBytesMax = std::max({kJoinBytes, kControlBytes, kMessageBytes});

void PutNumber(std::byte* to, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t GetNumber(const std::byte* from, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return value;
}

void PutIdentity(std::byte* to, const LinkIdentity& identity) {
  PutNumber(to, identity.job, 8);
  PutNumber(to + 8, identity.generation, 4);
  PutNumber(to + 12, identity.index, 4);
  PutNumber(to + 16, static_cast<uint64_t>(identity.role), 8);
}

// Whether they were that of an identity.
bool GetIdentity(const std::byte* from, LinkIdentity* identity) {
  const uint64_t role = GetNumber(from + 16, 8);
  *identity = {.job = GetNumber(from, 8),
               .generation = static_cast<uint32_t>(GetNumber(from + 8, 4)),
               .role = static_cast<LinkRole>(role),
               .index = static_cast<uint32_t>(GetNumber(from + 12, 4))};
  return role == static_cast<uint64_t>(LinkRole::kWorker) ||
         role == static_cast<uint64_t>(LinkRole::kShard);
}

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

absl::string_view TextOf(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What the proof of a JOIN is of: `join` without the proof, and both addresses, which have their
// length in front so that no two pairs look alike.
std::string JoinStatement(absl::Span<const std::byte> join, absl::string_view from,
                          absl::string_view to) {
  std::byte length[8];
  PutNumber(length, from.size(), sizeof(length));
  return absl::StrCat("muster ucx 1 join", TextOf(join.first(kTagBytes + kIdentityBytes)),
                      TextOf(length), from, to);
}

absl::Status ToStatus(ucs_status_t status) {
  if (status == UCS_OK) return absl::OkStatus();
  if (status == UCS_ERR_CANCELED) return absl::CancelledError("UCX: cancelled");
  return absl::UnavailableError(absl::StrCat("UCX: ", ucs_status_string(status)));
}

// UCX warns of what is as it should be: that it finds not all networks that it is asked to look
// for, and that a worker ends with unfinished requests.
thread_local bool warnings_are_expected = false;

// UCX writes to stdout by itself, which belongs to the program.
ucs_log_func_rc_t LogToGlog(const char* file, unsigned line, const char*, ucs_log_level_t level,
                            const ucs_log_component_config_t*, const char* format,
                            va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof(text), format, arguments);
  const int severity = warnings_are_expected          ? google::GLOG_INFO
                       : level <= UCS_LOG_LEVEL_ERROR ? google::GLOG_ERROR
                       : level == UCS_LOG_LEVEL_WARN  ? google::GLOG_WARNING
                                                      : google::GLOG_INFO;
  google::LogMessage(file, static_cast<int>(line), severity).stream() << "UCX: " << text;
  return UCS_LOG_FUNC_RC_STOP;
}

bool IsRdma(absl::string_view network) {
  for (absl::string_view prefix : {"rc", "dc", "ud"}) {
    if (absl::StartsWith(network, prefix)) return true;
  }
  return false;
}

// Besides these a transport needs what reaches itself, and what knows GPU memory.
constexpr const char* kRdmaNetworks = "rc,dc,ud,self,cuda";

bool OpensNoSocket(absl::string_view network) {
  for (absl::string_view prefix : {"ib", "self", "cuda", "gdr"}) {
    if (absl::StartsWith(network, prefix)) return true;
  }
  return IsRdma(network);
}

// UCX_TLS, a list of what UCX may use ("rc,cuda_copy"), or with ^ of what it may not.
absl::string_view WantedNetworks() {
  const char* value = std::getenv("UCX_TLS");
  return value == nullptr ? "" : value;
}

// The user may choose among the RDMA networks, and not leave them.
bool WantsRdmaOnly() {
  for (absl::string_view network : absl::StrSplit(WantedNetworks(), ',')) {
    if (!OpensNoSocket(network)) return false;
  }
  return true;
}

struct Setting {
  const char* variable;  // the user's, which wins
  const char* name;      // UCX 1.13 takes those of a transport without the transport's prefix
  const char* value;
};

constexpr Setting kSettings[] = {
    // The default connects blockingly: one unreachable peer would stop a shard thread for minutes.
    {"UCX_TCP_CONN_NB", "CONN_NB", "y"},
    // An idle connection to a machine that vanished is noticed within about 6 s instead of 16 s.
    {"UCX_TCP_KEEPIDLE", "KEEPIDLE", "3s"},
    // Above one segment an eager message is assembled in freshly allocated memory; rendezvous
    // places it at once.
    {"UCX_RNDV_THRESH", "RNDV_THRESH", "16k"},
    // With peer error handling UCX 1.13 moves large payloads over TCP in segments of this size,
    // each
    // a wake-up where the receiver sleeps. On loopback 64 MiB messages went from 1.7 GB/s with the
    // default of 64k to 2.8 with 256k and 4.2 with 512k; 1m is no better, it falls out of caches.
    {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "512k"},
    // Lets a message just below that threshold travel in one segment.
    {"UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "32k"},
};

// What UCX prints of itself; it has no other way to ask, as of 1.13.
template <typename Print>
std::string PrintedBy(const Print& print) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  CHECK(stream != nullptr);
  print(stream);
  std::fclose(stream);
  absl::Cleanup release = [text] { std::free(text); };
  return std::string(text, size);
}

// It has a line for each network: "resource 2  :  md 1  dev 2  flags -- tcp/eth0".
bool HasRdma(ucp_context_h context) {
  const std::string printed =
      PrintedBy([context](FILE* stream) { ucp_context_print_info(context, stream); });
  for (absl::string_view line : absl::StrSplit(printed, '\n')) {
    const size_t network = line.rfind(' ');
    if (absl::StrContains(line, "resource ") && network != absl::string_view::npos &&
        IsRdma(line.substr(network + 1))) {
      return true;
    }
  }
  return false;
}

absl::Status NoRdma(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(
      "no RDMA device that UCX can use", why,
      ": `ucx_info -d` must list an rc, dc or ud transport (", "UCX_TLS='", WantedNetworks(),
      "', UCX_NET_DEVICES may leave it out). It takes the drivers of ",
      "the card (Debian: rdma-core, ibverbs-providers, libucx0); in a container also "
      "/dev/infiniband ",
      "and unlimited locked memory. Without RDMA: --transport=auto"));
}

absl::StatusOr<std::shared_ptr<ucp_context>> MakeContext(UcxTransportOptions::Networks networks) {
  const bool rdma_only = networks == UcxTransportOptions::Networks::kRdmaOnly;
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ToStatus(status);
  absl::Cleanup release = [config] { ucp_config_release(config); };
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.variable) != nullptr) continue;
    status = ucp_config_modify(config, setting.name, setting.value);
    LOG_IF(WARNING, status != UCS_OK)
        << "UCX does not take " << setting.variable << ": " << ToStatus(status);
  }
  if (rdma_only && (WantedNetworks().empty() || !WantsRdmaOnly())) {
    static std::once_flag warn_once;
    if (!WantedNetworks().empty())
      std::call_once(warn_once, [] {
        LOG(WARNING) << "UCX_TLS=" << WantedNetworks() << " names more than RDMA: " << kRdmaNetworks
                     << " is used instead";
      });
    CHECK_EQ(ucp_config_modify(config, "TLS", kRdmaNetworks), UCS_OK);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  warnings_are_expected = true;
  status = ucp_init(&params, config, &context);
  warnings_are_expected = false;
  if (status != UCS_OK && rdma_only)
    return NoRdma(absl::StrCat(" (", ucs_status_string(status), ")"));
  if (status != UCS_OK) {
    return Annotate(ToStatus(status),
                    absl::StrCat("UCX finds no network to use (UCX_TLS='", WantedNetworks(),
                                 "'; `ucx_info -d` lists what is here)"));
  }
  std::shared_ptr<ucp_context> owned(context, ucp_cleanup);
  if (rdma_only && !HasRdma(context)) return NoRdma("");
  return owned;
}

absl::StatusOr<std::string> AddressOf(ucp_worker_h worker) {
  ucp_address_t* address = nullptr;
  size_t size = 0;
  const ucs_status_t status = ucp_worker_get_address(worker, &address, &size);
  if (status != UCS_OK) return ToStatus(status);
  std::string sealed = SealAddress(kAddressMark, {reinterpret_cast<const char*>(address), size});
  ucp_worker_release_address(worker, address);
  return sealed;
}

// What UCX prints of an endpoint's lanes: "lane[0]:  1:tcp/lo.0 md[1]  -> md[1]/...".
struct Lanes {
  std::set<std::string> networks;  // "tcp"
  std::set<std::string> devices;   // "lo"
};

Lanes LanesOf(ucp_ep_h endpoint) {
  const std::string printed =
      PrintedBy([endpoint](FILE* stream) { ucp_ep_print_info(endpoint, stream); });
  Lanes lanes;
  for (absl::string_view line : absl::StrSplit(printed, '\n')) {
    if (!absl::StrContains(line, "lane[")) continue;
    const std::vector<absl::string_view> by_colon = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (by_colon.size() < 3) continue;
    const absl::string_view resource = by_colon[2].substr(0, by_colon[2].find(' '));
    const size_t slash = resource.find('/');
    if (slash == absl::string_view::npos) continue;
    lanes.networks.emplace(resource.substr(0, slash));
    const absl::string_view device = resource.substr(slash + 1);
    lanes.devices.emplace(device.substr(0, device.rfind('.')));  // ".0": the path on it
  }
  return lanes;
}

// GPU memory that UCX can read and write by itself.
bool TakesDeviceMemory(ucp_context_h context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context, &attributes) != UCS_OK) return false;
  return UCS_BIT(UCS_MEMORY_TYPE_CUDA) & attributes.memory_types;
}

class UcxMemoryRegistration : public Transport::MemoryRegistration {
 public:
  UcxMemoryRegistration(std::shared_ptr<ucp_context> context, ucp_mem_h memory)
      : context_(std::move(context)), memory_(memory) {}
  ~UcxMemoryRegistration() override { ucp_mem_unmap(context_.get(), memory_); }

 private:
  const std::shared_ptr<ucp_context> context_;
  const ucp_mem_h memory_;
};

}  // namespace

// A send under way, or one that waits for its link. UCX reads `header` until it is sent.
struct UcxTransport::Outgoing {
  UcxTransport* transport;
  Peer* peer = nullptr;  // null: free, of no link, or cut off without waiting for UCX
  size_t index = 0;      // in peer->under_way
  bool posted = false;   // UCX has it
  bool sent = false;     // it was sent, or never will be; `status` says how it went
  unsigned id = kMessageId;
  unsigned flags = 0;
  absl::Span<const std::byte> payload;
  absl::Status status;
  SendDone done;
  size_t header_bytes = 0;
  std::array<std::byte, kHeaderBytesMax> header;
};

// A large payload being received, or to be.
struct UcxTransport::Incoming : FetchTurns::Payload {
  explicit Incoming(UcxTransport* transport) : transport(transport) {}

  UcxTransport* const transport;
  Arrival arrival;
  void* data = nullptr;  // what UCX knows it by
};

// Somebody has proved to be `identity`, and is to be answered.
struct UcxTransport::JoinRequest {
  LinkIdentity identity;
  SessionToken token;
  LinkTag tag;
  std::string ucx_address;
};

// Lives until UCX has closed its endpoint, because UCX's error callback points here.
struct UcxTransport::Peer {
  bool open() const { return endpoint != nullptr; }
  bool Closed();  // UCX has closed its endpoint
  // What a WELCOME proves, with the tags of connector and acceptor.
  SessionToken::Proof WelcomeProof(const LinkTag& connector, const LinkTag& acceptor) const;

  UcxTransport* transport;
  PeerId id;
  LinkIdentity identity;  // of the connector
  SessionToken token;
  LinkTag tag;                  // of what comes from it
  LinkTag to = {};              // of what goes to it, once `greeted`
  bool greeted = false;         // it has told its tag
  bool ready = false;           // it takes messages
  ucp_ep_h endpoint = nullptr;  // null once closing, or if UCX made none
  void* close_request = nullptr;
  bool broken = false;  // UCX has given the endpoint up
  bool disconnected = false;
  absl::Status lost;    // why, once it is
  absl::Status unsent;  // what sends hear that closing cuts off
  Clock::time_point close_by;
  int fetches = 0;  // of its payloads, at this moment
  std::vector<Outgoing*> under_way;
  std::vector<Outgoing*> held;  // of these, those that wait until it is ready
};

struct UcxTransport::Callbacks {
  static void OnError(void* argument, ucp_ep_h, ucs_status_t status) {
    auto* peer = static_cast<Peer*>(argument);
    peer->broken = true;
    peer->transport->Lose(*peer, ToStatus(status == UCS_OK ? UCS_ERR_CONNECTION_RESET : status));
  }

  static void OnSent(void* request, ucs_status_t status, void* argument) {
    auto* outgoing = static_cast<Outgoing*>(argument);
    ucp_request_free(request);
    if (outgoing->peer == nullptr) {
      outgoing->transport->free_outgoing_.push_back(outgoing);
      return;
    }
    outgoing->sent = true;
    outgoing->status = ToStatus(status);
    outgoing->transport->sent_.push_back(outgoing);
  }

  // A payload of which nothing else is said is dropped, also where it is still at the sender.
  static ucs_status_t OnMessage(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    auto* transport = static_cast<UcxTransport*>(argument);
    if (transport->receiver_ == nullptr) return Ignore(param->recv_attr);
    const auto bytes = absl::MakeConstSpan(static_cast<const std::byte*>(header), header_bytes);
    if (bytes.size() != kMessageBytes) return Malformed(transport);
    const absl::StatusOr<WireHeader> decoded = DecodeHeader(bytes.first(WireHeader::kBytes));
    if (!decoded.ok() || decoded->length != length) return Malformed(transport);
    Peer* const peer = transport->FindLink(bytes.data() + WireHeader::kBytes);
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

  // UCS_OK: UCX need not keep `data`.
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
    JoinRequest request;
    if (join.size() != kJoinBytes || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
        !GetIdentity(join.data() + kTagBytes, &request.identity)) {
      return Malformed(transport);
    }
    std::memcpy(request.tag.data(), join.data(), kTagBytes);
    const absl::string_view address(static_cast<const char*>(data), length);
    const SessionToken* const token =
        transport->sessions_.Find(request.identity.job, request.identity.generation);
    const std::string statement = JoinStatement(join, address, transport->address_);
    // Nothing of the address is read before it is known who has sent it.
    if (token == nullptr || !token->Believes(BytesOf(statement), join.last(kProofBytes))) {
      transport->refused_.fetch_add(1, std::memory_order_relaxed);
      Reply(transport, param, kRefused, request.tag);
      return UCS_OK;
    }
    const auto ucx_address = OpenAddress(kAddressMark, address, "UCX address");
    if (!ucx_address.ok()) return Malformed(transport);
    request.token = *token;
    request.ucx_address = std::string(*ucx_address);
    transport->joins_.push_back(std::move(request));
    return UCS_OK;
  }

  static ucs_status_t OnControl(void* argument, const void* header, size_t header_bytes, void*,
                                size_t length, const ucp_am_recv_param_t* param) {
    auto* transport = static_cast<UcxTransport*>(argument);
    if (transport->receiver_ == nullptr) return UCS_OK;
    const auto control = absl::MakeConstSpan(static_cast<const std::byte*>(header), header_bytes);
    if (control.size() != kControlBytes || length != 0) return Malformed(transport);
    Peer* const peer = transport->FindLink(control.data());
    const uint64_t kind = GetNumber(control.data() + kTagBytes, kControlKindBytes);
    LinkTag theirs;
    std::memcpy(theirs.data(), control.data() + kTagBytes + kControlKindBytes, kTagBytes);
    if (peer == nullptr) {
      // It was disconnected before it could be told so.
      if (kind == kWelcome) Reply(transport, param, kBye, theirs);
      return Stray(transport);
    }
    switch (kind) {
      case kWelcome:
        transport->Welcomed(*peer, theirs, control.last(kProofBytes));
        return UCS_OK;
      case kRefused:
        if (!peer->greeted) transport->Lose(*peer, absl::PermissionDeniedError(kNotLetIn));
        return UCS_OK;
      case kReady:
        transport->NoteReady(*peer);
        return UCS_OK;
      case kBye:
        transport->Lose(*peer, absl::UnavailableError("the peer has disconnected"));
        return UCS_OK;
      default:
        return Malformed(transport);
    }
  }

  // To its sender a payload that is dropped has arrived. Where the transport ends it has not: UCX
  // is not told that it is dropped.
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

  // To somebody with whom there is no link.
  static void Reply(UcxTransport* transport, const ucp_am_recv_param_t* param, ControlKind kind,
                    const LinkTag& to) {
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return;
    transport->PostControl(param->reply_ep, kind, to);
  }
};

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(EventLoop* loop,
                                                                   UcxTransportOptions options) {
  RETURN_IF_ERROR(LoadUcx());
  static std::once_flag log_once;
  std::call_once(log_once, [] {
    if (std::getenv("UCX_LOG_FILE") == nullptr) ucs_log_push_handler(LogToGlog);
  });
  ASSIGN_OR_RETURN(std::shared_ptr<ucp_context> context, MakeContext(options.networks));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  if (ucs_status_t status = ucp_worker_create(context.get(), &params, &worker); status != UCS_OK) {
    return ToStatus(status);
  }
  absl::Cleanup destroy = [worker] { ucp_worker_destroy(worker); };
  int event_fd = -1;
  if (ucs_status_t status = ucp_worker_get_efd(worker, &event_fd); status != UCS_OK) {
    return ToStatus(status);
  }
  ASSIGN_OR_RETURN(std::string address, AddressOf(worker));
  std::move(destroy).Cancel();
  auto transport = absl::WrapUnique(
      new UcxTransport(loop, std::move(context), worker, event_fd, std::move(address)));
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
      return ToStatus(status);
    }
  }
  RETURN_IF_ERROR(loop->Watch(event_fd, EPOLLIN, transport.get()));
  transport->watched_ = true;
  return transport;
}

UcxTransport::UcxTransport(EventLoop* loop, std::shared_ptr<ucp_context> context,
                           ucp_worker* worker, int event_fd, std::string address)
    : Carrier(loop),
      context_(std::move(context)),
      worker_(worker),
      event_fd_(event_fd),
      address_(std::move(address)) {}

UcxTransport::~UcxTransport() {
  if (watched_) loop().Unwatch(event_fd_, this);
  receiver_ = nullptr;  // from here on messages are dropped
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
  // UCX insists that nobody waits any longer for the closing of an endpoint that it destroys.
  for (Peer* peer : closing_) {
    if (peer->close_request != nullptr) ucp_request_free(peer->close_request);
  }
  warnings_are_expected = true;
  ucp_worker_destroy(worker_);
  warnings_are_expected = false;
}

LinkDescription UcxTransport::Describe(PeerId id) const {
  const Peer& peer = Find(id);
  LinkDescription link = {.transport = "rdma", .device_memory = TakesDeviceMemory(context_.get())};
  if (!peer.open()) return link;
  const Lanes lanes = LanesOf(peer.endpoint);
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
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(peer->tag.data()), kTagBytes), 1)
      << "no entropy";
  links_[peer->tag] = peer.get();
  return *peer;
}

// A peer to which UCX has no way is lost.
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
  Lose(peer, ToStatus(status));
}

void UcxTransport::SendJoin(Peer& peer, absl::string_view to) {
  Outgoing* const join = TakeOutgoing();
  join->id = kJoinId;
  join->flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  join->payload = BytesOf(address_);
  join->header_bytes = kJoinBytes;
  std::byte* const bytes = join->header.data();
  std::memcpy(bytes, peer.tag.data(), kTagBytes);
  PutIdentity(bytes + kTagBytes, peer.identity);
  const SessionToken::Proof proof = peer.token.Prove(
      BytesOf(JoinStatement(absl::MakeConstSpan(bytes, kJoinBytes), address_, to)));
  std::memcpy(bytes + kTagBytes + kIdentityBytes, proof.data(), kProofBytes);
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
      const SessionToken::Proof proof = peer.WelcomeProof(request.tag, peer.tag);
      PostControl(peer.endpoint, kWelcome, peer.to, &peer.tag, &proof);
    }
    receiver_->PeerJoined(peer.id, peer.identity);
  }
  const int answered = static_cast<int>(answering_.size());
  answering_.clear();
  return answered;
}

SessionToken::Proof UcxTransport::Peer::WelcomeProof(const LinkTag& connector,
                                                     const LinkTag& acceptor) const {
  std::byte encoded[kIdentityBytes];
  PutIdentity(encoded, identity);
  return token.Prove(BytesOf(
      absl::StrCat("muster ucx 1 welcome", TextOf(encoded), TextOf(connector), TextOf(acceptor))));
}

void UcxTransport::Welcomed(Peer& peer, const LinkTag& theirs, absl::Span<const std::byte> proof) {
  if (peer.greeted || !peer.lost.ok()) return;
  const SessionToken::Proof expected = peer.WelcomeProof(peer.tag, theirs);
  if (TextOf(expected) != TextOf(proof)) {
    Lose(peer, absl::PermissionDeniedError("who answers there does not know the session's token"));
    return;
  }
  peer.to = theirs;
  peer.greeted = true;
  PostControl(peer.endpoint, kReady, peer.to);
  NoteReady(peer);
}

// Neither side sends before the other one knows its tag: a message may overtake another.
void UcxTransport::NoteReady(Peer& peer) {
  if (peer.ready || !peer.greeted) return;
  peer.ready = true;
  if (!peer.open()) return;
  for (Outgoing* outgoing : std::exchange(peer.held, {})) {
    std::memcpy(outgoing->header.data() + WireHeader::kBytes, peer.to.data(), kTagBytes);
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
  std::memcpy(outgoing->header.data() + WireHeader::kBytes, peer.to.data(), kTagBytes);
  if (peer.ready && !Post(peer.endpoint, outgoing)) {
    const absl::Status status = outgoing->status;
    free_outgoing_.push_back(outgoing);
    if (done) done(status);
    return;
  }
  if (!peer.ready) peer.held.push_back(outgoing);
  outgoing->peer = &peer;
  outgoing->index = peer.under_way.size();
  outgoing->done = std::move(done);
  peer.under_way.push_back(outgoing);
}

// Whether UCX still has it; else `status` says how it went.
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
  if (!outgoing->posted) outgoing->status = ToStatus(UCS_PTR_STATUS(request));
  return outgoing->posted;
}

// Nobody is told how it went: where it does not arrive the endpoint fails.
void UcxTransport::PostUnheeded(ucp_ep* endpoint, Outgoing* outgoing) {
  if (!Post(endpoint, outgoing)) free_outgoing_.push_back(outgoing);
}

void UcxTransport::PostControl(ucp_ep* endpoint, uint8_t kind, const LinkTag& to,
                               const LinkTag* own, const SessionToken::Proof* proof) {
  Outgoing* const control = TakeOutgoing();
  control->id = kControlId;
  control->flags = kind == kWelcome ? UCP_AM_SEND_FLAG_REPLY : 0;
  control->header_bytes = kControlBytes;
  std::byte* at = control->header.data();
  std::memset(at, 0, kControlBytes);
  std::memcpy(at, to.data(), kTagBytes);
  PutNumber(at += kTagBytes, kind, kControlKindBytes);
  at += kControlKindBytes;
  if (own != nullptr) std::memcpy(at, own->data(), kTagBytes);
  if (proof != nullptr) std::memcpy(at + kTagBytes, proof->data(), kProofBytes);
  PostUnheeded(endpoint, control);
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> UcxTransport::RegisterMemory(
    absl::Span<std::byte> memory) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  ucp_mem_h handle = nullptr;
  if (ucs_status_t status = ucp_mem_map(context_.get(), &params, &handle); status != UCS_OK) {
    return Annotate(ToStatus(status), absl::StrCat("registering ", memory.size(), " bytes"));
  }
  return std::make_unique<UcxMemoryRegistration>(context_, handle);
}

void UcxTransport::Ready(uint32_t) { signalled_ = true; }

int UcxTransport::Advance() {
  CHECK(receiver_ != nullptr) << "SetReceiver comes before Progress";
  PlaceDeferred();
  int events = static_cast<int>(ucp_worker_progress(worker_));
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

// The end of a close shows in its request only; UCX announces no event for it.
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

UcxTransport::Peer* UcxTransport::FindLink(const std::byte* tag) const {
  LinkTag key;
  std::memcpy(key.data(), tag, kTagBytes);
  const auto found = links_.find(key);
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

// Takes a send from its peer.
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

// Those of its payloads that wait for their turn.
void UcxTransport::AbandonFetches(Peer& peer) {
  while (auto* incoming = static_cast<Incoming*>(turns_.Abandon(peer.id))) {
    ucp_am_data_release(worker_, incoming->data);
    incoming->arrival.whole = false;
    if (!peer.disconnected) arrived_.push_back(incoming->arrival);
    free_incoming_.push_back(incoming);
  }
}

// Until nothing of it is being written here: a peer that does not let it come to its end is cut
// off.
void UcxTransport::AwaitFetches(Peer& peer) {
  const auto start = Clock::now();
  deferring_ = true;
  while (peer.fetches > 0) {
    ucp_worker_progress(worker_);
    const auto waited = Clock::now() - start;
    CHECK(waited < kFetchEndMax) << "UCX goes on fetching from an endpoint that it has closed";
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
  AwaitFetches(peer);
  DropDeferred(peer);
  std::erase_if(arrived_, [&peer](const Arrival& arrival) { return arrival.peer == &peer; });
  if (peer.open()) {
    LetGo(peer, kGoodbyeTime);
  } else if (std::ranges::find(closing_, &peer) == closing_.end()) {
    closing_.push_back(&peer);
  }
}

// The other side may see nothing of an endpoint that closes, for as long as it says nothing itself.
void UcxTransport::SayGoodbye(Peer& peer) {
  if (peer.open() && peer.greeted && peer.lost.ok()) PostControl(peer.endpoint, kBye, peer.to);
}

// Closes once what was sent is out, or when the time is over.
void UcxTransport::LetGo(Peer& peer, std::chrono::nanoseconds time) {
  for (Outgoing* outgoing : std::exchange(peer.held, {})) {
    outgoing->sent = true;
    outgoing->status = absl::CancelledError("disconnected");
    sent_.push_back(outgoing);
  }
  peer.close_by = peer.lost.ok() ? Clock::now() + time : Clock::time_point();
  leaving_.push_back(&peer);
}

// With nothing under way UCX may take its time to send what it has buffered; otherwise, or with
// nobody there to receive, closing cuts that off. Either way UCX answers later.
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
    if (arrival.peer->disconnected) continue;  // by what was called for those before
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
    if (outgoing->peer == nullptr) {  // CutOff came first
      free_outgoing_.push_back(outgoing);
      continue;
    }
    // The first error names the cause; UCX's own is then only that the send was cancelled.
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

// One by one: what is called may disconnect another peer, which must then not be reported. A peer
// whose payloads are still being written here, or were and are not handed out, waits.
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
    CutOff(*peer);  // may call Disconnect, which looks for the peer in closing_
    closing_[i] = closing_.back();
    closing_.pop_back();
    if (peer->disconnected) peers_.erase(peer->id);
  }
}

// The endpoint is closed. UCX 1.13 does not complete every send of a closed endpoint, so what is
// left is completed here; what UCX says of it later only returns it to the pool.
void UcxTransport::CutOff(Peer& peer) {
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

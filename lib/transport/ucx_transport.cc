#include "lib/transport/ucx_transport.h"

#include <glog/logging.h>
#include <poll.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/status/status.h"
#include "lib/transport/address_envelope.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kMessageId = 0;  // our one kind of active message
constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);

// So much under way on every connection of a peer is reason to open another. Not sooner: see
// UcxTransportOptions.connections.
constexpr size_t kBusyBytes = 1 << 20;

// UCX does not survive unpacking bytes that are no address of its own.
constexpr absl::string_view kAddressMark = "MUX1";

absl::Status ToStatus(ucs_status_t status) {
  if (status == UCS_OK) return absl::OkStatus();
  if (status == UCS_ERR_CANCELED) return absl::CancelledError("UCX: cancelled");
  return absl::UnavailableError(absl::StrCat("UCX: ", ucs_status_string(status)));
}

// UCX writes to stdout by itself, which belongs to the program.
ucs_log_func_rc_t LogToGlog(const char* file, unsigned line, const char*, ucs_log_level_t level,
                            const ucs_log_component_config_t*, const char* format,
                            va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof(text), format, arguments);
  const int severity = level <= UCS_LOG_LEVEL_ERROR  ? google::GLOG_ERROR
                       : level == UCS_LOG_LEVEL_WARN ? google::GLOG_WARNING
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

// UCX_TLS, a list of what UCX may use ("rc,cuda_copy"), or with ^ of what it may not.
absl::string_view WantedNetworks() {
  const char* value = std::getenv("UCX_TLS");
  return value == nullptr ? "" : value;
}

bool EnvironmentAsksForRdma() {
  const absl::string_view wanted = WantedNetworks();
  if (absl::StartsWith(wanted, "^")) return false;
  for (absl::string_view network : absl::StrSplit(wanted, ',')) {
    if (IsRdma(network) || network == "ib") return true;
  }
  return false;
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

absl::StatusOr<std::shared_ptr<ucp_context>> MakeContext() {
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
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config, &context);
  if (status != UCS_OK) {
    return Annotate(ToStatus(status),
                    absl::StrCat("UCX finds no network to use (UCX_TLS='", WantedNetworks(),
                                 "'; `ucx_info -d` lists what is here)"));
  }
  return std::shared_ptr<ucp_context>(context, ucp_cleanup);
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

// What UCX prints of an endpoint's lanes: "lane[0]:  1:tcp/lo.0 md[1]  -> md[1]/...". UCX 1.13 has
// no other way to ask.
struct Lanes {
  std::set<std::string> networks;  // "tcp"
  std::set<std::string> devices;   // "lo"
};

Lanes LanesOf(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  CHECK(stream != nullptr);
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  absl::Cleanup release = [text] { std::free(text); };
  Lanes lanes;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text, size), '\n')) {
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

// A send under way. UCX reads `header` until it is sent.
struct UcxTransport::Outgoing {
  UcxTransport* transport;
  Peer* peer = nullptr;  // null: free, or cut off without waiting for UCX
  Connection* connection = nullptr;
  size_t bytes = 0;
  size_t index = 0;   // in peer->under_way
  bool sent = false;  // UCX is done with it; `status` says how it went
  absl::Status status;
  SendDone done;
  std::array<std::byte, WireHeader::kBytes> header;
};

// A large payload being received, or to be.
struct UcxTransport::Incoming : FetchTurns::Payload {
  explicit Incoming(UcxTransport* transport) : transport(transport) {}

  UcxTransport* const transport;
  Arrival arrival;
  void* data = nullptr;  // what UCX knows it by
};

struct UcxTransport::Connection {
  ucp_ep_h endpoint = nullptr;  // null once closing
  void* close_request = nullptr;
  size_t bytes_under_way = 0;
};

// Lives until UCX has closed its endpoints, because UCX's error callback points here.
struct UcxTransport::Peer {
  bool Closed();  // UCX has closed its endpoints
  bool open() const { return !connections.empty() && connections[0].endpoint != nullptr; }

  UcxTransport* transport;
  PeerId id;
  std::string ucx_address;
  int connections_max = 1;
  std::vector<Connection> connections;  // open and closing together; none if UCX made none
  absl::Status lost;                    // why, once it is
  absl::Status unsent;                  // what sends hear that closing cuts off
  bool disconnected = false;
  std::vector<Outgoing*> under_way;
};

struct UcxTransport::Callbacks {
  static void OnError(void* argument, ucp_ep_h, ucs_status_t status) {
    auto* peer = static_cast<Peer*>(argument);
    if (peer->disconnected || !peer->lost.ok()) return;
    peer->lost = ToStatus(status == UCS_OK ? UCS_ERR_CONNECTION_RESET : status);
    peer->transport->lost_.push_back(peer->id);
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

  static ucs_status_t OnMessage(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    auto* transport = static_cast<UcxTransport*>(argument);
    if (transport->receiver_ == nullptr) return UCS_OK;
    const absl::StatusOr<WireHeader> decoded =
        DecodeHeader(absl::MakeConstSpan(static_cast<const std::byte*>(header), header_bytes));
    if (!decoded.ok() || decoded->length != length) {
      transport->malformed_.fetch_add(1, std::memory_order_relaxed);
      return UCS_OK;  // the payload is dropped, also where it is still at the sender
    }
    if (length == 0) {
      transport->arrived_.push_back({*decoded, {}});
      return UCS_OK;
    }
    const absl::Span<std::byte> place = transport->receiver_->PlacePayload(*decoded).memory;
    if (place.empty()) return UCS_OK;
    CHECK_EQ(place.size(), length);
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(place.data(), data, length);
      transport->arrived_.push_back({*decoded, place});
      return UCS_OK;
    }
    transport->Fetch(data, {*decoded, place});
    return UCS_INPROGRESS;
  }

  static void OnFetched(void* request, ucs_status_t status, size_t, void* argument) {
    auto* incoming = static_cast<Incoming*>(argument);
    UcxTransport* transport = incoming->transport;
    ucp_request_free(request);
    // A payload that fails half-way is that of a dying sender: the receiver hears of it by
    // PeerLost.
    if (status == UCS_OK) {
      transport->arrived_.push_back(incoming->arrival);
    } else {
      LOG(WARNING) << "a payload was lost on the way: " << ucs_status_string(status);
    }
    transport->EndFetch(incoming);
    transport->FetchNext();
  }
};

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(UcxTransportOptions options) {
  static std::once_flag log_once;
  std::call_once(log_once, [] {
    if (std::getenv("UCX_LOG_FILE") == nullptr) ucs_log_push_handler(LogToGlog);
  });
  CHECK_GE(options.connections, 1);
  CHECK_LE(options.connections, kConnectionsMax);
  options.require_rdma |= EnvironmentAsksForRdma();
  ASSIGN_OR_RETURN(std::shared_ptr<ucp_context> context, MakeContext());
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
  auto transport = absl::WrapUnique(new UcxTransport(std::move(options), std::move(context), worker,
                                                     event_fd, std::move(address)));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = Callbacks::OnMessage;
  handler.arg = transport.get();
  if (ucs_status_t status = ucp_worker_set_am_recv_handler(worker, &handler); status != UCS_OK) {
    return ToStatus(status);
  }
  return transport;
}

UcxTransport::UcxTransport(UcxTransportOptions options, std::shared_ptr<ucp_context> context,
                           ucp_worker* worker, int event_fd, std::string address)
    : options_(std::move(options)),
      context_(std::move(context)),
      worker_(worker),
      event_fd_(event_fd),
      address_(std::move(address)),
      budget_(options_.polling) {}

UcxTransport::~UcxTransport() {
  receiver_ = nullptr;  // from here on messages are dropped
  while (FetchTurns::Payload* const payload = turns_.Abandon()) {
    ucp_am_data_release(worker_, static_cast<Incoming*>(payload)->data);
  }
  for (auto& [id, peer] : peers_) {
    for (Outgoing* outgoing : peer->under_way) outgoing->done = nullptr;
    peer->disconnected = true;
    if (peer->open()) Close(*peer, absl::CancelledError("the transport is destroyed"));
  }
  const auto deadline = Clock::now() + kGoodbyeTime;
  while (!closing_.empty() && Clock::now() < deadline) {
    ucp_worker_progress(worker_);
    FinishSends();
    ReapClosed();
  }
  // UCX insists that nobody waits any longer for the closing of an endpoint that it destroys.
  for (Peer* peer : closing_) {
    for (Connection& connection : peer->connections) {
      if (connection.close_request != nullptr) ucp_request_free(connection.close_request);
    }
  }
  ucp_worker_destroy(worker_);
}

std::string UcxTransport::name() const {
  std::set<std::string> networks;
  for (const auto& [id, peer] : peers_) {
    if (peer->open() && peer->lost.ok()) {
      networks.merge(LanesOf(peer->connections[0].endpoint).networks);
    }
  }
  if (networks.empty()) return "ucx";
  return absl::StrCat("ucx:", absl::StrJoin(networks, "+"));
}

LinkDescription UcxTransport::Describe(PeerId id) const {
  const Peer& peer = Find(id);
  LinkDescription link = {.transport = "ucx",
                          .connections = peer.connections_max,
                          .device_memory = TakesDeviceMemory(context_.get())};
  if (!peer.open()) return link;
  const Lanes lanes = LanesOf(peer.connections[0].endpoint);
  link.network = absl::StrJoin(lanes.networks, "+");
  link.device = absl::StrJoin(lanes.devices, "+");
  return link;
}

absl::StatusOr<PeerId> UcxTransport::Connect(absl::string_view address) {
  ASSIGN_OR_RETURN(absl::string_view ucx_address,
                   OpenAddress(kAddressMark, address, "UCX address"));
  const PeerId id{peers_made_++};
  auto owned = std::make_unique<Peer>(
      Peer{.transport = this, .id = id, .ucx_address = std::string(ucx_address)});
  Peer& peer = *owned;
  peers_[id] = std::move(owned);
  peer.connections.reserve(kConnectionsMax);  // sends point to them
  Open(peer);
  if (!peer.open()) return id;
  const LinkDescription link = Describe(id);
  if (absl::Status fits = CheckNetwork(link); !fits.ok()) {
    Disconnect(id);
    return fits;
  }
  peer.connections_max = options_.connections;
  return id;
}

// One more connection of the peer; a peer that cannot have it is lost.
void UcxTransport::Open(Peer& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.ucx_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = Callbacks::OnError;
  params.err_handler.arg = &peer;
  ucp_ep_h endpoint = nullptr;
  if (ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint); status != UCS_OK) {
    peer.lost = ToStatus(status);
    lost_.push_back(peer.id);
    return;
  }
  peer.connections.push_back({.endpoint = endpoint});
}

UcxTransport::Connection& UcxTransport::ConnectionOf(Peer& peer) {
  const auto least_busy = [&peer]() -> Connection& {
    return *std::ranges::min_element(peer.connections, {}, &Connection::bytes_under_way);
  };
  if (std::ssize(peer.connections) < peer.connections_max &&
      least_busy().bytes_under_way >= kBusyBytes) {
    Open(peer);
  }
  return least_busy();
}

absl::Status UcxTransport::CheckNetwork(const LinkDescription& link) const {
  if (!options_.require_rdma) return absl::OkStatus();
  for (absl::string_view network : absl::StrSplit(link.network, '+')) {
    if (IsRdma(network)) return absl::OkStatus();
  }
  const std::string got = absl::StrCat(
      "RDMA was asked for (",
      EnvironmentAsksForRdma() ? absl::StrCat("UCX_TLS=", WantedNetworks()) : "--transport=rdma",
      "), but UCX reaches this peer over ", link.network, " on device ", link.device);
  if (options_.allow_tcp_fallback) {
    static std::once_flag warn_once;
    std::call_once(warn_once,
                   [&got] { LOG(WARNING) << got << "; going on (--allow_tcp_fallback)"; });
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      got,
      "; `ucx_info -d` on both machines must list an rc, dc or ud transport on a device that "
      "UCX_NET_DEVICES allows (in a container: /dev/infiniband and unlimited locked memory); "
      "--allow_tcp_fallback goes on over TCP"));
}

void UcxTransport::Disconnect(PeerId id) {
  Peer& peer = Find(id);
  peer.disconnected = true;
  if (peer.open()) {
    Close(peer, absl::CancelledError("disconnected"));
  } else if (std::find(closing_.begin(), closing_.end(), &peer) == closing_.end()) {
    closing_.push_back(&peer);
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
  Outgoing* outgoing = TakeOutgoing();
  outgoing->header = EncodeHeader(header);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = Callbacks::OnSent;
  param.user_data = outgoing;
  Connection& connection = ConnectionOf(peer);
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(connection.endpoint, kMessageId, outgoing->header.data(),
                      outgoing->header.size(), payload.data(), payload.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    outgoing->peer = &peer;
    outgoing->connection = &connection;
    outgoing->bytes = payload.size();
    connection.bytes_under_way += payload.size();
    outgoing->sent = false;
    outgoing->index = peer.under_way.size();
    outgoing->done = std::move(done);
    peer.under_way.push_back(outgoing);
    return;
  }
  free_outgoing_.push_back(outgoing);
  if (done) done(ToStatus(UCS_PTR_STATUS(request)));
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

int UcxTransport::Progress() {
  CHECK(receiver_ != nullptr) << "SetReceiver comes before Progress";
  sleeping_.store(false, std::memory_order_relaxed);
  int events = static_cast<int>(ucp_worker_progress(worker_));
  FetchNext();
  events += Deliver();
  events += FinishSends();
  events += ReportLosses();
  ReapClosed();
  return events;
}

bool UcxTransport::TakeIn() { return ucp_worker_progress(worker_) != 0 || HasNews(); }

bool UcxTransport::TakeWake() {
  return woken_.load(std::memory_order_relaxed) && woken_.exchange(false);
}

// A Wake() either finds sleeping_ and signals, or is found by TakeWake().
bool UcxTransport::PrepareToSleep() {
  sleeping_ = true;
  if (!HasNews() && !TakeWake() && ucp_worker_arm(worker_) == UCS_OK) return true;
  sleeping_ = false;
  return false;
}

// The end of a close shows in its request only; UCX announces no event for it.
absl::Duration UcxTransport::SleepMax() const {
  if (!closing_.empty()) return absl::Milliseconds(10);
  return turns_.waiting() ? absl::FromChrono(turns_.patience()) : absl::InfiniteDuration();
}

void UcxTransport::Wait(absl::Duration timeout) {
  if (HasNews() || TakeWake()) return;
  timeout = std::max(std::min(timeout, SleepMax()), absl::ZeroDuration());
  const auto news = [this] { return TakeIn() || TakeWake(); };
  if (budget_.PollUntil(news, absl::ToChronoNanoseconds(timeout))) return;
  if (!PrepareToSleep()) return;
  Sleep(timeout);
  sleeping_ = false;
  TakeWake();
}

bool UcxTransport::Sleep(absl::Duration timeout) {
  pollfd ready{.fd = event_fd_, .events = POLLIN, .revents = 0};
  const timespec limit = absl::ToTimespec(timeout);
  return ppoll(&ready, 1, timeout == absl::InfiniteDuration() ? nullptr : &limit, nullptr) > 0;
}

void UcxTransport::Wake() {
  woken_ = true;
  if (!sleeping_) return;
  const ucs_status_t status = ucp_worker_signal(worker_);
  CHECK_EQ(status, UCS_OK) << ucs_status_string(status);
}

UcxTransport::Peer& UcxTransport::Find(PeerId id) const {
  auto found = peers_.find(id);
  CHECK(found != peers_.end() && !found->second->disconnected)
      << "no peer " << static_cast<int>(id);
  return *found->second;
}

UcxTransport::Outgoing* UcxTransport::TakeOutgoing() {
  if (free_outgoing_.empty()) {
    outgoing_.push_back(std::make_unique<Outgoing>(Outgoing{.transport = this}));
    return outgoing_.back().get();
  }
  Outgoing* outgoing = free_outgoing_.back();
  free_outgoing_.pop_back();
  return outgoing;
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
  turns_.Wait(incoming, arrival.header.job, arrival.header.rank, arrival.payload.size());
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
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = Callbacks::OnFetched;
  param.user_data = incoming;
  auto* place = const_cast<std::byte*>(arrival.payload.data());
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, incoming->data, place, arrival.payload.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (request == nullptr) {
    arrived_.push_back(arrival);
  } else {
    LOG(WARNING) << "a payload cannot be received: " << ucs_status_string(UCS_PTR_STATUS(request));
  }
  EndFetch(incoming);
}

void UcxTransport::EndFetch(Incoming* incoming) {
  turns_.End(incoming);
  free_incoming_.push_back(incoming);
}

// Takes a send from its peer.
Transport::SendDone UcxTransport::Detach(Outgoing* outgoing) {
  std::vector<Outgoing*>& under_way = std::exchange(outgoing->peer, nullptr)->under_way;
  outgoing->connection->bytes_under_way -= outgoing->bytes;
  under_way.back()->index = outgoing->index;
  under_way[outgoing->index] = under_way.back();
  under_way.pop_back();
  return std::move(outgoing->done);
}

// Without sends under way UCX may take its time to send what it has buffered; with some, or with
// nobody there to receive, closing cuts them off. Either way UCX answers later.
void UcxTransport::Close(Peer& peer, absl::Status unsent) {
  const bool gently = peer.lost.ok() && peer.under_way.empty();
  peer.unsent = std::move(unsent);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = gently ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  for (Connection& connection : peer.connections) {
    const ucs_status_ptr_t request =
        ucp_ep_close_nbx(std::exchange(connection.endpoint, nullptr), &param);
    if (UCS_PTR_IS_PTR(request)) connection.close_request = request;
  }
  closing_.push_back(&peer);
}

int UcxTransport::Deliver() {
  delivering_.swap(arrived_);
  for (const Arrival& arrival : delivering_)
    receiver_->Received(arrival.header, arrival.payload, {});
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

int UcxTransport::ReportLosses() {
  int reported = 0;
  while (!lost_.empty()) {
    auto found = peers_.find(lost_.front());
    lost_.pop_front();
    if (found == peers_.end() || found->second->disconnected) continue;
    Peer& peer = *found->second;
    const absl::Status why = peer.lost;
    if (peer.open()) Close(peer, why);
    receiver_->PeerLost(peer.id, why);
    ++reported;
  }
  return reported;
}

bool UcxTransport::Peer::Closed() {
  for (Connection& connection : connections) {
    if (connection.close_request == nullptr) continue;
    if (ucp_request_check_status(connection.close_request) == UCS_INPROGRESS) return false;
    ucp_request_free(std::exchange(connection.close_request, nullptr));
  }
  return true;
}

void UcxTransport::ReapClosed() {
  for (size_t i = 0; i < closing_.size();) {
    Peer* peer = closing_[i];
    if (!peer->Closed()) {
      ++i;
      continue;
    }
    CutOff(*peer);  // may call Disconnect, which looks for the peer in closing_
    closing_[i] = closing_.back();
    closing_.pop_back();
    if (peer->disconnected) peers_.erase(peer->id);
  }
}

// The endpoints are closed. UCX 1.13 does not complete every send of a closed endpoint, so what is
// left is completed here; what UCX says of it later only returns it to the pool.
void UcxTransport::CutOff(Peer& peer) {
  while (!peer.under_way.empty()) {
    Outgoing* outgoing = peer.under_way.back();
    const absl::Status status = outgoing->sent ? outgoing->status : peer.unsent;
    SendDone done = Detach(outgoing);
    if (done) done(status);
  }
}

}  // namespace muster

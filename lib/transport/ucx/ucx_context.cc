#include "lib/transport/ucx/ucx_context.h"

#include <glog/logging.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "lib/status/status.h"
#include "lib/transport/ucx/ucx_library.h"

namespace muster {
namespace {

// This is set while UCX logs expected warnings: it does not find every network that it is asked to
// look for, or a worker ends with unfinished requests.
thread_local bool warnings_are_expected = false;

// Writes UCX's log lines to our log. UCX would write them to stdout, which belongs to the program.
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

// A transport also needs UCX's loopback ("self") and its GPU memory support ("cuda").
constexpr const char* kRdmaNetworks = "rc,dc,ud,self,cuda";

bool OpensNoSocket(absl::string_view network) {
  for (absl::string_view prefix : {"ib", "self", "cuda", "gdr"}) {
    if (absl::StartsWith(network, prefix)) return true;
  }
  return IsRdma(network);
}

// The value of UCX_TLS: a list of the networks that UCX may use ("rc,cuda_copy"), or with ^ those
// that it may not use.
absl::string_view WantedNetworks() {
  const char* value = std::getenv("UCX_TLS");
  return value == nullptr ? "" : value;
}

// Whether UCX_TLS names only networks that open no socket. The user may choose among the RDMA
// networks, but not add others.
bool WantsRdmaOnly() {
  for (absl::string_view network : absl::StrSplit(WantedNetworks(), ',')) {
    if (!OpensNoSocket(network)) return false;
  }
  return true;
}

struct Setting {
  const char* variable;  // the user's variable, which takes precedence
  const char* name;      // UCX 1.13 accepts a transport's setting without the transport's prefix
  const char* value;
};

constexpr Setting kSettings[] = {
    // UCX's default is a blocking connect: one unreachable peer would stop a shard thread for
    // minutes.
    {"UCX_TCP_CONN_NB", "CONN_NB", "y"},
    // The loss of an idle connection's machine is detected within about 6 s instead of 16 s.
    {"UCX_TCP_KEEPIDLE", "KEEPIDLE", "3s"},
    // UCX assembles an eager message of several segments in newly allocated memory. Rendezvous
    // writes it directly to its place.
    {"UCX_RNDV_THRESH", "RNDV_THRESH", "16k"},
    // UCX 1.13 with peer error handling moves large payloads over TCP in segments of this size.
    // Each segment wakes a sleeping receiver. On loopback, 64 MiB messages went from 1.7 GB/s with
    // the default of 64k to 2.8 with 256k and 4.2 with 512k. 1m is no better, because it exceeds
    // the caches.
    {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "512k"},
    // A message just below the rendezvous threshold of 16k can then travel in one segment.
    {"UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "32k"},
};

// Returns what UCX prints about an object. UCX 1.13 has no other way to ask.
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

// Whether UCX has found an RDMA network. It prints a line for each network:
// "resource 2  :  md 1  dev 2  flags -- tcp/eth0".
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
      "' or UCX_NET_DEVICES may exclude it). Install the drivers of ",
      "the card (Debian: rdma-core, ibverbs-providers, libucx0); in a container also provide "
      "/dev/infiniband ",
      "and unlimited locked memory. Without RDMA: --transport=auto"));
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

absl::StatusOr<std::shared_ptr<ucp_context>> MakeUcxContext(UcxNetworks networks) {
  RETURN_IF_ERROR(LoadUcx());
  static std::once_flag log_once;
  std::call_once(log_once, [] {
    if (std::getenv("UCX_LOG_FILE") == nullptr) ucs_log_push_handler(LogToGlog);
  });
  const bool rdma_only = networks == UcxNetworks::kRdmaOnly;
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxStatus(status);
  absl::Cleanup release = [config] { ucp_config_release(config); };
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.variable) != nullptr) continue;
    status = ucp_config_modify(config, setting.name, setting.value);
    LOG_IF(WARNING, status != UCS_OK)
        << "UCX rejects " << setting.variable << ": " << UcxStatus(status);
  }
  if (rdma_only && (WantedNetworks().empty() || !WantsRdmaOnly())) {
    static std::once_flag warn_once;
    if (!WantedNetworks().empty()) {
      std::call_once(warn_once, [] {
        LOG(WARNING) << "UCX_TLS=" << WantedNetworks()
                     << " includes other networks than RDMA: " << kRdmaNetworks
                     << " is used instead";
      });
    }
    CHECK_EQ(ucp_config_modify(config, "TLS", kRdmaNetworks), UCS_OK);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  warnings_are_expected = true;
  status = ucp_init(&params, config, &context);
  warnings_are_expected = false;
  if (status != UCS_OK && rdma_only) {
    return NoRdma(absl::StrCat(" (", ucs_status_string(status), ")"));
  }
  if (status != UCS_OK) {
    return Annotate(UcxStatus(status),
                    absl::StrCat("UCX finds no network to use (UCX_TLS='", WantedNetworks(),
                                 "'; `ucx_info -d` lists what is here)"));
  }
  std::shared_ptr<ucp_context> owned(context, ucp_cleanup);
  if (rdma_only && !HasRdma(context)) return NoRdma("");
  return owned;
}

absl::Status UcxStatus(int status) {
  if (status == UCS_OK) return absl::OkStatus();
  if (status == UCS_ERR_CANCELED) return absl::CancelledError("UCX: cancelled");
  return absl::UnavailableError(
      absl::StrCat("UCX: ", ucs_status_string(static_cast<ucs_status_t>(status))));
}

absl::StatusOr<std::string> UcxAddressOf(ucp_worker* worker) {
  ucp_address_t* address = nullptr;
  size_t size = 0;
  const ucs_status_t status = ucp_worker_get_address(worker, &address, &size);
  if (status != UCS_OK) return UcxStatus(status);
  std::string bytes(reinterpret_cast<const char*>(address), size);
  ucp_worker_release_address(worker, address);
  return bytes;
}

void DestroyUcxWorker(ucp_worker* worker) {
  warnings_are_expected = true;
  ucp_worker_destroy(worker);
  warnings_are_expected = false;
}

// Returns the lanes that UCX prints for an endpoint: "lane[0]:  1:tcp/lo.0 md[1]  -> md[1]/...".
UcxLanes LanesOf(ucp_ep* endpoint) {
  const std::string printed =
      PrintedBy([endpoint](FILE* stream) { ucp_ep_print_info(endpoint, stream); });
  UcxLanes lanes;
  for (absl::string_view line : absl::StrSplit(printed, '\n')) {
    if (!absl::StrContains(line, "lane[")) continue;
    const std::vector<absl::string_view> by_colon = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (by_colon.size() < 3) continue;
    const absl::string_view resource = by_colon[2].substr(0, by_colon[2].find(' '));
    const size_t slash = resource.find('/');
    if (slash == absl::string_view::npos) continue;
    lanes.networks.emplace(resource.substr(0, slash));
    const absl::string_view device = resource.substr(slash + 1);
    lanes.devices.emplace(device.substr(0, device.rfind('.')));  // ".0" is the path on the device
  }
  return lanes;
}

bool TakesDeviceMemory(ucp_context* context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context, &attributes) != UCS_OK) return false;
  return UCS_BIT(UCS_MEMORY_TYPE_CUDA) & attributes.memory_types;
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> RegisterWithUcx(
    std::shared_ptr<ucp_context> context, absl::Span<std::byte> memory) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  ucp_mem_h handle = nullptr;
  if (ucs_status_t status = ucp_mem_map(context.get(), &params, &handle); status != UCS_OK) {
    return Annotate(UcxStatus(status), absl::StrCat("registering ", memory.size(), " bytes"));
  }
  return std::make_unique<UcxMemoryRegistration>(std::move(context), handle);
}

}  // namespace muster

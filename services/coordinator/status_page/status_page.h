// The coordinator's status page: a page for people, the same as JSON for scripts. Reads only.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/http/http_server.h"
#include "lib/http/relay/tls_relay.h"
#include "lib/security/tls_folder.h"
#include "services/coordinator/status_page/change_feed.h"
#include "services/coordinator/status_page/page_access.h"
#include "services/coordinator/status_page/status_api.h"
#include "services/coordinator/status_page/status_source.h"

namespace muster {

// The page itself has nothing to hide and is given to everybody who reaches the port; what it shows
// comes from /api/v1, and that asks who wants to know. No answer lets a browser run or load
// anything from elsewhere, or be shown within another page.
class StatusPage {
 public:
  struct Options {
    std::string address;       // "host:port", port 0 picks a free one
    TlsServer* tls = nullptr;  // for browsers; outlives the page. Null: in the clear
    PageAccess access;
    std::string version;                                // of this Muster
    int timeout_ms = 10'000;                            // for a request to come, and for a reader
    absl::Duration change_interval = absl::Seconds(1);  // how often streams are told what is new
    int streams_max = 16;
  };
  // `source` outlives the page. INVALID_ARGUMENT: it is no address; UNAVAILABLE: it cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(Options options, StatusSource* source);
  ~StatusPage();

  int port() const { return relay_ != nullptr ? relay_->port() : server_->port(); }

 private:
  StatusPage(Options options, StatusSource* source);

  HttpResponse Answer(const HttpRequest& request);

  const PageAccess access_;
  ChangeFeed feed_;
  StatusApi api_;
  std::unique_ptr<HttpServer> server_;  // its threads use what is above
  std::unique_ptr<TlsRelay> relay_;     // null: in the clear
};

}  // namespace muster

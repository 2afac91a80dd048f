// The coordinator's read-only status page: HTML for people, the same content as JSON for scripts.
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

// The HTML has no secrets, so every client gets it. Its content comes from /api/v1, which checks
// the access of each request. Every response forbids a browser to load content from other sites, or
// to show the page inside another page.
class StatusPage {
 public:
  struct Options {
    std::string address;       // "host:port"; port 0 picks a free one
    TlsServer* tls = nullptr;  // for browsers; must outlive the page. Null: no TLS.
    PageAccess access;
    std::string version;      // of this Muster
    int timeout_ms = 10'000;  // for a request to arrive, and for a slow reader
    absl::Duration change_interval = absl::Seconds(1);  // interval of the updates in streams
    int streams_max = 16;
  };
  // `source` must outlive the page. Returns INVALID_ARGUMENT for a bad address, UNAVAILABLE if it
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(Options options, StatusSource* source);
  ~StatusPage();

  int port() const { return relay_ != nullptr ? relay_->port() : server_->port(); }

 private:
  StatusPage(Options options, StatusSource* source);

  HttpResponse Answer(const HttpRequest& request);

  const PageAccess access_;
  ChangeFeed feed_;
  StatusApi api_;
  std::unique_ptr<HttpServer> server_;  // its threads use the members above
  std::unique_ptr<TlsRelay> relay_;     // null: no TLS
};

}  // namespace muster

// The status page as the coordinator's flags configure it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/fleet/security_flags.h"
#include "lib/security/tls_folder.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/api/token_table.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/status_page/coordinator_status.h"
#include "services/coordinator/status_page/status_page.h"

namespace muster {

// Owns the page and the objects that it needs.
class ServedPage {
 public:
  // Starts the page by --http and --http_file. Returns null if no page is wanted, or if another
  // process has the default port, which is logged. An error names its flag. With certificates the
  // page requires tokens, and refused requests are in the audit log. `access`, `tokens` and
  // `coordinator` must outlive the page.
  static absl::StatusOr<std::unique_ptr<ServedPage>> FromFlags(const DaemonSecurity& security,
                                                               const Access* access,
                                                               const TokenTable* tokens,
                                                               Coordinator* coordinator);

  const std::string& url() const { return url_; }  // as this host reaches it

 private:
  explicit ServedPage(Coordinator* coordinator) : source_(coordinator) {}

  CoordinatorStatus source_;
  std::unique_ptr<TlsServer> tls_;    // null: no TLS
  std::unique_ptr<StatusPage> page_;  // last, because it uses the other members
  std::string url_;
};

}  // namespace muster

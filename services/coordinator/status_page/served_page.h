// The status page of a coordinator, as its command line wants it.
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

// The page and what it stands on.
class ServedPage {
 public:
  // By --http and --http_file. Null: there is none, because none is wanted, or because another
  // process has the default port; the log says so. An error names its flag. With certificates the
  // page asks for tokens, and whom it refuses is in the audit log; all arguments outlive it.
  static absl::StatusOr<std::unique_ptr<ServedPage>> FromFlags(const DaemonSecurity& security,
                                                               const Access* access,
                                                               const TokenTable* tokens,
                                                               Coordinator* coordinator);

  const std::string& url() const { return url_; }  // as this host reaches it

 private:
  explicit ServedPage(Coordinator* coordinator) : source_(coordinator) {}

  CoordinatorStatus source_;
  std::unique_ptr<TlsServer> tls_;    // null: in the clear
  std::unique_ptr<StatusPage> page_;  // last: it uses the others
  std::string url_;
};

}  // namespace muster

#include "services/coordinator/status_page/served_page.h"

#include <glog/logging.h>

#include <utility>

#include "absl/flags/flag.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/file/replaced_file.h"
#include "lib/status/status.h"
#include "lib/version/build.h"

namespace {
constexpr char kHttpDefault[] = "127.0.0.1:8080";
}  // namespace

ABSL_FLAG(std::string, http, kHttpDefault,
          "host:port of the status page; port 0 picks one; beyond this host only with --tls; "
          "empty: none. If another process has the default port, there is no page");
ABSL_FLAG(std::string, http_file, "",
          "file to write the status page's address (http://host:port) to once it is bound");

namespace muster {
namespace {

constexpr size_t kPathBytesMax = 128;  // in a log line

absl::Status CheckAddress(const DaemonSecurity& security, const std::string& address) {
  if (!security.tls.empty() || IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--http: ", address,
                   " can be reached from beyond this host, and what the page shows is not for "
                   "everybody: give certificates (--tls=DIR; muster certs init makes them), or "
                   "listen on 127.0.0.1 and come through a tunnel (ssh -L, kubectl port-forward)"));
}

std::string UrlOf(const std::string& address, int port, bool tls) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.empty() || host == "0.0.0.0" || host == "[::]") host = "localhost";
  return absl::StrCat(tls ? "https://" : "http://", host, ":", port);
}

absl::Status WriteUrl(const std::string& path, const std::string& url) {
  const absl::Status written = ReplaceFile(path, url + "\n");
  if (written.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--http_file: ", written.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedPage>> ServedPage::FromFlags(const DaemonSecurity& security,
                                                                  const Access* access,
                                                                  const TokenTable* tokens,
                                                                  Coordinator* coordinator) {
  const std::string address = absl::GetFlag(FLAGS_http);
  if (address.empty()) return nullptr;
  RETURN_IF_ERROR(CheckAddress(security, address));
  auto served = absl::WrapUnique(new ServedPage(coordinator));
  StatusPage::Options options{
      .address = address, .access = PageAccess::Open(), .version = ThisBuild().version};
  if (!security.tls.empty()) {
    auto tls = TlsServer::Open({security.tls}, TlsServer::Clients::kBrowsers);
    RETURN_IF_ERROR(Annotate(tls.status(), "--tls"));
    served->tls_ = *std::move(tls);
    options.tls = served->tls_.get();
    // Every valid token may read.
    options.access = PageAccess::Checked(
        [tokens](absl::string_view secret) { return tokens->Find(secret, absl::Now()).status(); },
        /*secure=*/true,
        [access](const HttpRequest& request, const absl::Status& why) {
          // The TLS relay in front of the page knows the client's address but does not pass it on.
          access->AuditRefusal({.address = "the status page"},
                               absl::StrCat(request.method, " ",
                                            absl::CEscape(request.path.substr(0, kPathBytesMax))),
                               why);
        });
  }
  auto page = StatusPage::Start(std::move(options), &served->source_);
  if (absl::IsUnavailable(page.status()) && address == kHttpDefault) {
    LOG(WARNING) << "no status page (--http): " << page.status().message();
    return nullptr;
  }
  RETURN_IF_ERROR(Annotate(page.status(), "--http"));
  served->page_ = *std::move(page);
  served->url_ = UrlOf(address, served->page_->port(), !security.tls.empty());
  if (const std::string path = absl::GetFlag(FLAGS_http_file); !path.empty()) {
    RETURN_IF_ERROR(WriteUrl(path, served->url_));
  }
  return served;
}

}  // namespace muster

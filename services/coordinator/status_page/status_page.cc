#include "services/coordinator/status_page/status_page.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "services/coordinator/status_page/page_assets.h"

namespace muster {
namespace {

// Threads for a page's concurrent requests, including downloads and logs. Streams have others.
constexpr int kThreadsForAnswers = 10;
constexpr char kPolicy[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; "
    "base-uri 'none'";

HttpResponse NotAllowed(absl::string_view method) {
  HttpResponse response = StatusApi::Refuse(WithReason(
      absl::InvalidArgumentError(absl::StrCat("the page can only be read: GET, and not ", method)),
      "INVALID_REQUEST"));
  response.status = 405;
  response.headers.emplace_back("Allow", "GET, HEAD");
  return response;
}

HttpResponse Give(const PageAsset& asset, const HttpRequest& request) {
  HttpResponse response{.content_type = std::string(asset.content_type),
                        .headers = {{"Cache-Control", "no-cache"}, {"ETag", asset.version}}};
  if (request.Header("if-none-match") == asset.version) {
    response.status = 304;
  } else {
    response.body = std::string(asset.content);
  }
  return response;
}

}  // namespace

StatusPage::StatusPage(Options options, StatusSource* source)
    : access_(std::move(options.access)),
      feed_({.source = source,
             .interval = options.change_interval,
             .streams_max = options.streams_max}),
      api_({.source = source,
            .feed = &feed_,
            .version = std::move(options.version),
            .signed_in = !access_.open()}) {}

absl::StatusOr<std::unique_ptr<StatusPage>> StatusPage::Start(Options options,
                                                              StatusSource* source) {
  TlsRelay::Options relay{.address = options.address, .tls = options.tls};
  const int threads = options.streams_max + kThreadsForAnswers;
  HttpServer::Options server{
      .address = options.tls != nullptr ? "127.0.0.1:0" : options.address,
      .threads = threads,
      .timeout_ms = options.timeout_ms,
      .headers = {kPolicy, "X-Content-Type-Options: nosniff", "X-Frame-Options: DENY",
                  "Referrer-Policy: no-referrer", "Cross-Origin-Opener-Policy: same-origin",
                  "Cross-Origin-Resource-Policy: same-origin"}};
  auto page = absl::WrapUnique(new StatusPage(std::move(options), source));
  ASSIGN_OR_RETURN(page->server_,
                   HttpServer::Start(std::move(server), [raw = page.get()](const HttpRequest& r) {
                     return raw->Answer(r);
                   }));
  if (relay.tls != nullptr) {
    relay.target_port = page->server_->port();
    relay.of_address_max = threads * 3 / 4;  // a request occupies a thread for a while
    ASSIGN_OR_RETURN(page->relay_, TlsRelay::Listen(std::move(relay)));
  }
  return page;
}

// Closes the feed first, because streams last as long as their readers.
StatusPage::~StatusPage() {
  feed_.Close();
  relay_.reset();
  server_.reset();
}

HttpResponse StatusPage::Answer(const HttpRequest& request) {
  if (request.method == "POST" && request.path == "/login") return access_.SignIn(request);
  if (request.method == "POST" && request.path == "/logout") return access_.SignOut(request);
  if (request.method != "GET") return NotAllowed(request.method);
  if (absl::StartsWith(request.path, "/api/v1/")) {
    if (const absl::Status admitted = access_.Admit(request); !admitted.ok()) {
      return StatusApi::Refuse(admitted);
    }
    return api_.Answer(request);
  }
  if (const PageAsset* asset = FindPageAsset(request.path)) return Give(*asset, request);
  return StatusApi::Refuse(WithReason(
      absl::NotFoundError(absl::StrCat("there is nothing at ", request.path)), "PATH_NOT_FOUND"));
}

}  // namespace muster

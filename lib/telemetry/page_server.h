// One page over HTTP: what /metrics is.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_context;

namespace muster {

// Threads of its own answer; every other path is 404. No encryption and no authentication: the page
// is for a trusted network.
class PageServer {
 public:
  // Makes the page anew for each request; called by several threads at once.
  using Page = std::function<std::string()>;

  // `address` is "host:port", port 0 picks a free one; `path` begins with a slash. INVALID_ARGUMENT
  // where it is no address, UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(const std::string& address,
                                                           const std::string& path, Page page);
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;
  // Waits for requests that are being answered.
  ~PageServer();

  int port() const { return port_; }

 private:
  PageServer(std::string host, Page page) : host_(std::move(host)), page_(std::move(page)) {}

  const std::string host_;  // as this process reaches it
  const Page page_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace muster

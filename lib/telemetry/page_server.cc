#include "lib/telemetry/page_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

// Where a connection to `host` reaches who listens there: without the brackets of an IPv6 address,
// and on loopback where all addresses are meant.
std::string Reachable(absl::string_view host) {
  host = absl::StripSuffix(absl::StripPrefix(host, "["), "]");
  if (host == "0.0.0.0" || host.empty()) return "127.0.0.1";
  return host == "::" ? "::1" : std::string(host);
}

// Connects to a port of this machine and hangs up; whether anybody answers is no matter.
void Knock(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const int socket_fd =
      socket(found->ai_family, found->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_fd >= 0) {
    (void)connect(socket_fd, found->ai_addr, found->ai_addrlen);
    pollfd ready{.fd = socket_fd, .events = POLLOUT};
    poll(&ready, 1, /*timeout=*/20);
    close(socket_fd);
  }
  freeaddrinfo(found);
}

int Answer(mg_connection* connection, void* page) {
  const std::string body = (*static_cast<const PageServer::Page*>(page))();
  mg_printf(connection,
            "HTTP/1.1 200 OK\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: %zu\r\n"
            "Connection: close\r\n\r\n",
            body.size());
  mg_write(connection, body.data(), body.size());
  return 200;
}

int KeepMessage(const mg_connection*, const char* message) {
  return message == nullptr ? 0 : 1;  // 1: the library does not print it
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(const std::string& address,
                                                              const std::string& path, Page page) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not host:port"));
  }
  const std::string host = address.substr(0, colon);
  auto server = absl::WrapUnique(new PageServer(Reachable(host), std::move(page)));
  // The library takes a port alone for all addresses.
  const std::string ports = host.empty() ? address.substr(colon + 1) : address;
  const char* options[] = {"listening_ports", ports.c_str(), "num_threads", "2", nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = KeepMessage;
  char why[256] = "";
  mg_init_data init{.callbacks = &callbacks, .configuration_options = options};
  unsigned code = 0;
  mg_error_data error{.code = &code, .text = why, .text_buffer_size = sizeof(why)};
  mg_init_library(0);
  server->context_ = mg_start2(&init, &error);
  mg_server_port bound[1] = {};
  if (server->context_ != nullptr && mg_get_server_ports(server->context_, 1, bound) == 1) {
    server->port_ = bound[0].port;
    mg_set_request_handler(server->context_, path.c_str(), Answer,
                           const_cast<Page*>(&server->page_));
    return server;
  }
  return absl::UnavailableError(why[0] == 0 ? "cannot bind the port" : why);
}

// The library's listener sees that it is to end when somebody connects, or after two seconds: a
// process that stops would wait for them. So somebody connects, until it has seen it.
PageServer::~PageServer() {
  if (context_ != nullptr) {
    std::atomic<bool> ended = false;
    std::thread visitor([&] {
      while (!ended) {
        Knock(host_, port_);
        poll(nullptr, 0, /*timeout=*/2);
      }
    });
    mg_stop(context_);
    ended = true;
    visitor.join();
  }
  mg_exit_library();
}

}  // namespace muster

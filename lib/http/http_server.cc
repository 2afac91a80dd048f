#include "lib/http/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

// Returns an address at which this process reaches a listener on `host`: without the brackets of an
// IPv6 address, and loopback if `host` means all addresses.
std::string Reachable(absl::string_view host) {
  host = absl::StripSuffix(absl::StripPrefix(host, "["), "]");
  if (host == "0.0.0.0" || host.empty()) return "127.0.0.1";
  return host == "::" ? "::1" : std::string(host);
}

// Connects to a port of this machine and hangs up, whether the port answers or not.
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

absl::string_view TextOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 503:
      return "Service Unavailable";
    default:
      return status < 500 ? "Refused" : "Failed";
  }
}

// Returns the status of a refusal, or 0 at the end of the body or of the connection. The library's
// time limit applies to each read and restarts with every byte: a slow sender would occupy a thread
// for days. So the code reads byte by byte and checks the total time.
int ReadBody(mg_connection* connection, absl::Duration timeout, std::string& body) {
  const absl::Duration begin = SteadyNow();
  for (char byte; mg_read(connection, &byte, 1) > 0;) {
    body.push_back(byte);
    if (std::ssize(body) > HttpServer::kBodyBytesMax) return 413;
    if (SteadyNow() - begin > timeout) return 408;
  }
  return 0;
}

int KeepMessage(const mg_connection*, const char* message) {
  return message == nullptr ? 0 : 1;  // 1: the library does not print it
}

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  absl::string_view found;
  int times = 0;
  for (const auto& [header, value] : headers) {
    if (!absl::EqualsIgnoreCase(header, name)) continue;
    found = value;
    ++times;
  }
  return times == 1 ? found : "";
}

bool HttpStream::Write(absl::string_view bytes) {
  return bytes.empty() || mg_write(connection_, bytes.data(), bytes.size()) == std::ssize(bytes);
}

HttpServer::HttpServer(Options options, std::string host, Handler handler)
    : options_(std::move(options)), host_(std::move(host)), handler_(std::move(handler)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, Handler handler) {
  const std::string& address = options.address;
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not host:port with a port of 0 to ", UINT16_MAX));
  }
  const std::string host = address.substr(0, colon);
  // A port alone means, to the library, all addresses.
  const std::string ports = host.empty() ? address.substr(colon + 1) : address;
  auto server =
      absl::WrapUnique(new HttpServer(std::move(options), Reachable(host), std::move(handler)));
  const std::string threads = absl::StrCat(server->options_.threads);
  const std::string timeout = absl::StrCat(server->options_.timeout_ms);
  const char* const configuration[] = {
      "listening_ports", ports.c_str(), "num_threads", threads.c_str(), "connection_queue",
      threads.c_str(), "request_timeout_ms", timeout.c_str(),
      // The library would allow requests from pages of any origin.
      "access_control_allow_origin", "", "access_control_allow_methods", "",
      "access_control_allow_headers", "", nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = KeepMessage;
  // Called for requests that the library refuses.
  callbacks.http_error = [](mg_connection* connection, int status, const char*) {
    if (mg_get_user_connection_data(connection) != nullptr) return 0;  // it was answered
    static_cast<const HttpServer*>(mg_get_user_data(mg_get_context(connection)))
        ->Send(connection, {.status = status, .content_type = "text/plain"}, /*with_body=*/true);
    return 0;
  };
  char why[256] = "";
  mg_init_data init{.callbacks = &callbacks,
                    .user_data = server.get(),
                    .configuration_options = const_cast<const char**>(configuration)};
  unsigned code = 0;
  mg_error_data error{.code = &code, .text = why, .text_buffer_size = sizeof(why)};
  mg_init_library(0);
  server->context_ = mg_start2(&init, &error);
  mg_server_port bound[1] = {};
  if (server->context_ == nullptr || mg_get_server_ports(server->context_, 1, bound) != 1) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", server->options_.address, " (", why[0] == 0 ? "no cause given" : why,
        "): is another process using the port, and is the host one of this machine? "
        "Port 0 picks a free one"));
  }
  server->port_ = bound[0].port;
  mg_set_request_handler(
      server->context_, "/",
      [](mg_connection* connection, void* data) {
        return static_cast<const HttpServer*>(data)->Answer(connection);
      },
      server.get());
  return server;
}

int HttpServer::Answer(mg_connection* connection) const {
  const HttpResponse response = Take(connection);
  Send(connection, response,
       absl::string_view(mg_get_request_info(connection)->request_method) != "HEAD");
  if (response.status != 408 && response.status != 413) return response.status;
  // The library would wait for the rest of the body without a limit after this answer. It does not
  // wait if the handler returns 0, "not handled", but then it sends a page of its own. Marking the
  // connection suppresses that page.
  mg_set_user_connection_data(connection, connection);
  return 0;
}

HttpResponse HttpServer::Take(mg_connection* connection) const {
  const mg_request_info& info = *mg_get_request_info(connection);
  HttpRequest request{.method = info.request_method,
                      .path = info.local_uri == nullptr ? "" : info.local_uri,
                      .query = info.query_string == nullptr ? "" : info.query_string};
  if (request.method == "HEAD") request.method = "GET";
  for (int i = 0; i < info.num_headers; ++i) {
    request.headers.emplace_back(info.http_headers[i].name, info.http_headers[i].value);
  }
  const int refusal =
      mg_get_request_info(connection)->content_length > kBodyBytesMax
          ? 413
          : ReadBody(connection, absl::Milliseconds(options_.timeout_ms), request.body);
  if (refusal != 0) return {.status = refusal, .content_type = "text/plain"};
  return handler_(request);
}

void HttpServer::Send(mg_connection* connection, const HttpResponse& response,
                      bool with_body) const {
  std::string head =
      absl::StrCat("HTTP/1.1 ", response.status, " ", TextOf(response.status), "\r\n");
  if (response.status != 204 && response.status != 304) {
    absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\n");
  }
  const int64_t bytes =
      response.stream == nullptr ? std::ssize(response.body) : response.stream_bytes;
  if (bytes >= 0 && response.status != 204 && response.status != 304) {
    absl::StrAppend(&head, "Content-Length: ", bytes, "\r\n");
  }
  for (const std::string& header : options_.headers) absl::StrAppend(&head, header, "\r\n");
  for (const auto& [name, value] : response.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&head, "Connection: close\r\n\r\n");
  HttpStream stream(connection);
  if (!stream.Write(head) || !with_body) return;
  if (response.stream != nullptr) {
    response.stream(stream);
  } else {
    stream.Write(response.body);
  }
}

// The library's listener notices the end only when a connection arrives, or after two seconds,
// which would delay a process that stops. So a thread connects until the listener has noticed.
HttpServer::~HttpServer() {
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

std::optional<std::string> FormValue(absl::string_view form, const std::string& name) {
  std::string value(form.size() + 1, '\0');
  const int size = mg_get_var(form.data(), form.size(), name.c_str(), value.data(), value.size());
  if (size < 0) return std::nullopt;
  value.resize(size);
  return value;
}

}  // namespace muster

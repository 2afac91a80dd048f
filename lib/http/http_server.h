// HTTP/1.1 for pages and scripts: one place that knows the library.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct mg_connection;
struct mg_context;

namespace muster {

struct HttpRequest {
  std::string method;  // "GET"; HEAD comes as GET, and gets no body
  std::string path;    // decoded, without the query, without ".."
  std::string query;   // as it came
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // at most HttpServer::kBodyBytesMax

  // "" where it is not there, or there twice: who asks for it wants to know one value.
  absl::string_view Header(absl::string_view name) const;
};

// What is written as it comes to be known. Used by one thread.
class HttpStream {
 public:
  explicit HttpStream(mg_connection* connection) : connection_(connection) {}
  // False: the client is gone, or has read nothing for HttpServer::Options::timeout_ms.
  bool Write(absl::string_view bytes);

 private:
  mg_connection* const connection_;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Set: it writes the body, after the headers, and `body` is not looked at. -1: of unknown length.
  std::function<void(HttpStream&)> stream = nullptr;
  int64_t stream_bytes = -1;
};

// Threads of its own answer, one connection each, one request per connection. Every bound is met by
// the library before the handler is called: a request line with its headers of 16 KiB, and the time
// that the whole of it may take to come. What it refuses by itself has no body.
class HttpServer {
 public:
  static constexpr int64_t kBodyBytesMax = 4 << 10;

  struct Options {
    std::string address;  // "host:port", port 0 picks a free one
    int threads = 2;      // so many requests at once; as many connections again may wait
    int timeout_ms = 30'000;
    // Go with every answer, those of the library's own included: "Name: value".
    std::vector<std::string> headers;
  };
  // Called by several threads at once.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // INVALID_ARGUMENT where it is no address, UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Handler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  // Waits for requests that are being answered. Streams end by themselves, or when Write() says so.
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer(Options options, std::string host, Handler handler);

  HttpResponse Take(mg_connection* connection) const;
  int Answer(mg_connection* connection) const;
  void Send(mg_connection* connection, const HttpResponse& response, bool with_body) const;

  const Options options_;
  const std::string host_;  // as this process reaches it
  const Handler handler_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

// Of a query or a form: the value of `name`, its escapes undone; nullopt where there is none.
std::optional<std::string> FormValue(absl::string_view form, const std::string& name);

}  // namespace muster

// HTTP/1.1 for pages and scripts. The only code that uses the HTTP library.
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
  std::string method;  // "GET"; HEAD is passed as GET, and the answer has no body
  std::string path;    // decoded, without the query, without ".."
  std::string query;   // not decoded
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // at most HttpServer::kBodyBytesMax

  // Returns the value of the header; "" if it is missing or present twice, because callers need
  // exactly one value.
  absl::string_view Header(absl::string_view name) const;
};

// Writes a body piece by piece. Used by one thread.
class HttpStream {
 public:
  explicit HttpStream(mg_connection* connection) : connection_(connection) {}
  // Sends `bytes`. Returns false if the client is gone, or has read nothing for
  // HttpServer::Options::timeout_ms.
  bool Write(absl::string_view bytes);

 private:
  mg_connection* const connection_;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // If set, it writes the body after the headers, and `body` is ignored. stream_bytes is its
  // length, or -1 if unknown.
  std::function<void(HttpStream&)> stream = nullptr;
  int64_t stream_bytes = -1;
};

// Answers requests on its own threads: one connection per thread, one request per connection. All
// limits are checked before the handler is called. The library limits the request line with its
// headers: 16 KiB, and timeout_ms. This class limits the body: kBodyBytesMax, and timeout_ms.
// Answers with which the library or this class refuses a request have no body.
class HttpServer {
 public:
  static constexpr int64_t kBodyBytesMax = 4 << 10;

  struct Options {
    std::string address;  // "host:port"; port 0 picks a free one
    int threads = 2;      // requests at once; the same number of connections may wait
    int timeout_ms = 30'000;
    // Sent with every answer, including the library's own: "Name: value".
    std::vector<std::string> headers;
  };
  // Called by several threads at once.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Returns INVALID_ARGUMENT if `address` is no host:port, UNAVAILABLE if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Handler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  // Blocks until requests in progress are answered. Streams end by themselves, or when Write()
  // returns false.
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer(Options options, std::string host, Handler handler);

  HttpResponse Take(mg_connection* connection) const;
  int Answer(mg_connection* connection) const;
  void Send(mg_connection* connection, const HttpResponse& response, bool with_body) const;

  const Options options_;
  const std::string host_;  // the address at which this process reaches it
  const Handler handler_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

// Returns the decoded value of `name` in a query or a form; nullopt if there is none.
std::optional<std::string> FormValue(absl::string_view form, const std::string& name);

}  // namespace muster

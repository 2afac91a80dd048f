// An HTTP client for tests: a loopback socket and the bytes that it receives.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {

// One connection. A wait of 20 s is a failure; a connection closed by the server is not.
class HttpClient {
 public:
  explicit HttpClient(int port, int receive_buffer_bytes = 0)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(int));
    }
    timeval patience{.tv_sec = 20};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~HttpClient() { close(socket_); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool Write(absl::string_view bytes) {
    return send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Reads until `text` has arrived, or until the end. Returns all bytes so far.
  const std::string& ReadUntil(absl::string_view text) {
    char piece[4096];
    while (!absl::StrContains(read_, text)) {
      const ssize_t got = recv(socket_, piece, sizeof(piece), 0);
      EXPECT_TRUE(got >= 0 || errno == ECONNRESET) << "no more bytes within 20 s after: " << read_;
      if (got <= 0) break;
      read_.append(piece, got);
    }
    return read_;
  }
  const std::string& ReadAll() { return ReadUntil(std::string(1, '\0') + "never"); }

 private:
  const int socket_;
  std::string read_;
};

struct HttpAnswer {
  int status = 0;
  std::string head;
  std::string body;
};

inline HttpAnswer ParseAnswer(const std::string& text) {
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return {.head = text};
  return {.status = std::atoi(text.substr(9, 3).c_str()),
          .head = text.substr(0, end + 2),
          .body = text.substr(end + 4)};
}

// Sends one request and returns the answer. `headers` are lines, each with its line break.
inline HttpAnswer Fetch(int port, absl::string_view path, absl::string_view headers = "",
                        absl::string_view method = "GET", absl::string_view body = "") {
  HttpClient client(port);
  client.Write(absl::StrCat(
      method, " ", path, " HTTP/1.1\r\n",
      absl::StrContains(headers, "Host:") ? "" : "Host: localhost\r\n", headers,
      body.empty() ? "" : absl::StrCat("Content-Length: ", body.size(), "\r\n"), "\r\n", body));
  return ParseAnswer(client.ReadAll());
}

}  // namespace muster
